# pyright: reportUnknownMemberType=false
"""The losses with verl's signature, one row per sequence."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from agentflow.learner.losses._registry import TokenBatch, find_loss
from agentflow.learner.losses._settings import LossSettings

if TYPE_CHECKING:
    from torch import Tensor


class PolicyLoss(Protocol):
    """A loss of padded rows."""

    def __call__(
        self,
        old_log_prob: "Tensor",
        log_prob: "Tensor",
        advantages: "Tensor",
        response_mask: "Tensor",
        loss_agg_mode: str = "token-mean",
        config: Any = None,  # noqa: ANN401 - verl's own settings, which are not installed here
        rollout_is_weights: "Tensor | None" = None,
    ) -> tuple["Tensor", dict[str, float]]:
        """Return the loss and its figures.

        :param config: `LossSettings`, or the settings of a verl actor.
        """
        ...


def policy_loss(name: str) -> PolicyLoss:
    """Return a loss by name as a function of padded rows, each row a sequence.

    Rows have no episodes, so `turn-mean` is not supported. See docs/losses.md.
    """
    loss = find_loss(name)

    def of_rows(
        old_log_prob: "Tensor",
        log_prob: "Tensor",
        advantages: "Tensor",
        response_mask: "Tensor",
        loss_agg_mode: str = "token-mean",
        config: Any = None,  # noqa: ANN401
        rollout_is_weights: "Tensor | None" = None,
    ) -> tuple["Tensor", dict[str, float]]:
        mask = response_mask.bool()
        rows = mask.new_ones(mask.shape).cumsum(0) - 1
        batch = TokenBatch(
            log_prob=log_prob.where(mask, 0.0),
            old=old_log_prob.where(mask, 0.0),
            advantages=advantages,
            mask=mask,
            units=rows.where(mask, len(mask)),
        )
        losses = loss.tokens(batch, _settings(name, config))
        values = losses.values if rollout_is_weights is None else losses.values * rollout_is_weights
        weights = _weights(mask, loss_agg_mode, getattr(config, "global_batch_info", {}))
        figures = {
            "actor/pg_clipfrac": _share(losses.low | losses.high, mask),
            "actor/ppo_kl": _share(batch.old - batch.log_prob.detach(), mask),
        }
        return (values.where(mask, 0.0) * weights.to(values.dtype)).sum(), figures

    return of_rows


def _settings(name: str, config: Any) -> LossSettings:  # noqa: ANN401
    if isinstance(config, LossSettings):
        return config
    if config is None:
        return LossSettings(name=name, loss_agg_mode="token-mean")
    either = config.clip_ratio
    return LossSettings(
        name=name,
        loss_agg_mode="token-mean",
        clip_ratio_low=either if config.clip_ratio_low is None else config.clip_ratio_low,
        clip_ratio_high=either if config.clip_ratio_high is None else config.clip_ratio_high,
    )


def _weights(mask: "Tensor", mode: str, known: Mapping[str, Any]) -> "Tensor":
    """Return the weight of each token; `known` has the totals of the batch that these rows are part of."""
    lengths = mask.sum(dim=1, keepdim=True).double()
    is_trained = (lengths > 0).double()
    ranks = known.get("dp_size") or 1
    sequences = known.get("global_batch_size") or is_trained.sum()
    one = mask.double() * ranks
    match mode:
        case "token-mean":
            return one / (known.get("batch_num_tokens") or lengths.sum())
        case "token-sum":
            return one
        case "seq-mean-token-sum":
            return one / sequences
        case "seq-mean-token-sum-norm" if known.get("loss_scale_factor"):
            return one / sequences / known["loss_scale_factor"]
        case "seq-mean-token-sum-norm":
            raise ValueError("seq-mean-token-sum-norm needs loss_scale_factor")
        case "seq-mean-token-mean":
            return one / sequences / lengths.clamp(min=1)
        case _:
            raise ValueError(f"loss_agg_mode {mode} is not supported without episodes")


def _share(values: "Tensor", mask: "Tensor") -> float:
    return float((values.double() * mask).sum() / mask.sum().clamp(min=1))
