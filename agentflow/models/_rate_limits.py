"""Rate limits of endpoints: every request waits for a slot, and all who share a limit take turns."""

from hashlib import sha256
from typing import Final, Protocol

from agentflow.actors import Clock
from agentflow.models._providers import ModelAddress

_USED_SHARE: Final = 0.97
"""Share of a limit that is used: slots are even, and the network delivers some requests later than others."""


class RateLimiter(Protocol):
    """Assigns slots to the requests of all who share a limit. See docs/models.md."""

    async def reserve(self, name: str, interval: float) -> float:
        """Reserve the next free slot and return the seconds until it.

        :param name: name of the limit.
        :param interval: seconds between two slots.
        """
        ...


class LocalRateLimiter:
    """Slots for the requests of this process."""

    def __init__(self, clock: Clock) -> None:
        """:param clock: clock of the slots."""
        self._clock = clock
        self._free: dict[str, float] = {}

    async def reserve(self, name: str, interval: float) -> float:
        """Reserve the next free slot and return the seconds until it."""
        now = self._clock.now()
        slot = max(now, self._free.get(name, now))
        self._free[name] = slot + interval
        return slot - now


class ModelThrottle:
    """Lets one request pass per slot of the limit of a model."""

    def __init__(
        self, limiter: RateLimiter, address: ModelAddress, per_minute: float | None, clock: Clock
    ) -> None:
        """:param per_minute: the limit; `None`: there is none."""
        self._limiter = limiter
        # Providers limit the requests of a key to a model. The key itself is not stored.
        self._name = sha256(f"{address.url}\n{address.model}\n{address.key}".encode()).hexdigest()
        self._interval = None if per_minute is None else 60 / (per_minute * _USED_SHARE)
        self._clock = clock

    async def wait(self) -> None:
        """Wait for the slot of one request."""
        if self._interval is None:
            return
        seconds = await self._limiter.reserve(self._name, self._interval)
        if seconds > 0:
            await self._clock.sleep(seconds)
