"""Memory while a run is on."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["seldom_collected"]

YOUNG = 200_000
"""How many more objects there must be than before until cycles are looked for. A tree has some ten thousand while it grows
and few once it is done: looking at them on the way costs a tenth of all CPU, and with Python's own 700 a quarter."""


@contextmanager
def seldom_collected() -> Generator[None]:
    """Look for cycles seldom, and not at all among what is there already: a run makes few, and holds much for long."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)
    try:
        yield
    finally:
        # What has come since counts as old, or the next object that anybody makes would have all of it looked at.
        gc.freeze()
        gc.set_threshold(*before)
        gc.unfreeze()
