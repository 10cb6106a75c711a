"""Losses by name: built-in and registered ones in one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from agentflow.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

    from agentflow.learner.losses._settings import LossSettings


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
