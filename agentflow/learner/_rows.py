"""Rows: the tokens that enter a step, one row for each call of a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Row", "longest_trained", "merge_rows"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Row:
    """The tokens of one call (or of several that continue each other), and how each of them enters the loss.

    - `ids[:n]` is exactly what the engine had read when it sampled `ids[n]`, for each `n` with `trained[n]`.
    - `ids[0]` is never trained: nothing predicts it.
    - All other arrays but `ids` and `trained` hold one entry for each trained token, in order (`trained.sum()` of them).
    - The loss of a step is the sum over all rows and trained tokens of `weights * token loss`. Weights know the whole
      step: so a step can be split over rows, micro-batches and machines in any way, and is summed.
    """

    ids: NDArray[np.int32]
    """Every token, in order."""
    trained: NDArray[np.bool_]
    """Which of them were sampled here and enter the loss: no word of a user, a tool or an environment."""
    behaviour: NDArray[np.float32]
    """Log-probability of each trained token under the distribution it was drawn from."""
    advantages: NDArray[np.float32]
    """How much better than expected what it belongs to was."""
    weights: NDArray[np.float64]
    """Its share in the loss of the whole step."""
    units: NDArray[np.int32]
    """The call it belongs to, numbered over the whole step: ratios of whole sequences are taken over it."""
    temperature: float = 1.0
    """What it was sampled at."""
    reference: NDArray[np.float32] | None = None
    """Log-probability under the reference policy, where the loss holds to one."""
    proximal: NDArray[np.float32] | None = None
    """Log-probability under the weights at the beginning of the step; `None`: `behaviour` stands for it."""


def longest_trained(rows: Sequence[Row]) -> int:
    """The width of tensors that hold the trained tokens of each row, left-aligned and padded."""
    return max((int(row.trained.sum()) for row in rows), default=0)


def merge_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows that continue each other, as one: what follows a call stands behind it in the same row.

    For trainers that know rows only. Each trained token stands in exactly one row, with the weight that it had; the loss
    stays the same. The merged rows stand in the order of the first of each.
    """
    order = sorted(range(len(rows)), key=lambda number: (_key(rows[number].ids), number))
    done: list[tuple[int, Row]] = []
    open_rows: list[tuple[int, Row]] = []
    for number in order:
        row, first = rows[number], number
        while open_rows and not _begins(open_rows[-1][1], row):
            done.append(open_rows.pop())
        if open_rows and _mergeable(open_rows[-1][1], row):
            earlier, before = open_rows.pop()
            row, first = _merge(before, row), min(earlier, number)
        open_rows.append((first, row))
    done += open_rows
    return [row for _, row in sorted(done, key=lambda entry: entry[0])]


def _key(ids: NDArray[np.int32]) -> bytes:
    """Sorts as the tokens do, so that what goes on from something stands behind it."""
    return ids.astype(">u4").tobytes()


def _begins(short: Row, long: Row) -> bool:
    return len(short.ids) <= len(long.ids) and bool((long.ids[: len(short.ids)] == short.ids).all())


def _mergeable(short: Row, long: Row) -> bool:
    return (
        short.temperature == long.temperature
        and (short.reference is None) == (long.reference is None)
        and (short.proximal is None) == (long.proximal is None)
        and not (short.trained & long.trained[: len(short.ids)]).any()
    )


def _merge(short: Row, long: Row) -> Row:
    trained = long.trained.copy()
    trained[: len(short.ids)] |= short.trained
    places = np.concatenate([np.flatnonzero(short.trained), np.flatnonzero(long.trained)])
    order = np.argsort(places, kind="stable")

    def joined(part: Callable[[Row], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([part(short), part(long)])[order]

    def optional(part: Callable[[Row], NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
        one, other = part(short), part(long)
        return None if one is None or other is None else np.concatenate([one, other])[order]

    return Row(
        ids=long.ids,
        trained=trained,
        behaviour=joined(lambda row: row.behaviour),
        advantages=joined(lambda row: row.advantages),
        weights=joined(lambda row: row.weights),
        units=joined(lambda row: row.units),
        temperature=long.temperature,
        reference=optional(lambda row: row.reference),
        proximal=optional(lambda row: row.proximal),
    )
