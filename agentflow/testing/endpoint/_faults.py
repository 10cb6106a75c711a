"""Faults of the fake endpoint: a pure function of a seed and the number of the call."""

from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct


class EndpointFault(StrEnum):
    """Fault of an answer."""

    BUSY = "busy"
    """429 without `Retry-After`."""
    BUSY_UNTIL = "busy_until"
    """429, with `Retry-After`."""
    BROKEN = "broken"
    """500."""
    SILENT = "silent"
    """Connection closed without an answer."""
    GARBAGE = "garbage"
    """Answer whose text is not JSON."""
    SHAPE = "shape"
    """Answer whose text is JSON of another shape."""


_FAULTS = tuple(EndpointFault)


class FaultPlan(Struct, frozen=True):
    """Plan of failing calls."""

    share: float = 0.0
    """Share of failing calls, 0 to 1."""
    seed: int = 1
    """Seed that selects the failing calls."""
    down_after: int | None = None
    """Number of calls after which none is answered."""

    def of(self, call: int) -> EndpointFault | None:
        """Return the fault of a call, counted from 1."""
        if self.down_after is not None and call > self.down_after:
            return EndpointFault.SILENT
        if not self.share:
            return None
        dice = blake2b(f"{self.seed} {call}".encode(), digest_size=8).digest()
        if int.from_bytes(dice[:4], "big") / 2**32 >= self.share:
            return None
        return _FAULTS[dice[4] % len(_FAULTS)]
