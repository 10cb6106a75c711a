"""Settings of the loss and everything that enters it."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal, Self, TypeAlias, TypeGuard

from pydantic import Field, model_validator

from agentflow.errors import ConfigurationError
from agentflow.learner.losses._registry import find_loss
from agentflow.settings import Section

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
    def _with_recipe(cls, given: object) -> object:
        if not _is_mapping(given):
            return given
        name = given.get("name", "flow_grpo")
        if not isinstance(name, str):
            return given
        try:
            recipe = {cls.renamed.get(key, key): value for key, value in find_loss(name).recipe.items()}
        except ConfigurationError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        correction = given.get("correction", recipe.get("correction", "truncate"))
        defaults = {**CORRECTIONS.get(correction, {}), **recipe}
        present = {cls.renamed.get(key, key) for key in given}
        return {**{key: value for key, value in defaults.items() if key not in present}, **given}

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.loss_agg_mode == "seq-mean-token-sum-norm" and self.length_scale is None:
            raise ValueError(
                f"{self.name} needs length_scale: the constant divisor of sums, the maximum number of tokens of a call"
            )
        if self.overlong_limit is not None and self.overlong_buffer > self.overlong_limit:
            raise ValueError("overlong_buffer is larger than overlong_limit; make it smaller")
        return self


def _is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)
