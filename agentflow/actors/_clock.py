"""Clocks, injected so that tests can control time."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Protocol

import anyio


class Timer(Protocol):
    """Pending callback. See docs/actors.md."""

    def cancel(self) -> None:
        """Cancel the callback; no effect once it has run."""
        ...


class Clock(Protocol):
    """Source of time; subclasses implement `now` and `call_later`. See docs/actors.md."""

    def now(self) -> float:
        """Return monotonic seconds."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for some seconds."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, partial(_wake, woken))
        try:
            await woken
        finally:
            timer.cancel()

    def deadline(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Cancel the body after some seconds, as the scope's `cancelled_caught` reports. `inf` sets no deadline."""
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
    """The event loop's time. See docs/actors.md."""

    def now(self) -> float:
        """Return the seconds of the loop's monotonic clock."""
        return asyncio.get_running_loop().time()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def deadline(self, seconds: float) -> anyio.CancelScope:
        """Return anyio's own scope: cheaper than the default, and used around every call."""
        return anyio.CancelScope(deadline=self.now() + seconds)


SYSTEM_CLOCK = SystemClock()
"""Default clock."""
