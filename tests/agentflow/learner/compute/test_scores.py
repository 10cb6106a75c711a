"""Packed rows have the log-probabilities and gradients of separate rows."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

import numpy as np
import pytest
import torch

from agentflow.learner.compute import Attention, log_probs, log_probs_by_row, prepare
from agentflow.learner.packing import pack
from tests.agentflow.learner._models import tiny_model
from tests.agentflow.learner._packed_rows import plain_row

ROWS = [
    plain_row([5, 6, 7, *middle, *end], [False, False, True, *[True] * (len(middle) + len(end))], temperature)
    for middle in ([8, 9], [10], [8, 11, 12, 13])
    for end, temperature in (([1, 2, 3], 1.0), ([1, 4], 0.7), ([], 1.0))
]


@pytest.mark.parametrize("attention", ["blocks", "dense"])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_packed_rows_have_the_log_probabilities_of_rows_alone(kind: str, attention: Attention) -> None:
    model = tiny_model(kind=kind)
    prepare(model)
    alone = torch.nn.utils.rnn.pad_sequence(
        [log_probs_by_row(model, [row])[0] for row in ROWS], batch_first=True
    )
    together = log_probs_by_row(model, ROWS)
    [packed] = pack(ROWS)
    ours = torch.zeros_like(alone)
    ours[torch.from_numpy(packed.rows)] = log_probs(model, packed, attention=attention)
    assert len(packed) < sum(len(row.ids) for row in ROWS) / 2
    np.testing.assert_allclose(together.detach(), alone.detach(), atol=1e-5)
    np.testing.assert_allclose(ours.detach(), alone.detach(), atol=1e-5)
