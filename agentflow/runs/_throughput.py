"""Rate at which a run makes progress, and the time that is left at that rate."""

from collections import deque
from collections.abc import Callable

_LAST_CHANGES = 201


class ThroughputMeter:
    """Rate at which a counter rises, over its last changes. Time that is not measured, as in a pause, does not count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Measure nothing yet.

        :param clock: monotonic seconds.
        """
        self.finished = 0
        """Rise of the counter since it was first measured."""
        self._clock = clock
        self._began: float | None = None
        self._before = 0.0
        self._changes: deque[tuple[float, int]] = deque(maxlen=_LAST_CHANGES)

    def start(self, count: int) -> None:
        """Measure from now on. The count at the first call is that of earlier processes."""
        if self._began is None:
            self._began = self._clock()
        if not self._changes:
            self._changes.append((self._elapsed, count))

    def pause(self) -> None:
        """Measure nothing until the next start."""
        self._before, self._began = self._elapsed, None

    def record(self, count: int) -> None:
        """Note the counter."""
        if self._changes and count > (last := self._changes[-1][1]):
            self.finished += count - last
            self._changes.append((self._elapsed, count))

    @property
    def rate(self) -> float:
        """Rise per second; 0: none yet."""
        if len(self._changes) < 2:
            return 0.0
        since, before = self._changes[0]
        elapsed = self._elapsed - since
        return (self._changes[-1][1] - before) / elapsed if elapsed > 0 else 0.0

    def remaining(self, left: int, concurrent: int = 1) -> float | None:
        """Return the estimated seconds until this many more are finished; `None` if it is too early to tell.

        :param left: number of those that are not finished.
        :param concurrent: number of those in work. As many must have finished, or half of all: the first ones to finish
            say nothing about the rate of all that began with them.
        """
        needed = max(1, min(concurrent, (self.finished + left + 1) // 2))
        if self._began is None or self.finished < needed or self.rate <= 0:
            return None
        return left / self.rate

    @property
    def _elapsed(self) -> float:
        return self._before + (0.0 if self._began is None else self._clock() - self._began)
