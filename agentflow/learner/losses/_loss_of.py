# pyright: reportUnknownMemberType=false
"""The loss of a step, or of any part of it: a sum over tokens."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from agentflow.errors import LossFailure
from agentflow.learner._rows import Row, longest_trained
from agentflow.learner.losses._correction import correct
from agentflow.learner.losses._figures import COUNT, figures_of
from agentflow.learner.losses._registry import Drawn, find_loss
from agentflow.learner.losses._settings import LossSettings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["distance", "loss_of"]


def loss_of(
    log_prob: "Tensor",
    rows: Sequence[Row],
    settings: LossSettings,
    entropy: "Tensor | None" = None,
) -> tuple["Tensor", dict[str, float]]:
    """The part of a step's loss that these rows make, and figures about it.

    The parts of a step are added, not averaged: they give the same number however a step is cut, as long as a call
    stays in one part. Everything is computed in float64; gradients come back in the precision of `log_prob`.

    :param log_prob: the log-probability of each trained token of each row, left-aligned: (rows, longest).
    :param rows: what the tokens are, and how they count.
    :param entropy: of the distribution at each of these tokens, if the settings want it.
    :raises LossFailure: if the loss is no finite number; it names the rows.
    """
    if tuple(log_prob.shape) != (len(rows), longest_trained(rows)):
        raise ValueError(f"log-probabilities of {tuple(log_prob.shape)} for {len(rows)} rows")
    if not rows:
        return log_prob.double().sum(), {COUNT: 0.0}
    pad = _padding(rows, log_prob)
    mask = pad([np.ones(len(row.units), np.bool_) for row in rows])
    exact = log_prob.double().where(mask, 0.0)
    behaviour = pad([row.behaviour for row in rows])
    old = pad([row.behaviour if row.proximal is None else row.proximal for row in rows])
    drawn = Drawn(
        log_prob=exact,
        old=old,
        advantages=pad([row.advantages for row in rows]),
        mask=mask,
        units=pad(_numbered([row.units for row in rows])).where(mask, _number_of_units(rows)),
    )
    loss = find_loss(settings.name)
    costs = loss.tokens(drawn, settings)
    fixed = any(row.proximal is not None for row in rows)
    correction = correct(drawn, behaviour, settings, ratio=loss.ratio, fixed=fixed)
    values = costs.values * correction.factor
    apart = None
    if settings.kl > 0:
        apart = distance(exact, pad(_references(rows)), settings.kl_estimator)
        values = values + settings.kl * apart
    if settings.entropy > 0:
        if entropy is None:
            raise ValueError("the settings want entropy, and none is given")
        values = values - settings.entropy * entropy.double()
    values = values.where(mask, 0.0) * pad([row.weights for row in rows])
    _refuse_not_finite(values, rows)
    return values.sum(), figures_of(drawn, behaviour, costs, correction, apart, entropy)


def distance(log_prob: "Tensor", reference: "Tensor", estimator: str) -> "Tensor":
    """How far the policy is from a reference, by one sample of each token."""
    apart = log_prob - reference
    match estimator:
        case "k1":
            return apart
        case "k2":
            return apart.square() / 2
        case _:
            back = (-apart).clamp(-20.0, 20.0)
            return (back.exp() - back - 1).clamp(-10.0, 10.0)


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


def _numbered(units: Sequence[NDArray[np.int32]]) -> list[NDArray[np.generic]]:
    """Units numbered from 0: those of a part of a step may begin anywhere."""
    _, numbers = np.unique(np.concatenate(units), return_inverse=True)
    return np.split(numbers.astype(np.int64), np.cumsum([len(one) for one in units])[:-1])


def _number_of_units(rows: Sequence[Row]) -> int:
    return len(np.unique(np.concatenate([row.units for row in rows])))


def _references(rows: Sequence[Row]) -> list[NDArray[np.float32]]:
    found = [row.reference for row in rows if row.reference is not None]
    if len(found) < len(rows):
        raise ValueError(
            "the loss holds to a reference policy (kl), and not all rows have its log-probabilities"
        )
    return found


def _refuse_not_finite(values: "Tensor", rows: Sequence[Row]) -> None:
    per_row = cast("list[bool]", (~values.detach().isfinite()).any(dim=1).tolist())
    broken = [row for row, unusable in enumerate(per_row) if unusable]
    if broken:
        places = ", ".join(str(row) for row in broken[:8]) + (", …" if len(broken) > 8 else "")
        raise LossFailure(
            f"the loss is no finite number in {len(broken)} of {len(rows)} rows: {places}", rows=tuple(broken)
        )
