"""Garbage collection during a run."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

YOUNG = 200_000
"""Allocation threshold of the youngest generation during a run. A tree has about 10,000 objects while it grows and few
afterwards: scanning them on the way costs 10 % of all CPU time, and 25 % with Python's default of 700."""


class _Collector:
    """Collector settings of this process, shared by all of its runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs = 0
        self._before = gc.get_threshold()
        self._left = 0

    def begin(self) -> None:
        """Change the collector when the first run begins."""
        with self._lock:
            self._runs += 1
            if self._runs > 1:
                return
            self._before = gc.get_threshold()
            if self._left > YOUNG:
                # Garbage of earlier runs would be frozen and never be collected.
                gc.collect()
                self._left = 0
            gc.freeze()
            gc.set_threshold(YOUNG, 10, 10)

    def end(self) -> None:
        """Restore the collector when the last run ends."""
        with self._lock:
            self._runs -= 1
            if self._runs:
                return
            # Objects from before the run are frozen and not counted.
            self._left += sum(len(gc.get_objects(generation)) for generation in range(3))
            # Move survivors to the oldest generation, or the next allocation would trigger a scan of all of them.
            gc.freeze()
            gc.set_threshold(*self._before)
            gc.unfreeze()


_collector = _Collector()


@contextmanager
def infrequent_gc() -> Generator[None]:
    """Collect garbage rarely, and exclude existing objects: a run makes few cycles and keeps many objects for long."""
    _collector.begin()
    try:
        yield
    finally:
        _collector.end()
