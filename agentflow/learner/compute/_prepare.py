"""Prepare a model for tree attention, and verify it."""

# pyright: reportUnknownMemberType=false
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from agentflow.errors import ConfigurationError
from agentflow.learner._rows import Row
from agentflow.learner.compute._attention import NAME
from agentflow.learner.compute._scores import plain_model, scores
from agentflow.learner.packing import Packed, pack

SHARED, BRANCH = 6, 5
"""Number of tokens in the verification rows: the shared prefix, and each branch."""


def prepare(model: nn.Module) -> None:
    """Make a causal model of transformers follow trees; plain rows give the same results as before.

    The model is verified on a small tree: layers that ignore the tree would be silently wrong. See docs/packing.md.

    :raises ConfigurationError: if the model can't follow trees; one line with the reason.
    """
    plain = plain_model(model)
    name = type(plain).__name__
    if not hasattr(plain, "set_attn_implementation"):
        raise ConfigurationError(f"{name} is not a causal model of transformers: only those can follow trees")
    config = plain.config.get_text_config()
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if others:
        raise ConfigurationError(f"{name} has layers of {', '.join(others)}, which can't follow trees")
    before = plain.config._attn_implementation  # pyright: ignore[reportPrivateUsage] - it has no public name
    plain.set_attn_implementation(NAME)
    if plain.get_input_embeddings().weight.is_meta:
        # Weights are loaded later: only the check of every forward remains.
        return
    training = plain.training
    plain.eval()
    try:
        _verify(plain, name)
    except ConfigurationError:
        plain.set_attn_implementation(before)
        raise
    finally:
        plain.train(training)


def _verify(plain: Any, name: str) -> None:  # noqa: ANN401
    """Compare a tree of two rows with the model's own logits, and check that the branches are independent."""
    precise = plain.get_output_embeddings().weight.dtype in (torch.float32, torch.float64)
    ids = np.arange(SHARED + 2 * BRANCH) % plain.config.get_text_config().vocab_size
    rows = [_row(ids[: SHARED + BRANCH]), _row(np.concatenate((ids[:SHARED], ids[SHARED + BRANCH :])))]
    [packed] = pack(rows)
    with torch.no_grad():
        ours = _packed_scores(plain, packed, name)
        theirs = torch.stack([_own_scores(plain, rows[int(number)]) for number in packed.rows])
        if not _near(ours, theirs, 1e-3 if precise else 0.5):
            raise ConfigurationError(
                f"{name} computes different log-probabilities along a tree than row by row, "
                f"by up to {(ours - theirs).abs().max().item():.2g}: it can't follow trees"
            )
        # The second branch is last.
        moved = np.concatenate((packed.ids[:-BRANCH], (packed.ids[-BRANCH:] + 1) % packed.ids.max()))
        other = _packed_scores(plain, replace(packed, ids=moved), name)
        if not _near(other[0], ours[0], 1e-4 if precise else 0.1):
            raise ConfigurationError(f"{name} lets one branch of a tree see another: it can't follow trees")


def _near(one: Tensor, other: Tensor, most: float) -> bool:
    """Return true if no element differs by more than `most`; NaN differs."""
    return bool(((one - other).abs() <= most).all())


def _packed_scores(plain: Any, packed: Packed, name: str) -> Tensor:  # noqa: ANN401
    """Return the log-probabilities along the tree."""
    try:
        return scores(plain, packed)[0]
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"{name} can't follow trees: {reason}") from error


def _own_scores(plain: Any, row: Row) -> Tensor:  # noqa: ANN401
    """Return the log-probabilities of the model's own head, including its postprocessing of logits."""
    ids = torch.from_numpy(row.ids.astype(np.int64)).to(plain.get_input_embeddings().weight.device)
    logits = cast("Tensor", plain(input_ids=ids[None], use_cache=False).logits)[0].float()
    return logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]


def _row(ids: np.ndarray[Any, np.dtype[np.int64]]) -> Row:
    """Return a row that trains all tokens but the first."""
    nothing = np.zeros(len(ids) - 1, np.float32)
    return Row(
        ids=ids.astype(np.int32),
        trained=np.arange(len(ids)) > 0,
        behaviour=nothing,
        advantages=nothing,
        weights=nothing.astype(np.float64),
        units=nothing.astype(np.int32),
    )
