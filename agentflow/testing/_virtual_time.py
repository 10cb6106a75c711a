"""Virtual time: moved by a test, or by an event loop with nothing else to do."""

import asyncio
import heapq
import selectors
from collections.abc import Callable
from itertools import count

from agentflow.actors import Clock


class VirtualTimer:
    """Pending callback of a `VirtualClock`."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback
        """Callback; `None` once cancelled."""

    def cancel(self) -> None:
        """Cancel the callback."""
        self.callback = None


class VirtualClock(Clock):
    """Clock that a test moves by hand. See docs/actors.md."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = count()
        self._timers: list[tuple[float, int, VirtualTimer]] = []

    def now(self) -> float:
        """Return the virtual time."""
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> VirtualTimer:
        """Call back once the clock has been moved that far."""
        timer = VirtualTimer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, seconds), next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the clock, and run the callbacks that fall due in order, each at its own time."""
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self._now = until

    def pending(self) -> int:
        """Return the number of pending callbacks."""
        return sum(timer.callback is not None for _, _, timer in self._timers)


class _IdleSelector(selectors.DefaultSelector):
    """Selector that moves the loop's time to the next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, jump to the next timer."""
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop whose time jumps to the next timer as soon as every task waits. See docs/actors.md.

    Everything on it runs in virtual time: sleeps, deadlines, `SystemClock`. An hour takes no real time, and a hang guard
    (`anyio.fail_after`) fires at once in a test that hangs. Threads and processes do not hold virtual time back, so do not
    use it for tests of these.
    """

    def __init__(self) -> None:
        self._idle_selector = _IdleSelector()
        super().__init__(self._idle_selector)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._idle_selector.now
