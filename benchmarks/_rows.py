"""A figure of a benchmark, beside that of the plain tool in the same run."""

from typing import NamedTuple

__all__ = ["Row"]


class Row(NamedTuple):
    """One figure."""

    name: str
    """What is measured, with its unit at the end."""
    ours: float
    """Our figure."""
    theirs: float | None = None
    """The plain tool's figure, where there is one."""
    beside: str = ""
    """The plain tool."""
    floor: float | None = None
    """The most that ours may be."""
    added: bool = False
    """The floor is for what ours adds to theirs."""

    @property
    def held(self) -> bool:
        """The floor is held, or there is none."""
        if self.floor is None:
            return True
        return self.ours - (self.theirs or 0.0 if self.added else 0.0) <= self.floor
