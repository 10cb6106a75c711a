"""Reading from a sandbox at a bounded rate, so that a flood of small writes can't keep the server busy."""

import asyncio
from collections.abc import Callable

BYTES_PER_SECOND = 64 * 1024 * 1024
"""Rate of one descriptor after a burst."""
MIN_COST = 64 * 1024
"""Cost of a read in bytes, at least: together with the rate, 1,024 reads a second."""
BURST_BYTES = 32 * 1024 * 1024
"""Bytes that may be read at once."""
DISCARDING_COST = 16 * MIN_COST
"""Cost of a read whose data is dropped: 64 reads a second."""


class PacedReader:
    """Call a function while a descriptor is readable, as an event loop does, but within a rate.

    The writer waits meanwhile. `read` returns the number of bytes it has read.
    """

    def __init__(self, fd: int, read: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._read = read
        self._tokens = float(BURST_BYTES)
        self._counted = self._loop.time()
        self._waiting: asyncio.TimerHandle | None = None
        self._closed = False
        self.cost = MIN_COST
        """Cost of the next reads, at least."""
        self._loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        size = self._read()
        if self._closed:
            return
        now = self._loop.time()
        refilled = self._tokens + (now - self._counted) * BYTES_PER_SECOND
        self._tokens = min(BURST_BYTES, refilled) - max(size, self.cost)
        self._counted = now
        if self._tokens < 0:
            self._loop.remove_reader(self._fd)
            self._waiting = self._loop.call_later(-self._tokens / BYTES_PER_SECOND, self._resume)

    def _resume(self) -> None:
        self._waiting = None
        self._loop.add_reader(self._fd, self._readable)

    def close(self) -> None:
        """Stop reading; the descriptor is still open."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        self._loop.remove_reader(self._fd)
