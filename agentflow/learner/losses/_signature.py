# pyright: reportUnknownMemberType=false
"""The losses with the signature that verl gives to its own, one row for each sequence."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from agentflow.learner.losses._registry import Drawn, find_loss
from agentflow.learner.losses._settings import LossSettings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PolicyLoss", "policy_loss"]


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
        """The loss, and figures about it.

        :param config: `LossSettings`, or the settings of an actor of verl.
        """
        ...


def policy_loss(name: str) -> PolicyLoss:
    """The loss of that name as a function of padded rows, each row a sequence.

    It knows no episodes, so `turn-mean` can't be had of it.
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
        drawn = Drawn(
            log_prob=log_prob.where(mask, 0.0),
            old=old_log_prob.where(mask, 0.0),
            advantages=advantages,
            mask=mask,
            units=rows.where(mask, len(mask)),
        )
        costs = loss.tokens(drawn, _settings(name, config))
        values = costs.values if rollout_is_weights is None else costs.values * rollout_is_weights
        weights = _weights(mask, loss_agg_mode, getattr(config, "global_batch_info", {}))
        figures = {
            "actor/pg_clipfrac": _share(costs.low | costs.high, mask),
            "actor/ppo_kl": _share(drawn.old - drawn.log_prob.detach(), mask),
        }
        return (values.where(mask, 0.0) * weights.to(values.dtype)).sum(), figures

    return of_rows


def _settings(name: str, config: Any) -> LossSettings:  # noqa: ANN401
    if isinstance(config, LossSettings):
        return config
    if config is None:
        return LossSettings(name=name, aggregation="token-mean")
    either = config.clip_ratio
    return LossSettings(
        name=name,
        aggregation="token-mean",
        clip_low=either if config.clip_ratio_low is None else config.clip_ratio_low,
        clip_high=either if config.clip_ratio_high is None else config.clip_ratio_high,
    )


def _weights(mask: "Tensor", mode: str, known: Mapping[str, Any]) -> "Tensor":
    """What each token counts; `known` tells of a batch of which these rows are a part."""
    lengths = mask.sum(dim=1, keepdim=True).double()
    speaks = (lengths > 0).double()
    ranks = known.get("dp_size") or 1
    sequences = known.get("global_batch_size") or speaks.sum()
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
            raise ValueError("seq-mean-token-sum-norm needs loss_scale_factor: never the width of a batch")
        case "seq-mean-token-mean":
            return one / sequences / lengths.clamp(min=1)
        case _:
            raise ValueError(f"rows alone don't tell what {mode} means")


def _share(values: "Tensor", mask: "Tensor") -> float:
    return float((values.double() * mask).sum() / mask.sum().clamp(min=1))
