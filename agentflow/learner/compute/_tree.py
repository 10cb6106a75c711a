"""What attention knows of a packed batch: which token sees which, and blocks of queries with the keys they need."""

# pyright: reportUnknownMemberType=false
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Block", "Tree"]

T = TypeVar("T")

QUERIES = 128
"""A chain is cut into blocks of so many queries."""
KEY_COST = 16
"""What it costs to fetch a key, in scores of a query and a key."""
BLOCK_COST = 2048
"""What a block costs, likewise."""


class Block(NamedTuple):
    """Neighbouring queries, and every key that any of them sees."""

    begin: int
    """The first query."""
    end: int
    """The one after the last."""
    keys: Tensor | slice
    """The ancestors of the first query, in order, and the queries themselves."""
    open: int
    """So many keys, the first ones, are seen by every query."""
    hidden: Tensor
    """(queries, keys after those) Which key is hidden from which query."""


@dataclass(eq=False)
class Tree:
    """Which token sees which: `j` sees `i` if and only if `i <= j < ends[i]`."""

    ends: NDArray[np.int64]
    """Where the subtree of each token ends."""
    depths: NDArray[np.int64]
    """How many tokens each of them sees before itself."""
    device: torch.device
    """Where the computing is done."""
    seen: list[int] = field(default_factory=list[int])
    """The layers whose attention has followed it, once for each forward."""
    _made: dict[str, object] = field(default_factory=dict[str, object])

    def remember(self, name: str, make: Callable[["Tree"], T]) -> T:
        """What is made of it once, for all layers."""
        if name not in self._made:
            self._made[name] = make(self)
        return cast("T", self._made[name])

    @cached_property
    def blocks(self) -> Sequence[Block]:
        """All queries, cut so that little is computed that nobody sees and little is fetched twice."""
        return [self._block(begin, end) for begin, end in _cut(self.ends, self.depths)]

    @cached_property
    def visible(self) -> Tensor:
        """(tokens, tokens) Which query sees which key: the plain form."""
        ends = torch.from_numpy(self.ends).to(self.device)
        place = torch.arange(len(self.ends), device=self.device)
        return (place <= place[:, None]) & (place[:, None] < ends)

    def _block(self, begin: int, end: int) -> Block:
        """The block of these queries."""
        before = np.flatnonzero(self.ends[:begin] > begin)
        opened = int((self.ends[before] >= end).sum())
        keys = np.concatenate((before, np.arange(begin, end)))
        queries, others = np.arange(begin, end)[:, None], keys[opened:]
        hidden = torch.from_numpy((others > queries) | (queries >= self.ends[others])).to(self.device)
        # Neighbours need no fetching.
        if len(keys) == end - keys[0]:
            return Block(begin, end, slice(int(keys[0]), end), opened, hidden)
        return Block(begin, end, torch.from_numpy(keys).to(self.device), opened, hidden)


def _cut(ends: NDArray[np.int64], depths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Where blocks begin and end: what forks is brought together while that costs less than another block."""
    size = len(ends)
    # A token goes on where its parent is the token before it.
    goes_on = np.concatenate(([False], ends[:-1] > np.arange(1, size)))
    starts = [*np.flatnonzero(~goes_on | (np.arange(size) % QUERIES == 0)).tolist(), size]
    found: list[tuple[int, int]] = []
    begin, above = 0, 0
    for start, stop in pairwise(starts):
        if start == begin:
            continue
        depth = int(depths[start])
        have, more = start - begin, stop - start
        apart = more * (depth + more) + KEY_COST * (depth + more) + BLOCK_COST
        if more * (above + 2 * have + more) > apart:
            found.append((begin, start))
            begin, above = start, depth
    found.append((begin, size))
    return found
