"""What a step lowers: the loss by name, and everything that goes into it."""

from collections.abc import Mapping
from typing import Any, Final, Literal, Self, TypeAlias, cast

from pydantic import Field, model_validator

from agentflow.errors import ConfigurationError
from agentflow.learner.losses._registry import find_loss
from agentflow.settings import Section

__all__ = ["Aggregation", "LossSettings"]

Aggregation: TypeAlias = Literal[
    "turn-mean",
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]
"""How the losses of tokens become one number."""

CORRECTIONS: Final[dict[object, dict[str, object]]] = {
    "truncate": {"correction_level": "token", "correction_limit": 2.0},
    "mask": {"correction_level": "sequence", "correction_limit": 3.0},
}
"""What goes with a correction, where nothing else is said."""


class LossSettings(Section):
    """A loss and its surroundings. Each loss brings its own defaults; what is said here goes before them.

    The defaults written below are those of Flow-GRPO, as published.
    """

    name: str = "flow_grpo"
    """The loss: flow_grpo, grpo, dapo, dr_grpo, gspo, cispo, reinforce, cross_entropy, or a registered one."""

    baseline: Literal["group", "leave_one_out", "none"] = "group"
    """What rewards are compared with: the mean of the task's group, the mean of the others in it, or nothing."""
    divide_by_std: bool = True
    """Whether advantages are divided by the standard deviation of the group's rewards."""
    filter_groups: bool = False
    """Whether groups whose rewards are all equal are left out, and no longer count in any mean."""
    train_cut: bool = True
    """Whether calls that were cut at the most tokens they could have are trained."""
    overlong_limit: int | None = Field(default=None, ge=1)
    """The most tokens of a call; near it the reward of an episode is lowered; `None`: never."""
    overlong_buffer: int = Field(default=0, ge=0)
    """How many tokens before that limit the lowering begins."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """By how much the reward is lowered at the limit."""

    clip_low: float = Field(default=0.2, ge=0)
    """How far below 1 the ratio of new and old probabilities counts."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 it counts."""
    clip_negative: float | None = Field(default=None, gt=1)
    """The largest ratio that counts where the advantage is negative; `None`: any."""
    kl: float = Field(default=0.001, ge=0)
    """How much the distance from the reference policy costs; 0: no reference is needed."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How that distance is measured by one sample: the log-ratio, half its square, or the low-variance form."""
    entropy: float = Field(default=0.0, ge=0)
    """How much the entropy of the policy is worth."""

    aggregation: Aggregation = "turn-mean"
    """How the losses of tokens become one number; `turn-mean`: over tokens of a call, calls of an episode, episodes."""
    sequence: Literal["call", "episode"] = "call"
    """What a `seq` is in the names of aggregations."""
    length_scale: int | None = Field(default=None, ge=1)
    """The constant that `seq-mean-token-sum-norm` divides by, as the most tokens of a sequence."""

    correction: Literal["none", "truncate", "mask"] = "truncate"
    """What is done about the difference between the engine that sampled and the weights of the trainer."""
    correction_level: Literal["token", "sequence"] = "token"
    """Whether it is taken for each token or for a whole call."""
    correction_limit: float = Field(default=2.0, gt=0)
    """The largest importance weight that counts; beyond it weights are cut, or what has them is left out."""

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        said = cast("Mapping[str, Any]", given)
        name = said.get("name", "flow_grpo")
        if not isinstance(name, str):
            return said
        try:
            recipe = find_loss(name).recipe
        except ConfigurationError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        correction = said.get("correction", recipe.get("correction", "truncate"))
        return {**CORRECTIONS.get(correction, {}), **recipe, **said}

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.aggregation == "seq-mean-token-sum-norm" and self.length_scale is None:
            raise ValueError(
                f"{self.name} needs length_scale: the constant that sums are divided by, as the most tokens of a call"
            )
        if self.overlong_limit is not None and self.overlong_buffer > self.overlong_limit:
            raise ValueError("overlong_buffer is larger than overlong_limit; make it smaller")
        return self
