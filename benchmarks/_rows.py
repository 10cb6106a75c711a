"""Figures of a benchmark, each with its baseline from the same run."""

from typing import NamedTuple

__all__ = ["Row"]


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
