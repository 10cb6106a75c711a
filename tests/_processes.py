"""Processes started by a test, with their command lines."""

from collections.abc import Iterator
from contextlib import suppress

import psutil

__all__ = ["commands"]


def commands() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Return all descendants of this process, with their command lines."""
    for process in psutil.Process().children(recursive=True):
        # Some end during the scan, and some are zombies.
        with suppress(psutil.NoSuchProcess):
            yield process, process.cmdline()
