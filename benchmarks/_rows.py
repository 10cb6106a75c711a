"""Figures of a benchmark, each with its baseline from the same run."""

import json
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Row", "report"]


class Row(NamedTuple):
    """One figure."""

    name: str
    """Name of the measure, with its unit at the end."""
    ours: float
    """Our figure."""
    theirs: float | None = None
    """The baseline's figure, if there is one."""
    beside: str = ""
    """Name of the baseline."""
    floor: float | None = None
    """Limit of our figure."""
    added: bool = False
    """The limit applies to our overhead over the baseline."""

    @property
    def held(self) -> bool:
        """Return whether the limit holds, or there is none."""
        if self.floor is None:
            return True
        return self.ours - (self.theirs or 0.0 if self.added else 0.0) <= self.floor


def report(rows: Sequence[Row], ours: str, *, digits: int) -> bool:
    """Print the figures as a table, the limits that are missed, and all figures as JSON; return whether all limits hold.

    :param ours: heading of our figures.
    """
    print(f"{'':<38}{ours:>10}{'beside':>10}{'at most':>9}")
    for row in rows:
        limit = f"{row.floor:>9.{min(digits, 2)}f}" if row.floor else ""
        print(
            f"{row.name:<38}{row.ours:>10.{digits}f}{row.theirs or 0:>10.{digits}f}{limit:>9}  {row.beside}"
        )
    missed = [row.name for row in rows if not row.held]
    for name in missed:
        print(f"missed: {name}")
    print(json.dumps({row.name: round(row.ours, 3) for row in rows}))
    return not missed
