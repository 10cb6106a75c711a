"""A model is made ready for trees, and tried."""

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

__all__ = ["prepare"]

SHARED, APART = 6, 5
"""Tokens of the trial's rows: those that both begin with, and those of each."""


def prepare(model: nn.Module) -> None:
    """Make a causal model of transformers follow trees; rows go through it as before.

    It is tried on a small tree: what a model computes where its layers don't follow is wrong, and nothing would tell.

    :raises ConfigurationError: the model can't follow trees, and why in one line.
    """
    plain = plain_model(model)
    name = type(plain).__name__
    if not hasattr(plain, "set_attn_implementation"):
        raise ConfigurationError(f"{name} is no causal model of transformers: only those can follow trees")
    config = plain.config.get_text_config()
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if others:
        raise ConfigurationError(f"{name} has layers of {', '.join(others)}, which can't follow trees")
    before = plain.config._attn_implementation  # pyright: ignore[reportPrivateUsage] - it has no public name
    plain.set_attn_implementation(NAME)
    if plain.get_input_embeddings().weight.is_meta:
        # Weights come later: only the guard of every forward is left.
        return
    training = plain.training
    plain.eval()
    try:
        _try(plain, name)
    except ConfigurationError:
        plain.set_attn_implementation(before)
        raise
    finally:
        plain.train(training)


def _try(plain: Any, name: str) -> None:  # noqa: ANN401
    """Compare a tree of two rows with the model's own logits, and look whether a branch reaches the other."""
    precise = plain.get_output_embeddings().weight.dtype in (torch.float32, torch.float64)
    ids = np.arange(SHARED + 2 * APART) % plain.config.get_text_config().vocab_size
    rows = [_row(ids[: SHARED + APART]), _row(np.concatenate((ids[:SHARED], ids[SHARED + APART :])))]
    [packed] = pack(rows)
    with torch.no_grad():
        ours = _packed_scores(plain, packed, name)
        theirs = torch.stack([_own_scores(plain, rows[int(number)]) for number in packed.rows])
        if not _near(ours, theirs, 1e-3 if precise else 0.5):
            raise ConfigurationError(
                f"{name} gives other log-probabilities along a tree than row by row, "
                f"by up to {(ours - theirs).abs().max().item():.2g}: it can't follow trees"
            )
        # The second branch stands last.
        moved = np.concatenate((packed.ids[:-APART], (packed.ids[-APART:] + 1) % packed.ids.max()))
        other = _packed_scores(plain, replace(packed, ids=moved), name)
        if not _near(other[0], ours[0], 1e-4 if precise else 0.1):
            raise ConfigurationError(f"{name} lets one branch of a tree see another: it can't follow trees")


def _near(one: Tensor, other: Tensor, most: float) -> bool:
    """Whether none is further away; what is no number is."""
    return bool(((one - other).abs() <= most).all())


def _packed_scores(plain: Any, packed: Packed, name: str) -> Tensor:  # noqa: ANN401
    """The log-probabilities along the tree."""
    try:
        return scores(plain, packed).log_probs
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"{name} can't follow trees: {reason}") from error


def _own_scores(plain: Any, row: Row) -> Tensor:  # noqa: ANN401
    """The log-probabilities by the model's own head, whatever it does with its logits."""
    ids = torch.from_numpy(row.ids.astype(np.int64)).to(plain.get_input_embeddings().weight.device)
    logits = cast("Tensor", plain(input_ids=ids[None], use_cache=False).logits)[0].float()
    return logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]


def _row(ids: np.ndarray[Any, np.dtype[np.int64]]) -> Row:
    """A row all of whose tokens but the first are trained."""
    nothing = np.zeros(len(ids) - 1, np.float32)
    return Row(
        ids=ids.astype(np.int32),
        trained=np.arange(len(ids)) > 0,
        behaviour=nothing,
        advantages=nothing,
        weights=nothing.astype(np.float64),
        units=nothing.astype(np.int32),
    )
