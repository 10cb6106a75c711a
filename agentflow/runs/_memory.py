"""Memory while a run is on."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

__all__ = ["seldom_collected"]

YOUNG = 200_000
"""How many more objects there must be than before until cycles are looked for. A tree has some ten thousand while it grows
and few once it is done: looking at them on the way costs a tenth of all CPU, and with Python's own 700 a quarter."""


class _Collector:
    """The collector of this process, which all runs in it share."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs = 0
        self._before = gc.get_threshold()
        self._left = 0

    def begin(self) -> None:
        """A run begins: the first one changes the collector."""
        with self._lock:
            self._runs += 1
            if self._runs > 1:
                return
            self._before = gc.get_threshold()
            if self._left > YOUNG:
                # What earlier runs left behind would not be looked at again, for it would be frozen.
                gc.collect()
                self._left = 0
            gc.freeze()
            gc.set_threshold(YOUNG, 10, 10)

    def end(self) -> None:
        """A run ends: the last one leaves the collector as the first one found it."""
        with self._lock:
            self._runs -= 1
            if self._runs:
                return
            # What was there before is frozen and not counted.
            self._left += sum(len(gc.get_objects(generation)) for generation in range(3))
            # What stays counts as old, or the next object that anybody makes would have all of it looked at.
            gc.freeze()
            gc.set_threshold(*self._before)
            gc.unfreeze()


_collector = _Collector()


@contextmanager
def seldom_collected() -> Generator[None]:
    """Look for cycles seldom, and not at all among what is there already: a run makes few, and holds much for long."""
    _collector.begin()
    try:
        yield
    finally:
        _collector.end()
