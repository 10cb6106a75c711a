"""The rows of a step as batches that a device holds, shared out to ranks."""

from collections.abc import Sequence
from typing import NamedTuple

from agentflow.learner._rows import Row
from agentflow.learner.packing import Packed, pack

__all__ = ["Batch", "Batches", "batches"]


class Batch(NamedTuple):
    """Rows that are computed at once."""

    packed: Packed
    """Their tokens."""
    rows: list[Row]
    """The rows, in the order of `packed`."""
    numbers: list[int]
    """Which of the step's rows they are."""
    counts: bool = True
    """Whether it is this rank's; else it only takes part in what all ranks must do together."""


class Batches:
    """All batches of a step. Every rank makes the same ones, and computes its own."""

    def __init__(self, rows: Sequence[Row], packed: Sequence[Packed], ranks: int) -> None:
        numbers = [one.rows.tolist() for one in packed]
        self._all = [
            Batch(one, [rows[number] for number in theirs], theirs)
            for one, theirs in zip(packed, numbers, strict=True)
        ]
        self._shares = _shares([len(one) for one in packed], ranks)
        self._rows = rows

    def of(self, rank: int) -> list[Batch]:
        """Those of a rank; as many for each, for all ranks compute at the same time."""
        mine = [self._all[number] for number in self._shares[rank]]
        missing = max(map(len, self._shares)) - len(mine)
        smallest = min(self._all, key=lambda batch: len(batch.packed))
        return mine + [smallest._replace(counts=False)] * missing

    def figures(self) -> dict[str, float]:
        """How large the step is."""
        forwarded = sum(len(batch.packed) for batch in self._all)
        return {
            "step/rows": float(len(self._rows)),
            "step/batches": float(len(self._all)),
            "step/trained_tokens": float(sum(int(row.trained.sum()) for row in self._rows)),
            "step/forwarded_tokens": float(forwarded),
            "step/tree_token_ratio": forwarded / sum(len(row.ids) for row in self._rows),
        }


def batches(rows: Sequence[Row], budget: int, ranks: int = 1) -> Batches:
    """Rows as batches of at most so many different tokens: no fewer batches than ranks, where rows allow it.

    A row that is longer stands alone: it can't be cut.
    """
    longest = max(len(row.ids) for row in rows)
    budget = max(budget, longest)
    packed = pack(rows, budget)
    while len(packed) < ranks and budget > longest:
        budget = max(longest, max(map(len, packed)) // 2)
        packed = pack(rows, budget)
    return Batches(rows, packed, ranks)


def _shares(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Batches for each rank, so that none has much more to do: the largest first, to who has least."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        rank = loads.index(min(loads))
        shares[rank].append(number)
        loads[rank] += sizes[number]
    return shares
