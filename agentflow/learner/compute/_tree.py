"""Visibility of tokens in a packed batch, and blocks of queries with the keys they need."""

# pyright: reportUnknownMemberType=false
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

QUERIES = 128
"""Maximum number of queries in a block of a chain."""
KEY_COST = 16
"""Cost of fetching a key, in scores of a query and a key."""
BLOCK_COST = 2048
"""Cost of a block, likewise."""


class QueryBlock(NamedTuple):
    """Neighbouring queries, and every key that any of them sees."""

    begin: int
    """First query."""
    end: int
    """Index after the last query."""
    keys: Tensor | slice
    """Ancestors of the first query, in order, and the queries themselves."""
    open: int
    """Number of leading keys that every query sees."""
    hidden: Tensor
    """(queries, remaining keys) True where a key is hidden from a query."""


@dataclass(eq=False)
class TreeMask:
    """Visibility of tokens: `j` sees `i` if and only if `i <= j < ends[i]`, and `i` is in its window."""

    ends: NDArray[np.int64]
    """Index after the subtree of each token."""
    depths: NDArray[np.int64]
    """Depth of each token."""
    device: torch.device
    """Device of the model."""
    seen: list[int] = field(default_factory=list[int])
    """Layers whose attention followed the tree, once per forward."""
    window: int | None = None
    """Number of tokens that a token sees, the last of which is itself; `None`: its whole path."""
    _windows: dict[int, "TreeMask"] = field(default_factory=dict[int, "TreeMask"])

    def within(self, window: int | None) -> "TreeMask":
        """Return the visibility in layers with a sliding window."""
        if window is None or window > self.depths.max():
            return self
        if window not in self._windows:
            # FSDP walks through the arguments of layers: no circle.
            self._windows[window] = replace(self, window=window, _windows={})
        return self._windows[window]

    @cached_property
    def blocks(self) -> Sequence[QueryBlock]:
        """All queries, in blocks that minimise hidden scores and repeated fetches."""
        return [self._block(begin, end) for begin, end in _cut(self.ends, self.depths)]

    @cached_property
    def visible(self) -> Tensor:
        """(tokens, tokens) Dense visibility mask."""
        place = torch.arange(len(self.ends), device=self.device)
        return self._sees(place[:, None], place)

    @cached_property
    def flex_mask(self) -> Any:  # noqa: ANN401 - FlexAttention's
        """Blocks of queries and keys that FlexAttention computes."""
        from torch.nn.attention.flex_attention import create_block_mask

        size, sees = len(self.ends), self._sees

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return sees(query, key)

        # Compiled, so that the mask of all pairs is never in memory.
        compiled = self.device.type == "cuda"
        return create_block_mask(visible, None, None, size, size, device=str(self.device), _compile=compiled)

    @cached_property
    def _sees(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return whether a query sees a key, by their indices."""
        ends, depths = (torch.from_numpy(one).to(self.device) for one in (self.ends, self.depths))
        window = self.window
        if window is None:
            return lambda query, key: (key <= query) & (query < ends[key])
        return lambda query, key: (
            (key <= query) & (query < ends[key]) & (depths[query] - depths[key] < window)
        )

    def _block(self, begin: int, end: int) -> QueryBlock:
        """Return the block of these queries."""
        before = np.flatnonzero(self.ends[:begin] > begin)
        opened = int((self.ends[before] >= end).sum())
        if self.window is not None:
            before, opened = before[self.depths[begin:end].min() - self.depths[before] < self.window], 0
        keys = np.concatenate((before, np.arange(begin, end)))
        queries, others = np.arange(begin, end)[:, None], keys[opened:]
        unseen = (others > queries) | (queries >= self.ends[others])
        if self.window is not None:
            unseen |= self.depths[queries] - self.depths[others] >= self.window
        hidden = torch.from_numpy(unseen).to(self.device)
        # Neighbours need no fetching.
        if len(keys) == end - keys[0]:
            return QueryBlock(begin, end, slice(int(keys[0]), end), opened, hidden)
        return QueryBlock(begin, end, torch.from_numpy(keys).to(self.device), opened, hidden)


def _cut(ends: NDArray[np.int64], depths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the bounds of blocks: branches are joined while that costs less than another block."""
    size = len(ends)
    # True where the parent of a token is the token before it.
    continues = np.concatenate(([False], ends[:-1] > np.arange(1, size)))
    starts = [*np.flatnonzero(~continues | (np.arange(size) % QUERIES == 0)).tolist(), size]
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
