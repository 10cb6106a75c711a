"""Losses by name. Built-in ones and anyone's own stand in the same table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from agentflow.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

    from agentflow.learner.losses._settings import LossSettings

__all__ = ["Drawn", "Loss", "TokenLoss", "TokenLosses", "find_loss", "loss_names", "register_loss"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Drawn:
    """The trained tokens of some rows, padded: every tensor is (rows, longest)."""

    log_prob: "Tensor"
    """Under the weights that are trained; gradients flow through it."""
    old: "Tensor"
    """Under the weights that the step began with."""
    advantages: "Tensor"
    """How much better than expected each was."""
    mask: "Tensor"
    """Which entries are tokens and no padding."""
    units: "Tensor"
    """The call of each, numbered from 0; padding belongs to one more."""


class TokenLosses(NamedTuple):
    """What each token costs, before it is weighed and summed."""

    values: "Tensor"
    """The loss of each token."""
    low: "Tensor"
    """Whose ratio was cut from below."""
    high: "Tensor"
    """Whose ratio was cut from above."""


TokenLoss: TypeAlias = Callable[[Drawn, "LossSettings"], TokenLosses]
"""A loss: what each token costs. It sees no weights: how tokens count is not its business."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and what is known of it."""

    tokens: TokenLoss
    """What each token costs."""
    ratio: bool
    """Whether the ratio of new and old probabilities stands in it; else the correction brings it."""
    recipe: Mapping[str, Any]
    """Settings that go with it, where nothing else is said."""


_LOSSES: Final[dict[str, Loss]] = {}


def register_loss(name: str, *, ratio: bool = True, **recipe: Any) -> Callable[[TokenLoss], TokenLoss]:  # noqa: ANN401 - settings of any kind
    """Make a function a loss that settings can name.

    :param ratio: whether the ratio of new and old probabilities stands in it; else the correction brings it.
    :param recipe: its own defaults of `LossSettings`.
    """

    def register(tokens: TokenLoss) -> TokenLoss:
        _LOSSES[name] = Loss(tokens, ratio, recipe)
        return tokens

    return register


def find_loss(name: str) -> Loss:
    """The loss of that name.

    :raises ConfigurationError: if there is none.
    """
    try:
        return _LOSSES[name]
    except KeyError:
        raise ConfigurationError(
            f"loss.name: there is no loss {name!r}; known are {', '.join(loss_names())}"
        ) from None


def loss_names() -> list[str]:
    """Every loss there is."""
    return sorted(_LOSSES)
