"""Strategies for rows with common prefixes, and their prefixes as sets."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from agentflow.learner.packing import Row

__all__ = ["forking_rows", "plain_row", "prefixes"]


def plain_row(ids: Sequence[int], trained: Sequence[bool], temperature: float = 1.0) -> Row:
    """A row of which nothing but its tokens matters."""
    count = sum(trained)
    return Row(
        ids=np.array(ids, np.int32),
        trained=np.array(trained, np.bool_),
        behaviour=np.zeros(count, np.float32),
        advantages=np.zeros(count, np.float32),
        weights=np.zeros(count, np.float64),
        units=np.zeros(count, np.int32),
        temperature=temperature,
    )


def prefixes(rows: Sequence[Row]) -> set[tuple[int, ...]]:
    """Every beginning of every row: the tokens of the tree."""
    return {tuple(row.ids[: end + 1].tolist()) for row in rows for end in range(len(row.ids))}


@st.composite
def forking_rows(
    draw: st.DrawFn, vocabulary: int = 64, temperatures: Sequence[float] = (1.0, 0.7)
) -> list[Row]:
    """Up to nine rows: each goes on from some beginning of an earlier one, or starts anew; some come twice."""
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    rows: list[Row] = []
    # Few different tokens after a fork, so that rows also meet by chance.
    few = draw(st.sampled_from([3, vocabulary]))
    for _ in range(draw(st.integers(1, 9))):
        kept: list[int] = []
        if rows and chance.random() < 0.85:
            earlier = rows[int(chance.integers(len(rows)))].ids.tolist()
            kept = earlier[: int(chance.integers(1, len(earlier) + 1))]
        new = chance.integers(1, few, int(chance.integers(0 if kept else 1, 12))).tolist()
        ids = [*kept, *new]
        trained = [False, *(chance.random(len(ids) - 1) < 0.7).tolist()]
        rows.append(plain_row(ids, trained, float(chance.choice(list(temperatures)))))
    return rows
