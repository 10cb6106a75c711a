"""Rows, the tokens that enter a step, and their packing: rows that share a prefix are packed as a tree, and each token is computed once.

See docs/packing.md.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentflow.errors import ConfigurationError

__all__ = [
    "Packed",
    "Row",
    "pack",
]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Row:
    """The tokens of one call (or of several that continue each other), and the contribution of each to the loss.

    - `ids[:n]` is exactly what the engine had read when it sampled `ids[n]`, for each `n` with `trained[n]`.
    - `ids[0]` is never trained: nothing predicts it.
    - All other arrays but `ids` and `trained` have one entry for each trained token, in order (`trained.sum()` of them).
    - The loss of a step is the sum over all rows and trained tokens of `weights * token loss`. Weights refer to the whole
      step, so a step can be split over rows, micro-batches and machines in any way, and summed.
    """

    ids: NDArray[np.int32]
    """Every token, in order."""
    trained: NDArray[np.bool_]
    """True at tokens that the policy sampled and that enter the loss."""
    behaviour: NDArray[np.float32]
    """Log-probability of each trained token under the distribution it was sampled from."""
    advantages: NDArray[np.float32]
    """Advantage of each trained token."""
    weights: NDArray[np.float64]
    """Weight in the loss of the whole step."""
    units: NDArray[np.int32]
    """Number of the call in the step; sequence-level ratios are computed per call."""
    temperature: float = 1.0
    """Sampling temperature."""
    reference: NDArray[np.float32] | None = None
    """Log-probability under the reference policy, if the loss has a KL term."""
    proximal: NDArray[np.float32] | None = None
    """Log-probability under the weights at the beginning of the step; `None`: `behaviour` is used."""


PER_TRAINED_TOKEN = ("behaviour", "advantages", "weights", "units", "reference", "proximal")
"""Arrays of a row with one entry for each trained token."""


def scoring_row(ids: Sequence[int]) -> Row:
    """Return a row for the log-probabilities of all tokens but the first; it adds nothing to a loss."""
    nothing = np.zeros(len(ids) - 1)
    return Row(
        ids=np.array(ids, np.int32),
        trained=np.arange(len(ids)) > 0,
        behaviour=nothing.astype(np.float32),
        advantages=nothing.astype(np.float32),
        weights=nothing,
        units=nothing.astype(np.int32),
    )


def longest_trained(rows: Sequence[Row]) -> int:
    """Return the width of tensors that hold the trained tokens of each row, left-aligned and padded."""
    return max((int(row.trained.sum()) for row in rows), default=0)


def sort_rows(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    """Sort rows by their tokens: rows with a common prefix are neighbours, a prefix comes before its continuations.

    :return: the indices of the rows in order, and the number of tokens each shares with the row before it.
    """
    # Big-endian bytes sort as their numbers do.
    keys = [row.ids.astype(">u4").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    shared = [_shared(rows[before].ids, rows[number].ids) for before, number in pairwise(order)]
    return order, [0, *shared] if order else []


def _shared(before: NDArray[np.int32], ids: NDArray[np.int32]) -> int:
    """Return the length of the common prefix."""
    size = min(len(before), len(ids))
    differs = before[:size] != ids[:size]
    return int(differs.argmax()) if differs.any() else size


def merge_rows(rows: Sequence[Row]) -> list[Row]:
    """Merge rows that continue each other into one, for trainers without prefix sharing. The loss stays the same.

    Each trained token is in exactly one row, with its weight. Merged rows are in the order of their first members.
    See docs/losses.md.
    """
    done: list[tuple[int, Row]] = []
    open_rows: list[tuple[int, Row]] = []
    for number, shared in zip(*sort_rows(rows), strict=True):
        row, first = rows[number], number
        while open_rows and len(open_rows[-1][1].ids) > shared:
            done.append(open_rows.pop())
        if open_rows and _mergeable(open_rows[-1][1], row):
            earlier, before = open_rows.pop()
            row, first = _merge(before, row), min(earlier, number)
        open_rows.append((first, row))
    done += open_rows
    return [row for _, row in sorted(done, key=lambda entry: entry[0])]


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
    positions = np.concatenate([np.flatnonzero(short.trained), np.flatnonzero(long.trained)])
    order = np.argsort(positions, kind="stable")

    def joined(name: str) -> NDArray[Any] | None:
        before, after = getattr(short, name), getattr(long, name)
        return None if before is None else np.concatenate([before, after])[order]

    arrays: dict[str, Any] = {name: joined(name) for name in PER_TRAINED_TOKEN}
    return replace(long, trained=trained, **arrays)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Packed:
    """The tokens of several rows as a forest in depth-first order, and the index of each row's log-probabilities.

    With `n` tokens, `p` lines of logits, `l` labels and `r` rows:

    - Two rows share a token if and only if they agree up to and including it. No token is repeated.
    - Token `i` equals or precedes token `j` in some row if and only if `i <= j < ends[i]`.
    - `positions[i]` is the number of tokens before it in every row that contains it, as rotary embeddings need it.
    - Line `k` of the logits is the prediction after token `predicting[k]`, at `temperatures[k]`. The pairs are distinct,
      and several labels may be scored against one line: a fork costs no extra token.
    - `lines` ascends, so the labels of consecutive lines are consecutive.
    - Trained token `t` of row `rows[k]` has the log-probability of label `gather[k, t]`; where `mask` is false the row
      has ended and `gather` is 0.
    - With `by_row`, a model reads each path from a root to a leaf as a row of a padded batch.
    """

    ids: NDArray[np.int64]
    """(n) Token ids."""
    positions: NDArray[np.int64]
    """(n) Depth of each token."""
    ends: NDArray[np.int64]
    """(n) Index after the subtree of each token."""
    predicting: NDArray[np.int64]
    """(p) Token after which each line of logits is read."""
    temperatures: NDArray[np.float32]
    """(p) Divisor of the logits of each line."""
    lines: NDArray[np.int64]
    """(l) Line that each label is scored against."""
    labels: NDArray[np.int64]
    """(l) Token whose log-probability is computed."""
    gather: NDArray[np.int64]
    """(r, longest) Label of each trained token of each row."""
    mask: NDArray[np.bool_]
    """(r, longest) True at trained tokens, false at padding."""
    rows: NDArray[np.int64]
    """(r) Indices of the rows in the sequence given to `pack`."""
    by_row: bool = False
    """True for models that can't follow trees."""

    def __len__(self) -> int:
        """Return the number of tokens to compute, padding included."""
        if not self.by_row:
            return len(self.ids)
        return len(self.leaves) * (int(self.positions.max()) + 1)

    @property
    def leaves(self) -> NDArray[np.int64]:
        """Tokens that no other follows."""
        return np.flatnonzero(self.ends == np.arange(1, len(self.ids) + 1))

    def paths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the paths from the roots to the leaves, (leaves, longest), padded on the right, and each token's index in them."""
        leaves, longest = self.leaves, int(self.positions.max()) + 1
        ids, begin = np.zeros((len(leaves), longest), np.int64), 0
        for line, leaf in enumerate(leaves.tolist()):
            shared = int(self.positions[begin])
            ids[line, :shared] = ids[line - 1, :shared]
            ids[line, shared : self.positions[leaf] + 1] = self.ids[begin : leaf + 1]
            begin = leaf + 1
        # A shared token is read from its first path.
        return ids, np.searchsorted(leaves, np.arange(len(self.ids))) * longest + self.positions


def pack(rows: Sequence[Row], budget: int | None = None, *, by_row: bool = False) -> list[Packed]:
    """Pack rows into forests of at most `budget` tokens, in which every shared prefix is stored once.

    A tree larger than the budget is cut along its depth-first order so that as few tokens as possible are repeated; small
    trees share a forest. Every row is in exactly one forest. Rows that differ only in their labels, weights or
    temperature share all their tokens. See docs/packing.md.

    :param by_row: for models that can't follow trees: rows that continue each other are computed once, and rows of similar
        length are together, in batches of at most `budget` tokens with their padding.
    :raises ConfigurationError: if a row is longer than the budget, or invalid.
    """
    for number, row in enumerate(rows):
        _check(number, row, budget)
    if not rows:
        return []
    if by_row:
        return _pack_by_row(rows, budget)
    order, common = sort_rows(rows)
    lengths = [len(rows[number].ids) for number in order]
    bounds = [0, len(rows)] if budget is None else cuts(lengths, common, budget)
    return [_lay_out(rows, order[begin:end], common[begin:end]) for begin, end in pairwise(bounds)]


def _pack_by_row(rows: Sequence[Row], budget: int | None) -> list[Packed]:
    """Pack rows into batches of similar length; rows that continue each other stay together."""
    order, common = sort_rows(rows)
    chains: list[list[int]] = []
    for index, number in enumerate(order):
        if index and common[index] == len(rows[order[index - 1]].ids):
            chains[-1].append(number)
        else:
            chains.append([number])
    # A chain is as long as its last row.
    chains.sort(key=lambda chain: len(rows[chain[-1]].ids))
    parts: list[list[list[int]]] = [[]]
    for chain in chains:
        if parts[-1] and budget is not None and (len(parts[-1]) + 1) * len(rows[chain[-1]].ids) > budget:
            parts.append([])
        parts[-1].append(chain)
    batches: list[Packed] = []
    for part in parts:
        numbers = sorted(number for chain in part for number in chain)
        order, common = sort_rows([rows[number] for number in numbers])
        packed = _lay_out(rows, [numbers[index] for index in order], common)
        batches.append(replace(packed, by_row=True))
    return batches


def cuts(lengths: Sequence[int], common: Sequence[int], budget: int) -> list[int]:
    """Return where to cut sorted rows so that no part exceeds the budget and the fewest tokens are repeated.

    A part repeats what its first row shares with the row before it. Ties go to the fewest parts. The costs of parts
    that end at the same row fall from first row to first row, so those that fit are a window that only moves forward.

    :param lengths: tokens of each row.
    :param common: tokens each row shares with the row before it.
    """
    count = len(lengths)
    # Tokens in rows 0..n that no earlier row has.
    new = [0] * (count + 1)
    for index in range(count):
        new[index + 1] = new[index] + lengths[index] - common[index]
    # For the first n rows: repeated tokens, parts, and the first row of the last part.
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
    bounds = [count]
    while bounds[-1]:
        bounds.append(best[bounds[-1]][2])
    return bounds[::-1]


def _check(number: int, row: Row, budget: int | None) -> None:
    """Refuse an invalid row."""
    if budget is not None and len(row.ids) > budget:
        raise ConfigurationError(
            f"row {number} has {len(row.ids)} tokens, more than the budget of {budget}: raise the budget or leave it out"
        )
    if not len(row.ids) or len(row.ids) != len(row.trained) or row.trained[0] or row.ids.min() < 0:
        raise ConfigurationError(
            f"row {number} is invalid: it needs token ids from 0 up, as many `trained` flags, and an untrained first token"
        )
    if not row.temperature > 0:
        raise ConfigurationError(
            f"row {number} was sampled at temperature {row.temperature}: log-probabilities need one above 0"
        )


def _lay_out(rows: Sequence[Row], order: list[int], common: list[int]) -> Packed:
    """Lay out consecutive sorted rows as one forest."""
    lengths = [len(rows[number].ids) for number in order]
    # The first row repeats what it shares with a row of another part.
    common = [0, *common[1:]]
    offsets: list[int] = np.concatenate(([0], np.cumsum(np.array(lengths) - common))).tolist()
    size = offsets[-1]
    ids, parents = np.empty(size, np.int64), np.arange(-1, size - 1, dtype=np.int64)
    positions = np.arange(size, dtype=np.int64)
    path = np.empty(max(lengths), np.int64)
    trained: list[NDArray[np.int64]] = []
    for index, number in enumerate(order):
        row, shared, begin, end = rows[number], common[index], offsets[index], offsets[index + 1]
        if begin < end:
            ids[begin:end] = row.ids[shared:]
            positions[begin:end] -= begin - shared
            parents[begin] = path[shared - 1] if shared else -1
            path[shared : lengths[index]] = np.arange(begin, end)
        trained.append(path[: lengths[index]][row.trained])
    # A label is a token of the tree at a temperature; its parent predicts it. Each is scored once.
    counts = np.array([len(indices) for indices in trained], np.int64)
    mask: NDArray[np.bool_] = np.arange(int(counts.max())) < counts[:, None]
    distinct, which = np.unique(
        np.array([rows[number].temperature for number in order], np.float32), return_inverse=True
    )
    wanted = np.concatenate(trained) + np.repeat(which, counts) * size
    label, number_of = _distinct(wanted, size * len(distinct))
    heat, token = np.divmod(label, size)
    line, lines = _distinct(parents[token] + heat * size, size * len(distinct))
    # Children of one parent are far apart in the layout; their labels are made consecutive.
    together = np.argsort(lines, kind="stable")
    moved = np.empty_like(together)
    moved[together] = np.arange(len(together))
    gather = np.zeros(mask.shape, np.int64)
    gather[mask] = moved[number_of]
    return Packed(
        ids=ids,
        positions=positions,
        ends=_ends(common, offsets),
        predicting=line % size,
        temperatures=distinct[line // size],
        lines=lines[together],
        labels=ids[token[together]],
        gather=gather,
        mask=mask,
        rows=np.array(order, np.int64),
    )


def _ends(common: list[int], offsets: list[int]) -> NDArray[np.int64]:
    """Return the end of each token's subtree: the start of the first later row that does not contain it."""
    ends = np.full(offsets[-1], offsets[-1])
    # The path to the newest token, as runs of neighbours: depth and index of the first, length.
    runs: list[tuple[int, int, int]] = []
    for index, shared in enumerate(common):
        begin, end = offsets[index], offsets[index + 1]
        while runs and runs[-1][0] + runs[-1][2] > shared:
            depth, first, count = runs.pop()
            kept = max(0, shared - depth)
            ends[first + kept : first + count] = begin
            if kept:
                runs.append((depth, first, kept))
        if begin < end:
            runs.append((shared, begin, end - begin))
    return ends


def _distinct(values: NDArray[np.int64], limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values in order, and the index of each value among them; all are below the limit."""
    there = np.zeros(limit, np.bool_)
    there[values] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[values]
