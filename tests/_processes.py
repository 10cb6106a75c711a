"""The processes that a test started, and what they were started with."""

from collections.abc import Iterator
from contextlib import suppress

import psutil

__all__ = ["commands"]


def commands() -> Iterator[tuple[psutil.Process, list[str]]]:
    """All that lives below this process, with its command line."""
    for process in psutil.Process().children(recursive=True):
        # Some end while they are looked at, and some have ended and wait to be asked how.
        with suppress(psutil.NoSuchProcess):
            yield process, process.cmdline()
