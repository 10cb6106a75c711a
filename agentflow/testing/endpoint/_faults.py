"""When the fake endpoint fails, and how: a pure function of a seed and the number of the call."""

from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct

__all__ = ["EndpointFault", "FaultPlan"]


class EndpointFault(StrEnum):
    """How an answer can go wrong."""

    BUSY = "busy"
    """429, without a word on when to come again."""
    BUSY_UNTIL = "busy_until"
    """429, with `Retry-After`."""
    BROKEN = "broken"
    """500."""
    SILENT = "silent"
    """The connection is closed without an answer."""
    GARBAGE = "garbage"
    """An answer whose text is no JSON."""
    SHAPE = "shape"
    """An answer whose text is JSON of another shape."""


_FAULTS = tuple(EndpointFault)


class FaultPlan(Struct, frozen=True):
    """Which calls fail."""

    share: float = 0.0
    """How many of all, 0 to 1."""
    seed: int = 1
    """Another seed, other calls."""
    down_after: int | None = None
    """From this call on, no call is answered."""

    def of(self, call: int) -> EndpointFault | None:
        """What happens to that call, counted from 1."""
        if self.down_after is not None and call > self.down_after:
            return EndpointFault.SILENT
        if not self.share:
            return None
        dice = blake2b(f"{self.seed} {call}".encode(), digest_size=8).digest()
        if int.from_bytes(dice[:4], "big") / 2**32 >= self.share:
            return None
        return _FAULTS[dice[4] % len(_FAULTS)]
