# pyright: reportUnknownMemberType=false
"""The loss: losses by name, built-in and registered ones in one table; their settings; and their sum over rows, with its figures.

Losses are plain functions of tensors. torch is imported by the first call that needs it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeGuard,
)

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from agentflow.errors import ConfigurationError, LossFailure
from agentflow.learner.packing import Row, longest_trained
from agentflow.settings import Section

if TYPE_CHECKING:
    from torch import Tensor


LIMIT = 20.0
"""Log-ratios of tokens are clamped to it before the exponential."""
SEQUENCE_LIMIT = 10.0
"""The same for mean log-ratios of whole calls."""
COUNT = "loss/tokens"
"""Number of tokens that the other figures average over."""
LARGEST = "_max"
"""Suffix of figures that are merged by maximum."""
Aggregation: TypeAlias = Literal[
    "turn-mean",
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]
"""Aggregation of token losses into one number."""

CORRECTIONS: Final[dict[object, dict[str, object]]] = {
    "truncate": {"correction_level": "token", "correction_limit": 2.0},
    "mask": {"correction_level": "sequence", "correction_limit": 3.0},
}
"""Defaults of each correction."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TokenBatch:
    """The trained tokens of some rows, padded: every tensor is (rows, longest)."""

    log_prob: "Tensor"
    """Log-probability under the weights being trained; carries the gradient."""
    old: "Tensor"
    """Log-probability under the weights at the beginning of the step."""
    advantages: "Tensor"
    """Advantage of each token."""
    mask: "Tensor"
    """True at tokens, false at padding."""
    units: "Tensor"
    """Call of each token, numbered from 0; padding has the number after the last call."""


class TokenLosses(NamedTuple):
    """Loss of each token, before weighting and summing."""

    values: "Tensor"
    """The losses."""
    low: "Tensor"
    """True where the ratio was clipped from below."""
    high: "Tensor"
    """True where the ratio was clipped from above."""


TokenLoss: TypeAlias = Callable[[TokenBatch, "LossSettings"], TokenLosses]
"""A loss: computes the loss of each token. Weights are applied afterwards."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A registered loss."""

    tokens: TokenLoss
    """Computes the loss of each token."""
    ratio: bool
    """True if it contains the ratio of new and old probabilities; otherwise the correction supplies it."""
    recipe: Mapping[str, Any]
    """Its own defaults of `LossSettings`."""


_LOSSES: Final[dict[str, Loss]] = {}


def register_loss(name: str, *, ratio: bool = True, **recipe: Any) -> Callable[[TokenLoss], TokenLoss]:  # noqa: ANN401 - settings of any kind
    """Register a function as a loss that settings can name.

    :param ratio: true if it contains the ratio of new and old probabilities; otherwise the correction supplies it.
    :param recipe: its own defaults of `LossSettings`.

    Example::

        @register_loss("mine", ratio=False, kl_coef=0.0)
        def mine(batch: TokenBatch, settings: LossSettings) -> TokenLosses:
            unclipped = batch.mask & ~batch.mask
            return TokenLosses(-batch.advantages * batch.log_prob, unclipped, unclipped)
    """

    def register(tokens: TokenLoss) -> TokenLoss:
        _LOSSES[name] = Loss(tokens, ratio, recipe)
        return tokens

    return register


def find_loss(name: str) -> Loss:
    """Return the loss of that name.

    :raises ConfigurationError: if there is none.

    Example::

        assert find_loss("cispo").ratio
    """
    try:
        return _LOSSES[name]
    except KeyError:
        raise ConfigurationError(
            f"loss.name: there is no loss {name!r}; known are {', '.join(loss_names())}"
        ) from None


def loss_names() -> list[str]:
    """Return the names of all losses, sorted.

    Example::

        assert "grpo" in loss_names()
    """
    return sorted(_LOSSES)


class LossSettings(Section):
    """A loss and its parameters. Each loss has its own defaults; values given here override them.

    The defaults below are those of Flow-GRPO, as published. See docs/losses.md.
    """

    renamed: ClassVar[dict[str, str]] = {
        "clip_low": "clip_ratio_low",
        "clip_high": "clip_ratio_high",
        "clip_negative": "clip_ratio_c",
        "kl": "kl_coef",
        "entropy": "entropy_coef",
        "aggregation": "loss_agg_mode",
    }

    name: str = "flow_grpo"
    """The loss: flow_grpo, grpo, dapo, dr_grpo, gspo, cispo, reinforce, cross_entropy, or a registered one."""

    baseline: Literal["group", "leave_one_out", "none"] = "group"
    """Baseline of the rewards: the mean of the task's group, the mean of the other episodes in it, or none."""
    divide_by_std: bool = True
    """Divide advantages by the standard deviation of the group's rewards."""
    credit: Literal["episode", "siblings", "treerl", "tree_grpo"] = "episode"
    """Advantage of a call in a tree of episodes: that of its `episode`; the value of its node above that of the parent
    (`siblings`); or that of TreeRL or Tree-GRPO."""
    filter_groups: bool = False
    """Leave out groups whose rewards are all equal, also from every mean."""
    train_cut: bool = True
    """Train calls that were truncated at their token limit."""
    overlong_limit: int | None = Field(default=None, ge=1)
    """Token limit of a call; the reward of an episode is reduced near it. `None`: never."""
    overlong_buffer: int = Field(default=0, ge=0)
    """Number of tokens before that limit at which the reduction begins."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """Reduction of the reward at the limit."""

    clip_ratio_low: float = Field(default=0.2, ge=0)
    """Clipping range of the ratio of new and old probabilities below 1."""
    clip_ratio_high: float = Field(default=0.2, ge=0)
    """Clipping range above 1."""
    clip_ratio_c: float | None = Field(default=None, gt=1)
    """Upper bound of the ratio for negative advantages (dual-clip PPO); `None`: none."""
    kl_coef: float = Field(default=0.001, ge=0)
    """Coefficient of the KL divergence from the reference policy; 0: no reference is needed."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """One-sample estimator of the KL divergence: the log-ratio, half its square, or the low-variance form."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the entropy bonus."""

    loss_agg_mode: Aggregation = "turn-mean"
    """Aggregation of token losses; `turn-mean`: mean over tokens of a call, then calls of an episode, then episodes."""
    sequence: Literal["call", "episode"] = "call"
    """Meaning of `seq` in the names of aggregations."""
    length_scale: int | None = Field(default=None, ge=1)
    """Constant divisor of `seq-mean-token-sum-norm`: the maximum number of tokens of a sequence."""

    correction: Literal["none", "truncate", "mask"] = "truncate"
    """Correction of the mismatch between the engine's and the trainer's probabilities by importance weights."""
    correction_level: Literal["token", "sequence"] = "token"
    """Compute importance weights per token or per call."""
    correction_limit: float = Field(default=2.0, gt=0)
    """Largest importance weight; a larger one is truncated, or its tokens are left out (`mask`)."""

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, values: object) -> object:
        if not _is_mapping(values):
            return values
        name = values.get("name", "flow_grpo")
        if not isinstance(name, str):
            return values
        try:
            recipe = {cls.renamed.get(key, key): value for key, value in find_loss(name).recipe.items()}
        except ConfigurationError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        correction = values.get("correction", recipe.get("correction", "truncate"))
        defaults = {**CORRECTIONS.get(correction, {}), **recipe}
        present = {cls.renamed.get(key, key) for key in values}
        return {**{key: value for key, value in defaults.items() if key not in present}, **values}

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.loss_agg_mode == "seq-mean-token-sum-norm" and self.length_scale is None:
            raise ValueError(
                f"{self.name} needs length_scale: the constant divisor of sums, the maximum number of tokens of a call"
            )
        if self.overlong_limit is not None and self.overlong_buffer > self.overlong_limit:
            raise ValueError("overlong_buffer is larger than overlong_limit; make it smaller")
        if self.credit != "episode" and self.baseline == "none":
            raise ValueError(
                f"credit: {self.credit} needs a baseline; set baseline to group or leave_one_out"
            )
        return self


def _is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)


@register_loss("flow_grpo")
@register_loss("grpo", loss_agg_mode="seq-mean-token-mean", sequence="episode")
@register_loss("dapo", clip_ratio_high=0.28, kl_coef=0.0, loss_agg_mode="token-mean", filter_groups=True)
@register_loss(
    "dr_grpo", divide_by_std=False, kl_coef=0.0, loss_agg_mode="seq-mean-token-sum-norm", sequence="episode"
)
def clipped(batch: TokenBatch, settings: LossSettings) -> TokenLosses:
    """Compute PPO's clipped loss."""
    ratio = (batch.log_prob - batch.old).clamp(-LIMIT, LIMIT).exp()
    return _pessimistic(ratio, batch.advantages, settings)


@register_loss("gspo", clip_ratio_low=3e-4, clip_ratio_high=4e-4, kl_coef=0.0)
def sequence_clipped(batch: TokenBatch, settings: LossSettings) -> TokenLosses:
    """Compute GSPO's loss: one ratio for a whole call, the geometric mean over its tokens.

    Each token has the gradient of its own share (the published token-level form), so advantages may differ by token.
    """
    policy = batch.log_prob
    mean = mean_by_unit(policy.detach() - batch.old, batch)
    ratio = (policy - policy.detach() + mean).clamp(max=SEQUENCE_LIMIT).exp()
    return _pessimistic(ratio, batch.advantages, settings)


@register_loss("cispo", clip_ratio_low=1.0, clip_ratio_high=4.0, kl_coef=0.0, loss_agg_mode="token-mean")
def clipped_weight(batch: TokenBatch, settings: LossSettings) -> TokenLosses:
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
def reinforce(batch: TokenBatch, settings: LossSettings) -> TokenLosses:
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
def cross_entropy(batch: TokenBatch, settings: LossSettings) -> TokenLosses:
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


def _pessimistic(ratio: "Tensor", advantages: "Tensor", settings: LossSettings) -> TokenLosses:
    low, high = 1 - settings.clip_ratio_low, 1 + settings.clip_ratio_high
    values = (-advantages * ratio).maximum(-advantages * ratio.clamp(low, high))
    if settings.clip_ratio_c is not None:
        bounded = values.minimum(-advantages * settings.clip_ratio_c)
        values = bounded.where(advantages < 0, values)
    return TokenLosses(values, (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0))


def _unclipped(values: "Tensor", batch: TokenBatch) -> TokenLosses:
    none = batch.mask & ~batch.mask
    return TokenLosses(values, none, none)


def loss_of(
    log_prob: "Tensor",
    rows: Sequence[Row],
    settings: LossSettings,
    entropy: "Tensor | None" = None,
) -> tuple["Tensor", dict[str, float]]:
    """Return the part of a step's loss that these rows contribute, and its figures.

    Parts of a step are added, not averaged: they give the same sum however a step is split, as long as a call stays in
    one part. Everything is computed in float64; gradients are returned in the precision of `log_prob`.
    See docs/losses.md.

    :param log_prob: log-probability of each trained token of each row, left-aligned: (rows, longest).
    :param rows: the rows.
    :param entropy: entropy of the distribution at each of these tokens, if the settings need it.
    :raises LossFailure: if the loss is not finite; it names the rows.
    """
    if tuple(log_prob.shape) != (len(rows), longest_trained(rows)):
        raise ValueError(f"log-probabilities of {tuple(log_prob.shape)} for {len(rows)} rows")
    if not rows:
        return log_prob.double().sum(), {COUNT: 0.0}
    pad = _padding(rows, log_prob)
    mask = pad([np.ones(len(row.units), np.bool_) for row in rows])
    exact = log_prob.double().where(mask, 0.0)
    behaviour = pad([row.behaviour for row in rows])
    units, number_of_units = _numbered(rows)
    batch = TokenBatch(
        log_prob=exact,
        old=pad([row.behaviour if row.proximal is None else row.proximal for row in rows]),
        advantages=pad([row.advantages for row in rows]),
        mask=mask,
        units=pad(units).where(mask, number_of_units),
    )
    loss = find_loss(settings.name)
    losses = loss.tokens(batch, settings)
    fixed = any(row.proximal is not None for row in rows)
    factor, importance = _correction(batch, behaviour, settings, ratio=loss.ratio, fixed=fixed)
    values = losses.values * factor
    kl = None
    if settings.kl_coef > 0:
        kl = distance(exact, pad(_references(rows)), settings.kl_estimator)
        values = values + settings.kl_coef * kl
    if settings.entropy_coef > 0:
        if entropy is None:
            raise ValueError("loss.entropy_coef needs the entropy of each token, and none was given")
        values = values - settings.entropy_coef * entropy.double()
    values = values.where(mask, 0.0) * pad([row.weights for row in rows])
    _refuse_not_finite(values, rows)
    return values.sum(), _figures(batch, behaviour, losses, (factor, importance), kl, entropy)


def distance(log_prob: "Tensor", reference: "Tensor", estimator: str) -> "Tensor":
    """Return the one-sample estimate of the KL divergence from a reference, for each token."""
    apart = log_prob - reference
    match estimator:
        case "k1":
            return apart
        case "k2":
            return apart.square() / 2
        case _:
            back = (-apart).clamp(-20.0, 20.0)
            return (back.exp() - back - 1).clamp(-10.0, 10.0)


def merge_figures(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Merge the figures of the parts of a step: means weighted by tokens, maxima by maximum.

    Example::

        parts = [{"loss/tokens": 1.0, "clip/low": 0.0}, {"loss/tokens": 3.0, "clip/low": 1.0}]
        assert merge_figures(parts) == {"loss/tokens": 4.0, "clip/low": 0.75}
    """
    parts = [part for part in parts if part.get(COUNT)]
    total = sum(part[COUNT] for part in parts)
    merged = {COUNT: total}
    for name in dict.fromkeys(name for part in parts for name in part if name != COUNT):
        having = [part for part in parts if name in part]
        if name.endswith(LARGEST):
            merged[name] = max(part[name] for part in having)
        else:
            tokens = sum(part[COUNT] for part in having)
            merged[name] = sum(part[name] * part[COUNT] for part in having) / tokens
    if merged.get("correction/square"):
        merged["correction/effective_share"] = merged["correction/mean"] ** 2 / merged["correction/square"]
    if "engine/square" in merged:
        merged["engine/rms"] = merged["engine/square"] ** 0.5
    return merged


def _correction(
    batch: TokenBatch, behaviour: "Tensor", settings: LossSettings, *, ratio: bool, fixed: bool
) -> tuple["Tensor", "Tensor"]:
    """Return the factor of each token's loss, without a gradient, and its importance weight before truncation.

    - Loss with a ratio to weights other than the engine's (`fixed`): the importance weight is theirs over the engine's.
    - Loss with a ratio to the engine's own probabilities: the ratio already is the importance weight, and the loss clips
      it; only masking is left.
    - Loss without a ratio: the importance weight is the current probability over the engine's.
    """
    current = batch.old if ratio and fixed else batch.log_prob.detach()
    apart = current - behaviour
    if settings.correction_level == "sequence":
        apart = sum_by_unit(apart, batch)
    importance = apart.clamp(-LIMIT, LIMIT).exp()
    in_loss = ratio and not fixed
    ones = importance.new_ones(importance.shape)
    match settings.correction:
        case "none":
            return ones, importance
        case "truncate":
            return ones if in_loss else importance.clamp(max=settings.correction_limit), importance
        case "mask":
            kept = ones if in_loss else importance
            return kept.where(importance <= settings.correction_limit, 0.0), importance


def _figures(
    batch: TokenBatch,
    behaviour: "Tensor",
    losses: TokenLosses,
    correction: tuple["Tensor", "Tensor"],
    kl: "Tensor | None",
    entropy: "Tensor | None",
) -> dict[str, float]:
    """Return figures of some rows, each over their trained tokens."""
    import torch

    mask = batch.mask
    count = int(mask.sum())
    if not count:
        return {COUNT: 0.0}
    factor, importance = correction
    with torch.no_grad():
        means = {
            "clip/low": losses.low.double(),
            "clip/high": losses.high.double(),
            "correction/left_out": (factor == 0).double(),
        }
        largest = dict[str, "Tensor"]()
        apart = batch.log_prob.detach() - behaviour
        if bool(apart[mask].isfinite().all()):  # Supervised tokens have no engine.
            means["correction/mean"] = importance
            means["correction/square"] = importance.square()
            largest["correction/weight_max"] = importance
            means["engine/k1"] = -apart
            means["engine/k3"] = apart.exp() - apart - 1
            means["engine/square"] = apart.square()
            largest["engine/apart_max"] = apart.abs()
        if kl is not None:
            means["reference/kl"] = kl.detach()
        if entropy is not None:
            means["policy/entropy"] = entropy.detach().double()
        statistics = [values[mask].mean() for values in means.values()]
        statistics += [values[mask].max() for values in largest.values()]
        numbers = [float(value) for value in torch.stack(statistics)]
    return {COUNT: float(count), **dict(zip([*means, *largest], numbers, strict=True))}


def _padding(rows: Sequence[Row], like: "Tensor") -> "Callable[[Sequence[NDArray[np.generic]]], Tensor]":
    import torch

    width = longest_trained(rows)

    def pad(arrays: Sequence[NDArray[np.generic]]) -> "Tensor":
        kind = np.float64 if np.issubdtype(arrays[0].dtype, np.floating) else arrays[0].dtype
        padded = np.zeros((len(rows), width), kind)
        for line, array in zip(padded, arrays, strict=True):
            line[: len(array)] = array
        return torch.from_numpy(padded).to(like.device)

    return pad


def _numbered(rows: Sequence[Row]) -> tuple[list[NDArray[np.generic]], int]:
    """Return the units of a part of a step, renumbered from 0, and their number."""
    units, numbers = np.unique(np.concatenate([row.units for row in rows]), return_inverse=True)
    return np.split(numbers.astype(np.int64), np.cumsum([len(row.units) for row in rows])[:-1]), len(units)


def _references(rows: Sequence[Row]) -> list[NDArray[np.float32]]:
    references = [row.reference for row in rows if row.reference is not None]
    if len(references) < len(rows):
        raise ValueError("loss.kl_coef needs the reference log-probabilities of all rows, and some have none")
    return references


def _refuse_not_finite(values: "Tensor", rows: Sequence[Row]) -> None:
    unusable = (~values.detach().isfinite()).any(dim=1)
    broken = [row for row, flag in enumerate(unusable.unbind()) if bool(flag)]
    if broken:
        numbers = ", ".join(str(row) for row in broken[:8]) + (", …" if len(broken) > 8 else "")
        raise LossFailure(
            f"the loss is not finite in {len(broken)} of {len(rows)} rows: {numbers}", rows=tuple(broken)
        )


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


def _weights(mask: "Tensor", mode: str, totals: Mapping[str, Any]) -> "Tensor":
    """Return the weight of each token; `known` has the totals of the batch that these rows are part of."""
    lengths = mask.sum(dim=1, keepdim=True).double()
    is_trained = (lengths > 0).double()
    ranks = totals.get("dp_size") or 1
    sequences = totals.get("global_batch_size") or is_trained.sum()
    weights = mask.double() * ranks
    match mode:
        case "token-mean":
            return weights / (totals.get("batch_num_tokens") or lengths.sum())
        case "token-sum":
            return weights
        case "seq-mean-token-sum":
            return weights / sequences
        case "seq-mean-token-sum-norm" if totals.get("loss_scale_factor"):
            return weights / sequences / totals["loss_scale_factor"]
        case "seq-mean-token-sum-norm":
            raise ValueError("seq-mean-token-sum-norm needs loss_scale_factor")
        case "seq-mean-token-mean":
            return weights / sequences / lengths.clamp(min=1)
        case _:
            raise ValueError(f"loss_agg_mode {mode} is not supported without episodes")


def _share(values: "Tensor", mask: "Tensor") -> float:
    return float((values.double() * mask).sum() / mask.sum().clamp(min=1))
