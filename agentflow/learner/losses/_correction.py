# pyright: reportUnknownMemberType=false
"""The engine that sampled and the trainer never agree to the last bit: what is done about it."""

from typing import TYPE_CHECKING, NamedTuple

from agentflow.learner.losses._policy import sum_by_unit
from agentflow.learner.losses._registry import Drawn

if TYPE_CHECKING:
    from torch import Tensor

    from agentflow.learner.losses._settings import LossSettings

__all__ = ["Correction", "correct"]

FARTHEST = 20.0


class Correction(NamedTuple):
    """What a token's loss is multiplied by, and the importance weight that it comes from."""

    factor: "Tensor"
    """For each token; no gradient flows through it."""
    weights: "Tensor"
    """The importance weights before they were cut."""


def correct(
    drawn: Drawn, behaviour: "Tensor", settings: "LossSettings", *, ratio: bool, fixed: bool
) -> Correction:
    """The correction of each token.

    - A loss with a ratio to weights that are not the engine's (`fixed`): the weight is theirs over the engine's.
    - A loss with a ratio to the engine's own probabilities: the ratio is the weight already, and the loss cuts it;
      what is left is to mask.
    - A loss without a ratio: the weight is today's probability over the engine's.
    """
    today = drawn.old if ratio and fixed else drawn.log_prob.detach()
    apart = today - behaviour
    if settings.correction_level == "sequence":
        apart = sum_by_unit(apart, drawn)
    weights = apart.clamp(-FARTHEST, FARTHEST).exp()
    carried = ratio and not fixed
    limit = settings.correction_limit
    match settings.correction:
        case "none":
            factor = weights.new_ones(weights.shape)
        case "truncate":
            factor = weights.new_ones(weights.shape) if carried else weights.clamp(max=limit)
        case "mask":
            kept = weights.new_ones(weights.shape) if carried else weights
            factor = kept.where(weights <= limit, 0.0)
    return Correction(factor, weights)
