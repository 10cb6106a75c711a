"""Output of sandboxed processes: collected up to a limit, without ever blocking them."""

import asyncio
import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimes._protocol import OutputSink

StreamName = Literal["stdout", "stderr"]
_CHUNK = 1 << 18


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
        for name, fd in self._fds.items():
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._read, name)

    def _read(self, name: StreamName) -> bool:
        try:
            data = os.read(self._fds[name], _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end(name)
            return False
        kept = data[: self._remaining]
        self._remaining -= len(kept)
        if kept:
            self._kept[name] += kept
            if self.on_output is not None:
                self.on_output(name, kept)
        if len(kept) < len(data) and not self.overflowed:
            self.overflowed = True
            if self.on_overflow is not None:
                self.on_overflow()
        return True

    def _end(self, name: StreamName) -> None:
        fd = self._fds.pop(name)
        self._loop.remove_reader(fd)
        os.close(fd)
        if not self._fds and self.on_end is not None:
            self.on_end()

    @property
    def ended(self) -> bool:
        """Both pipes are closed."""
        return not self._fds

    def drain(self) -> None:
        """Read everything written so far."""
        for name in list(self._fds):
            while name in self._fds and not self.overflowed and self._read(name):
                pass

    def take(self) -> tuple[bytes, bytes]:
        """Return the stdout and stderr collected since the last call."""
        stdout, stderr = bytes(self._kept["stdout"]), bytes(self._kept["stderr"])
        self._kept["stdout"].clear()
        self._kept["stderr"].clear()
        self._remaining = self._limit
        self.overflowed = False
        return stdout, stderr

    def close(self) -> None:
        """Stop reading."""
        for name in list(self._fds):
            self._end(name)
