# pyright: reportUnknownMemberType=false
"""The losses: what each token costs. Plain functions of tensors; torch itself is not needed to name them."""

from typing import TYPE_CHECKING

from agentflow.learner.losses._registry import Drawn, TokenLosses, register_loss

if TYPE_CHECKING:
    from torch import Tensor

    from agentflow.learner.losses._settings import LossSettings

__all__ = ["mean_by_unit", "sum_by_unit"]

FARTHEST = 20.0
"""Log-ratios beyond it are taken as it: their exponential would be no useful number."""
FARTHEST_SEQUENCE = 10.0
"""The same for mean log-ratios of whole calls."""


@register_loss("flow_grpo")
@register_loss("grpo", aggregation="seq-mean-token-mean", sequence="episode")
@register_loss("dapo", clip_high=0.28, kl=0.0, aggregation="token-mean", filter_groups=True)
@register_loss(
    "dr_grpo", divide_by_std=False, kl=0.0, aggregation="seq-mean-token-sum-norm", sequence="episode"
)
def clipped(drawn: Drawn, settings: "LossSettings") -> TokenLosses:
    """PPO's: the ratio counts only near 1, where going on would do good."""
    ratio = (drawn.log_prob - drawn.old).clamp(-FARTHEST, FARTHEST).exp()
    return _pessimistic(ratio, drawn.advantages, settings)


@register_loss("gspo", clip_low=3e-4, clip_high=4e-4, kl=0.0)
def sequence_clipped(drawn: Drawn, settings: "LossSettings") -> TokenLosses:
    """GSPO's: one ratio for a whole call, the geometric mean over its tokens.

    Each token moves its own share of it, so that tokens may count differently (its form by token, as published).
    """
    policy = drawn.log_prob
    mean = mean_by_unit(policy.detach() - drawn.old, drawn)
    ratio = (policy - policy.detach() + mean).clamp(max=FARTHEST_SEQUENCE).exp()
    return _pessimistic(ratio, drawn.advantages, settings)


@register_loss("cispo", clip_low=1.0, clip_high=4.0, kl=0.0, aggregation="token-mean")
def clipped_weight(drawn: Drawn, settings: "LossSettings") -> TokenLosses:
    """CISPO's: the cut ratio is a weight without a gradient, so that no token is ever silent."""
    ratio = (drawn.log_prob.detach() - drawn.old).clamp(-FARTHEST, FARTHEST).exp()
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    values = -ratio.clamp(low, high) * drawn.advantages * drawn.log_prob
    return TokenLosses(values, ratio < low, ratio > high)


@register_loss(
    "reinforce",
    ratio=False,
    baseline="leave_one_out",
    divide_by_std=False,
    kl=0.0,
    aggregation="seq-mean-token-sum",
    sequence="episode",
)
def reinforce(drawn: Drawn, settings: "LossSettings") -> TokenLosses:
    """The policy gradient as it is; the correction brings the ratio."""
    return _uncut(-drawn.advantages * drawn.log_prob, drawn)


@register_loss(
    "cross_entropy",
    ratio=False,
    baseline="none",
    divide_by_std=False,
    kl=0.0,
    aggregation="token-mean",
    correction="none",
)
def cross_entropy(drawn: Drawn, settings: "LossSettings") -> TokenLosses:
    """Fine-tuning: what was written becomes more likely, whatever it was worth."""
    return _uncut(-drawn.log_prob, drawn)


def sum_by_unit(values: "Tensor", drawn: Drawn) -> "Tensor":
    """For each token, the sum over its call."""
    units = drawn.units.flatten()
    sums = values.new_zeros(int(units.max()) + 1 if len(units) else 1)
    sums = sums.index_add(0, units, values.where(drawn.mask, 0.0).flatten())
    return sums[units].view_as(values)


def mean_by_unit(values: "Tensor", drawn: Drawn) -> "Tensor":
    """For each token, the mean over its call."""
    count = sum_by_unit(drawn.mask.to(values.dtype), drawn)
    return sum_by_unit(values, drawn) / count.clamp(min=1)


def _pessimistic(ratio: "Tensor", advantages: "Tensor", settings: "LossSettings") -> TokenLosses:
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    values = (-advantages * ratio).maximum(-advantages * ratio.clamp(low, high))
    if settings.clip_negative is not None:
        bounded = values.minimum(-advantages * settings.clip_negative)
        values = bounded.where(advantages < 0, values)
    return TokenLosses(values, (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0))


def _uncut(values: "Tensor", drawn: Drawn) -> TokenLosses:
    none = drawn.mask & ~drawn.mask
    return TokenLosses(values, none, none)
