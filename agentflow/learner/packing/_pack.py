"""From rows to what a model is given."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentflow.errors import ConfigurationError
from agentflow.learner._rows import Row
from agentflow.learner.packing._order import Walk, cuts, walk
from agentflow.learner.packing._packed import Packed

__all__ = ["pack"]


def pack(rows: Sequence[Row], budget: int | None = None) -> list[Packed]:
    """Rows as forests in which every token stands once, each of no more tokens than the budget.

    A tree larger than the budget is cut along a depth-first walk so that the fewest tokens are repeated, and several
    small trees share one forest. Every row is in exactly one of them. Rows that differ in nothing but what is trained,
    their weights or their temperature share all their tokens.

    :raises ConfigurationError: a row is larger than the budget, or is no row.
    """
    for number, row in enumerate(rows):
        _check(number, row, budget)
    if not rows:
        return []
    whole = walk(rows)
    places = [0, len(rows)]
    if budget is not None:
        places = cuts(whole.lengths.tolist(), whole.common.tolist(), budget)
    return [_lay(rows, Walk(*(column[begin:end] for column in whole))) for begin, end in pairwise(places)]


def _check(number: int, row: Row, budget: int | None) -> None:
    """Refuse what is no row."""
    if budget is not None and len(row.ids) > budget:
        raise ConfigurationError(
            f"row {number} has {len(row.ids)} tokens, more than the budget of {budget}: raise the budget or leave it out"
        )
    if not len(row.ids) or len(row.ids) != len(row.trained) or row.trained[0] or row.ids.min() < 0:
        raise ConfigurationError(
            f"row {number} is no row: it needs tokens from 0 up, `trained` of as many, and the first of them untrained"
        )
    if not row.temperature > 0:
        raise ConfigurationError(
            f"row {number} was sampled at temperature {row.temperature}: only one above 0 has log-probabilities"
        )


def _lay(rows: Sequence[Row], part: Walk) -> Packed:
    """Lay a part of the walk out, and find each row's labels in it."""
    order: list[int] = part.order.tolist()
    lengths: list[int] = part.lengths.tolist()
    # The first row repeats what it shared with a row of another part.
    common: list[int] = [0, *part.common.tolist()[1:]]
    offsets: list[int] = np.concatenate(([0], np.cumsum(part.lengths - common))).tolist()
    size = offsets[-1]
    ids, parents = np.empty(size, np.int64), np.arange(-1, size - 1, dtype=np.int64)
    positions = np.arange(size, dtype=np.int64)
    path = np.empty(max(lengths), np.int64)
    trained: list[NDArray[np.int64]] = []
    for place, number in enumerate(order):
        row, shared, begin, end = rows[number], common[place], offsets[place], offsets[place + 1]
        if begin < end:
            ids[begin:end] = row.ids[shared:]
            positions[begin:end] -= begin - shared
            parents[begin] = path[shared - 1] if shared else -1
            path[shared : lengths[place]] = np.arange(begin, end)
        trained.append(path[: lengths[place]][row.trained])
    temperatures = np.array([rows[number].temperature for number in order], np.float32)
    return Packed(
        ids=ids,
        positions=positions,
        ends=_ends(common, offsets),
        rows=part.order,
        **_labels(ids, parents, trained, temperatures)._asdict(),
    )


def _ends(common: list[int], offsets: list[int]) -> NDArray[np.int64]:
    """Where the subtree of each token ends: where the first later row begins that doesn't hold it."""
    ends = np.full(offsets[-1], offsets[-1])
    # The path to the newest token, as runs of neighbours: depth and place of the first, how many.
    runs: list[tuple[int, int, int]] = []
    for place, shared in enumerate(common):
        begin, end = offsets[place], offsets[place + 1]
        while runs and runs[-1][0] + runs[-1][2] > shared:
            depth, first, count = runs.pop()
            kept = max(0, shared - depth)
            ends[first + kept : first + count] = begin
            if kept:
                runs.append((depth, first, kept))
        if begin < end:
            runs.append((shared, begin, end - begin))
    return ends


class _Labels(NamedTuple):
    """What is asked of the logits; see `Packed`."""

    predicting: NDArray[np.int64]
    temperatures: NDArray[np.float32]
    lines: NDArray[np.int64]
    labels: NDArray[np.int64]
    gather: NDArray[np.int64]
    mask: NDArray[np.bool_]


def _labels(
    ids: NDArray[np.int64],
    parents: NDArray[np.int64],
    trained: list[NDArray[np.int64]],
    temperatures: NDArray[np.float32],
) -> _Labels:
    """What is asked of the logits, each thing once, and where each row finds it.

    A label is a token of the tree at a temperature: its parent is where it is predicted.
    """
    counts = np.array([len(one) for one in trained], np.int64)
    mask: NDArray[np.bool_] = np.arange(int(counts.max())) < counts[:, None]
    distinct, which = np.unique(temperatures, return_inverse=True)
    asked = np.concatenate(trained) + np.repeat(which, counts) * len(ids)
    label, number = _distinct(asked, len(ids) * len(distinct))
    heat, token = np.divmod(label, len(ids))
    line, lines = _distinct(parents[token] + heat * len(ids), len(ids) * len(distinct))
    # Children of one parent lie far from each other: their labels are brought together.
    together = np.argsort(lines, kind="stable")
    moved = np.empty_like(together)
    moved[together] = np.arange(len(together))
    gather = np.zeros(mask.shape, np.int64)
    gather[mask] = moved[number]
    return _Labels(
        predicting=line % len(ids),
        temperatures=distinct[line // len(ids)],
        lines=lines[together],
        labels=ids[token[together]],
        gather=gather,
        mask=mask,
    )


def _distinct(values: NDArray[np.int64], limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct ones in order, and which of them each is; all below the limit, so that nothing is sorted."""
    there = np.zeros(limit, np.bool_)
    there[values] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[values]
