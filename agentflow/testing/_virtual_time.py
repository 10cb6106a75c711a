"""Time that passes only when a test says so, or when nothing else can happen."""

import asyncio
import heapq
import selectors
from collections.abc import Callable
from itertools import count

from agentflow.actors import Clock


class VirtualTimer:
    """A callback of a `VirtualClock` that is still to come."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback
        """What is called; `None` when it was cancelled."""

    def cancel(self) -> None:
        """Forget it."""
        self.callback = None


class VirtualClock(Clock):
    """A clock that a test moves by hand."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = count()
        self._timers: list[tuple[float, int, VirtualTimer]] = []

    def now(self) -> float:
        """The time now."""
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> VirtualTimer:
        """Call back when the clock was moved that far."""
        timer = VirtualTimer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, seconds), next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move on; what falls due is called in order, each at its own time."""
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self._now = until

    def pending(self) -> int:
        """Callbacks that are still to come."""
        return sum(timer.callback is not None for _, _, timer in self._timers)


class _IdleSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the loop's time on to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; with nothing ready and a timer to come, its time comes now."""
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer as soon as every task waits.

    Everything on it runs in virtual time: sleeps, deadlines, `SystemClock`. An hour takes no time, and a hang guard
    (`anyio.fail_after`) goes off at once in a test that hangs. Work in threads or processes does not hold time up, so
    it is not for tests of these.
    """

    def __init__(self) -> None:
        self._idle_selector = _IdleSelector()
        super().__init__(self._idle_selector)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._idle_selector.now
