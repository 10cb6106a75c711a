"""Rows: the tokens that enter a step, one row for each model call."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentflow.trace import TokenSpan, TokenTree, path_ids, walk


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
    end: TokenSpan | None = field(default=None, repr=False)
    """Last span of the row in the token tree of its step; `None`: `sort_rows` builds a tree."""


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

    The token tree of the step is used if all rows are in one; otherwise a tree is built.

    :return: the indices of the rows in order, and the number of tokens each shares with the row before it.
    """
    paths = [row.ids.astype(np.uint32).tobytes() for row in rows]
    ends = [
        row.end
        for row, path in zip(rows, paths, strict=True)
        if row.end is not None and path_ids(row.end) == path
    ]
    if len(ends) < len(rows) or len({_root(end) for end in ends}) > 1:
        tree = TokenTree()
        ends = [tree.insert(path) for path in paths]
    return walk(ends)


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


def _root(span: TokenSpan) -> TokenSpan:
    while span.parent is not None:
        span = span.parent
    return span


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

    def joined(name: str) -> NDArray[Any] | None:
        before, after = getattr(short, name), getattr(long, name)
        return None if before is None else np.concatenate([before, after])[order]

    arrays: dict[str, Any] = {name: joined(name) for name in PER_TRAINED_TOKEN}
    return replace(long, trained=trained, **arrays)
