"""Micro-batches of a step, and their distribution over ranks."""

from collections.abc import Sequence

from agentflow.learner._rows import Row
from agentflow.learner.packing import Packed, pack


def micro_batches(rows: Sequence[Row], budget: int, ranks: int = 1) -> list[Packed]:
    """Pack rows into micro-batches of at most `budget` distinct tokens, if possible no fewer than ranks.

    A longer row gets a micro-batch of its own: it can't be cut.
    """
    longest = max(len(row.ids) for row in rows)
    budget = max(budget, longest)
    packed = pack(rows, budget)
    while len(packed) < ranks and budget > longest:
        budget = max(longest, max(map(len, packed)) // 2)
        packed = pack(rows, budget)
    return packed


def share_of(packed: Sequence[Packed], ranks: int, rank: int) -> list[tuple[Packed, bool]]:
    """Return the micro-batches of a rank; every rank computes the same number of them at the same time.

    Loads are balanced: the largest micro-batch first, to the rank with the least. A rank with fewer repeats the smallest
    one, marked `False`: it takes part in the collectives and adds nothing.
    """
    sizes = [len(one) for one in packed]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        lightest = loads.index(min(loads))
        shares[lightest].append(number)
        loads[lightest] += sizes[number]
    missing = max(map(len, shares)) - len(shares[rank])
    return [(packed[number], True) for number in shares[rank]] + [(min(packed, key=len), False)] * missing


def batch_figures(rows: Sequence[Row], packed: Sequence[Packed]) -> dict[str, float]:
    """Return the size of a step."""
    computed = sum(map(len, packed))
    return {
        "step/rows": float(len(rows)),
        "step/batches": float(len(packed)),
        "step/trained_tokens": float(sum(int(row.trained.sum()) for row in rows)),
        "step/forwarded_tokens": float(computed),
        "step/tree_token_ratio": computed / sum(len(row.ids) for row in rows),
    }
