# pyright: reportUnknownMemberType=false
"""The built-in losses: plain functions of tensors. Importing them does not import torch."""

from typing import TYPE_CHECKING

from agentflow.learner.losses._registry import TokenBatch, TokenLosses, register_loss

if TYPE_CHECKING:
    from torch import Tensor

    from agentflow.learner.losses._settings import LossSettings


LIMIT = 20.0
"""Log-ratios of tokens are clamped to it before the exponential."""
SEQUENCE_LIMIT = 10.0
"""The same for mean log-ratios of whole calls."""


@register_loss("flow_grpo")
@register_loss("grpo", loss_agg_mode="seq-mean-token-mean", sequence="episode")
@register_loss("dapo", clip_ratio_high=0.28, kl_coef=0.0, loss_agg_mode="token-mean", filter_groups=True)
@register_loss(
    "dr_grpo", divide_by_std=False, kl_coef=0.0, loss_agg_mode="seq-mean-token-sum-norm", sequence="episode"
)
def clipped(batch: TokenBatch, settings: "LossSettings") -> TokenLosses:
    """Compute PPO's clipped loss."""
    ratio = (batch.log_prob - batch.old).clamp(-LIMIT, LIMIT).exp()
    return _pessimistic(ratio, batch.advantages, settings)


@register_loss("gspo", clip_ratio_low=3e-4, clip_ratio_high=4e-4, kl_coef=0.0)
def sequence_clipped(batch: TokenBatch, settings: "LossSettings") -> TokenLosses:
    """Compute GSPO's loss: one ratio for a whole call, the geometric mean over its tokens.

    Each token has the gradient of its own share (the published token-level form), so advantages may differ by token.
    """
    policy = batch.log_prob
    mean = mean_by_unit(policy.detach() - batch.old, batch)
    ratio = (policy - policy.detach() + mean).clamp(max=SEQUENCE_LIMIT).exp()
    return _pessimistic(ratio, batch.advantages, settings)


@register_loss("cispo", clip_ratio_low=1.0, clip_ratio_high=4.0, kl_coef=0.0, loss_agg_mode="token-mean")
def clipped_weight(batch: TokenBatch, settings: "LossSettings") -> TokenLosses:
    """Compute CISPO's loss: the clipped ratio is a weight without a gradient, so every token keeps its gradient."""
    ratio = (batch.log_prob.detach() - batch.old).clamp(-LIMIT, LIMIT).exp()
    low, high = 1 - settings.clip_ratio_low, 1 + settings.clip_ratio_high
    values = -ratio.clamp(low, high) * batch.advantages * batch.log_prob
    return TokenLosses(values, ratio < low, ratio > high)


@register_loss(
    "reinforce",
    ratio=False,
    baseline="leave_one_out",
    divide_by_std=False,
    kl_coef=0.0,
    loss_agg_mode="seq-mean-token-sum",
    sequence="episode",
)
def reinforce(batch: TokenBatch, settings: "LossSettings") -> TokenLosses:
    """Compute the plain policy gradient; the correction supplies the ratio."""
    return _unclipped(-batch.advantages * batch.log_prob, batch)


@register_loss(
    "cross_entropy",
    ratio=False,
    baseline="none",
    divide_by_std=False,
    kl_coef=0.0,
    loss_agg_mode="token-mean",
    correction="none",
)
def cross_entropy(batch: TokenBatch, settings: "LossSettings") -> TokenLosses:
    """Compute the supervised loss; advantages are ignored."""
    return _unclipped(-batch.log_prob, batch)


def sum_by_unit(values: "Tensor", batch: TokenBatch) -> "Tensor":
    """Return, for each token, the sum over its call."""
    units = batch.units.flatten()
    sums = values.new_zeros(int(units.max()) + 1 if len(units) else 1)
    sums = sums.index_add(0, units, values.where(batch.mask, 0.0).flatten())
    return sums[units].view_as(values)


def mean_by_unit(values: "Tensor", batch: TokenBatch) -> "Tensor":
    """Return, for each token, the mean over its call."""
    count = sum_by_unit(batch.mask.to(values.dtype), batch)
    return sum_by_unit(values, batch) / count.clamp(min=1)


def _pessimistic(ratio: "Tensor", advantages: "Tensor", settings: "LossSettings") -> TokenLosses:
    low, high = 1 - settings.clip_ratio_low, 1 + settings.clip_ratio_high
    values = (-advantages * ratio).maximum(-advantages * ratio.clamp(low, high))
    if settings.clip_ratio_c is not None:
        bounded = values.minimum(-advantages * settings.clip_ratio_c)
        values = bounded.where(advantages < 0, values)
    return TokenLosses(values, (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0))


def _unclipped(values: "Tensor", batch: TokenBatch) -> TokenLosses:
    none = batch.mask & ~batch.mask
    return TokenLosses(values, none, none)
