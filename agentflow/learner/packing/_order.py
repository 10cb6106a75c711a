"""Rows in the order of a walk through their tree, and where the walk is cut."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentflow.learner._rows import Row

__all__ = ["Walk", "cuts", "walk"]


class Walk(NamedTuple):
    """Rows sorted by their tokens: those that begin alike are neighbours, a row comes before what continues it."""

    order: NDArray[np.int64]
    """The rows, sorted."""
    lengths: NDArray[np.int64]
    """Tokens of each."""
    common: NDArray[np.int64]
    """How many of them the row before it begins with; 0 for the first."""


def walk(rows: Sequence[Row]) -> Walk:
    """The walk through the tree of these rows."""
    # Big-endian, so that bytes sort as the numbers do.
    keys = [row.ids.astype(">i4").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    common = [0] * len(rows)
    for place in range(1, len(rows)):
        common[place] = _agreement(rows[order[place - 1]].ids, rows[order[place]].ids)
    lengths = [len(rows[number].ids) for number in order]
    return Walk(np.array(order, np.int64), np.array(lengths, np.int64), np.array(common, np.int64))


def _agreement(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Tokens that both begin with."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    first = int(differs.argmax())
    return first if differs[first] else shorter


def cuts(lengths: Sequence[int], common: Sequence[int], budget: int) -> list[int]:
    """Where to cut a walk so that no part has more tokens than the budget and as few as possible stand twice.

    A part repeats what its first row shares with the row before it. Among equals, the fewest parts. The costs of
    parts that end at the same row fall from first row to first row, so those that fit are a window that only moves on.
    """
    count = len(lengths)
    # Tokens of rows 0..n that are new in the walk.
    new = [0] * (count + 1)
    for place in range(count):
        new[place + 1] = new[place] + lengths[place] - common[place]
    # For the first n rows: tokens repeated, parts, and where the last part begins.
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    window: deque[tuple[tuple[int, int], int]] = deque()
    for end in range(1, count + 1):
        first = end - 1
        cost = (best[first][0] + common[first], best[first][1] + 1)
        while window and window[-1][0] >= cost:
            window.pop()
        window.append((cost, first))
        while new[end] - new[window[0][1]] + common[window[0][1]] > budget:
            window.popleft()
        (repeated, parts), begin = window[0]
        best.append((repeated, parts, begin))
    found = [count]
    while found[-1]:
        found.append(best[found[-1]][2])
    return found[::-1]
