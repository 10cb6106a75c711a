"""Time, so that whoever waits for it can be given another one."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Protocol

import anyio


class Timer(Protocol):
    """A callback that is still to come."""

    def cancel(self) -> None:
        """Forget it; fine if it was called."""
        ...


class Clock(Protocol):
    """Where time comes from: two things that a clock must know, and two that follow from them."""

    def now(self) -> float:
        """Seconds that only ever grow, from some start."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some time."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for some time."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, partial(_wake, woken))
        try:
            await woken
        finally:
            timer.cancel()

    def deadline(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Cancel what runs inside after some time; the scope's `cancelled_caught` tells. `inf` is no deadline."""
        return _deadline(self, seconds)


@contextmanager
def _deadline(clock: Clock, seconds: float) -> Generator[anyio.CancelScope]:
    with anyio.CancelScope() as scope:
        timer = None if seconds == float("inf") else clock.call_later(seconds, scope.cancel)
        try:
            yield scope
        finally:
            if timer is not None:
                timer.cancel()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class SystemClock(Clock):
    """The event loop's own time."""

    def now(self) -> float:
        """Seconds on the loop's monotonic clock."""
        return asyncio.get_running_loop().time()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some time."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def deadline(self, seconds: float) -> anyio.CancelScope:
        """A scope that counts by itself: there is one around every call."""
        return anyio.CancelScope(deadline=self.now() + seconds)


SYSTEM_CLOCK = SystemClock()
"""The clock of whoever was given no other."""
