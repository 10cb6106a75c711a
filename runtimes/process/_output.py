"""Output of sandboxed processes, read at a bounded rate, and the wait for their end."""

import array
import asyncio
import fcntl
import os
import termios
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from agentflow.errors import RuntimeFailure
from runtimes._protocol import Outcome, OutputSink
from runtimes.process._channel import RequestChannel

BYTES_PER_SECOND = 64 * 1024 * 1024
"""Rate of one descriptor after a burst."""
MIN_COST = 64 * 1024
"""Cost of a read in bytes, at least: together with the rate, 1,024 reads a second."""
BURST_BYTES = 32 * 1024 * 1024
"""Bytes that may be read at once."""
DISCARDING_COST = 16 * MIN_COST
"""Cost of a read whose data is dropped: 64 reads a second."""
StreamName = Literal["stdout", "stderr"]
_CHUNK = 1 << 18
_CPU_POLL = 0.2


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


class OutputPipes:
    """Read ends of a process's stdout and stderr. Reads continuously and keeps at most `limit` bytes."""

    def __init__(self, stdout: int, stderr: int, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fds: dict[StreamName, int] = {"stdout": stdout, "stderr": stderr}
        self._kept: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._remaining = limit
        self._limit = limit
        self.overflowed = False
        """Output beyond the limit was dropped."""
        self.on_overflow: Callable[[], None] | None = None
        """Called once when output exceeds the limit."""
        self.on_output: OutputSink | None = None
        """Called with each chunk that is kept."""
        self.on_end: Callable[[], None] | None = None
        """Called when both pipes are closed."""
        for fd in self._fds.values():
            os.set_blocking(fd, False)
        self._readers = {name: PacedReader(fd, partial(self._read, name)) for name, fd in self._fds.items()}

    def _read(self, name: StreamName) -> int:
        try:
            data = os.read(self._fds[name], _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._end(name)
            return 0
        kept = data[: self._remaining]
        self._remaining -= len(kept)
        if kept:
            self._kept[name] += kept
            if self.on_output is not None:
                self.on_output(name, kept)
        if len(kept) < len(data) and not self.overflowed:
            self.overflowed = True
            self._set_cost(DISCARDING_COST)
            if self.on_overflow is not None:
                self.on_overflow()
        return len(data)

    def _set_cost(self, cost: int) -> None:
        for reader in self._readers.values():
            reader.cost = cost

    def _end(self, name: StreamName) -> None:
        fd = self._fds.pop(name)
        self._readers[name].close()
        os.close(fd)
        if not self._fds and self.on_end is not None:
            self.on_end()

    def replay(self) -> None:
        """Call the callbacks for what happened before they were set."""
        if self.on_output is not None:
            kept: dict[StreamName, bytes] = {name: bytes(data) for name, data in self._kept.items() if data}
            for name, data in kept.items():
                self.on_output(name, data)
        if self.overflowed and self.on_overflow is not None:
            self.on_overflow()
        if not self._fds and self.on_end is not None:
            self.on_end()

    def drain(self) -> None:
        """Read everything written so far, but not what a process writes meanwhile."""
        for name, fd in list(self._fds.items()):
            waiting = array.array("i", [0])
            fcntl.ioctl(fd, termios.FIONREAD, waiting)
            while waiting[0] > 0 and name in self._fds:
                waiting[0] -= self._read(name) or waiting[0]

    def take(self) -> tuple[bytes, bytes]:
        """Return the stdout and stderr collected since the last call."""
        stdout, stderr = bytes(self._kept["stdout"]), bytes(self._kept["stderr"])
        self._kept["stdout"].clear()
        self._kept["stderr"].clear()
        self._remaining = self._limit
        self.overflowed = False
        self._set_cost(MIN_COST)
        return stdout, stderr

    def close(self) -> None:
        """Stop reading."""
        for name in list(self._fds):
            self._end(name)


async def wait_for_end(
    client: RequestChannel,
    sandbox: str,
    cpu_seconds: float | None,
    ended: asyncio.Future[Any],
    limit: asyncio.Future[Outcome],
) -> None:
    """Wait until a run ends or hits a limit; check its CPU time every 0.2 seconds if that is limited."""
    if cpu_seconds is None:
        await asyncio.wait({ended, limit}, return_when=asyncio.FIRST_COMPLETED)
        return
    before = await _cpu_used(client, sandbox)
    while not (await asyncio.wait({ended, limit}, timeout=_CPU_POLL, return_when=asyncio.FIRST_COMPLETED))[0]:
        if await _cpu_used(client, sandbox) - before > cpu_seconds and not limit.done():
            limit.set_result(Outcome.CPU_LIMIT)


async def _cpu_used(client: RequestChannel, sandbox: str) -> float:
    try:
        return float((await client.ask("events", sandbox=sandbox)).fields["cpu"])
    except (RuntimeFailure, OSError):
        return 0.0


def make_pipes(limit: int) -> tuple[OutputPipes, list[int]]:
    """Return output pipes and their write ends."""
    out_read, out_write = os.pipe2(os.O_CLOEXEC)
    err_read, err_write = os.pipe2(os.O_CLOEXEC)
    return OutputPipes(out_read, err_read, limit), [out_write, err_write]
