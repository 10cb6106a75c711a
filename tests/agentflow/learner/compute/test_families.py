"""Every family of models has the log-probabilities and gradients of plain transformers."""

# pyright: reportUnknownMemberType=false
# torch and transformers are typed in part.

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from agentflow.learner.compute import prepare, scores
from agentflow.learner.packing import Row, pack
from tests.agentflow.learner._models import KINDS, tiny_model
from tests.agentflow.learner._packed_rows import plain_row
from tests.agentflow.learner.compute._blocks import blocks_of

BY_ROW = {"qwen3_next"}
"""Families that can't follow trees."""
CHANCE = np.random.default_rng(0)
STEM = CHANCE.integers(2, 64, 30).tolist()
ROWS = [
    plain_row(
        [*STEM[:shared], *CHANCE.integers(2, 64, own).tolist()],
        [False] * shared + [True] * own,
        temperature,
    )
    for shared, own, temperature in ((10, 20, 1.0), (20, 7, 0.7), (30, 12, 1.0), (30, 5, 1.0), (29, 1, 1.0))
]
"""Rows of different lengths, all but the shortest longer than the windows; the last continues none and is no prefix."""


def plain_scores(model: Any, row: Row) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - transformers'
    """Log-probabilities and entropies of a row alone, by the model's own forward."""
    ids = torch.from_numpy(row.ids.astype(np.int64))
    logits = (model(input_ids=ids[None]).logits[0] / row.temperature).log_softmax(-1)[:-1]
    trained = torch.from_numpy(row.trained[1:])
    entropy = -(logits.exp() * logits).sum(-1)
    return logits.gather(-1, ids[1:, None])[trained, 0], entropy[trained]


def weighed(values: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """A loss in which each log-probability has its own sign and size."""
    log_probs, entropies = (torch.cat(part) for part in zip(*values, strict=True))
    return (log_probs * torch.linspace(-1, 1, len(log_probs))).sum() + 0.1 * entropies.sum()


def compare(model: Any, *, by_row: bool, budget: int | None = None) -> float:  # noqa: ANN401 - transformers'
    """Compare values and the gradient of every parameter; return the largest difference of a value."""
    ours: dict[int, tuple[Tensor, Tensor]] = {}
    for packed in pack(ROWS, budget, by_row=by_row):
        found = scores(model, packed)
        for line, number in enumerate(packed.rows.tolist()):
            mask = torch.from_numpy(packed.mask[line])
            ours[number] = found[0][line][mask], found[1][line][mask]
    mine = [ours[number] for number in range(len(ROWS))]
    model.set_attn_implementation("eager")
    plain = [plain_scores(model, row) for row in ROWS]
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(weighed(values), parameters) for values in (mine, plain)]
    norms: list[float] = [one.norm().item() for one in gradients[1]]
    for one, other, norm in zip(*gradients, norms, strict=True):
        # What is 0 but for rounding is measured against the whole.
        assert (one - other).norm() <= 1e-5 * max(norm, 1e-2 * math.hypot(*norms))
    return max(
        (left - right).abs().max().item()
        for pair in zip(mine, plain, strict=True)
        for left, right in zip(*pair, strict=True)
    )


@pytest.mark.promise("learner:families")
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_is_computed_as_plain_transformers_does(kind: str) -> None:
    model: Any = tiny_model(kind=kind)
    before = model.config._attn_implementation
    with capture_logs() as logs:
        follows = prepare(model)
    assert follows == (kind not in BY_ROW)
    assert [entry["event"] for entry in logs] == (
        [] if follows else [f"{type(model).__name__} can't follow trees; computing row by row"]
    )
    if follows:
        with blocks_of(8):
            assert compare(model, by_row=False) < 1e-5
    model.set_attn_implementation(before)
    assert compare(model, by_row=True, budget=90) < 1e-5


def test_kernels_of_windows_and_sinks_agree() -> None:
    for kind in ("gemma2", "gpt_oss"):
        model: Any = tiny_model(kind=kind)
        prepare(model)
        [packed] = pack(ROWS)
        with torch.no_grad(), blocks_of(8):
            blocks, dense = (scores(model, packed, attention=one)[0] for one in ("blocks", "dense"))
        torch.testing.assert_close(blocks, dense, atol=1e-5, rtol=0)
