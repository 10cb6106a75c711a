"""Output of sandboxed processes, the wait for their end, and single commands: run to completion, or with live pipes."""

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import termios
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import anyio

from agentflow.errors import RuntimeFailure
from runtimes._protocol import ExecResult, Limits, Outcome, OutputSink
from runtimes.process._channel import RequestChannel
from runtimes.process._paced_reader import DISCARDING_COST, MIN_COST, PacedReader
from runtimes.process.linux import _processes
from runtimes.process.trusted import _wire

StreamName = Literal["stdout", "stderr"]
_CHUNK = 1 << 18
_CPU_POLL = 0.2
_GRACE = 2.0


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


class RunningCommand:
    """Supervisor process of one command and its pipes."""

    def __init__(self, client: RequestChannel, sandbox: str, limits: Limits) -> None:
        self._client = client
        self._sandbox_id = sandbox
        self._limits = limits
        self._pid = 0
        self._stdin = -1
        self._input = bytearray()
        self._close_after_input = False
        self._drained: asyncio.Event = asyncio.Event()
        self._started = 0.0
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Exit code of the command."""
        self.pipes: OutputPipes | None = None
        """Output of the command."""

    async def start(
        self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str], user: str | None
    ) -> None:
        """Start the command; without `cwd`, in the user's home."""
        stdin_read, self._stdin = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._stdin, False)
        self.pipes, ends = make_pipes(self._limits.output_bytes)
        self._started = _processes.uptime()
        payload = _wire.payload({"argv": list(argv), "cwd": cwd, "env": dict(env), "user": user})
        fds = [stdin_read, *ends, payload]
        try:
            # Shielded: once requested, the command starts, and a cancelled caller must be able to kill it.
            with anyio.CancelScope(shield=True):
                reply = self._client.ask(
                    "exec", fds, on_exit=self._has_exited, sandbox=self._sandbox_id, user=user
                )
                self._pid = (await reply).fields["pid"]
        except BaseException:
            self.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)

    def _has_exited(self, status: int) -> None:
        if not self.exited.done():
            self.exited.set_result(status if status >= 0 else 128 - status)

    def feed(self, data: bytes, *, close: bool) -> None:
        """Queue input; with `close`, close standard input after it."""
        self._input += data
        self._close_after_input = self._close_after_input or close
        self._write()

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        if self._stdin < 0:
            self._input.clear()
            return
        try:
            while self._input:
                sent = os.write(self._stdin, self._input[: 1 << 16])
                del self._input[:sent]
        except BlockingIOError:
            self._drained.clear()
            loop.add_writer(self._stdin, self._write)
            return
        except OSError:
            self._input.clear()
            self._close_after_input = True
        loop.remove_writer(self._stdin)
        self._drained.set()
        if self._close_after_input:
            os.close(self._stdin)
            self._stdin = -1

    async def drained(self) -> None:
        """Wait until queued input is written.

        :raises BrokenPipeError: if standard input is closed.
        """
        while self._input:
            await self._drained.wait()
        if self._stdin < 0:
            raise BrokenPipeError(errno.EPIPE, "the command's standard input is closed")

    async def kill(self) -> None:
        """Kill the command and all processes that it started."""
        deadline = time.monotonic() + _GRACE
        while not self.exited.done() and time.monotonic() < deadline:
            with contextlib.suppress(RuntimeFailure, OSError):
                since, now = self._started, _processes.uptime()
                await self._client.ask(
                    "kill_run", sandbox=self._sandbox_id, pid=self._pid, since=since, now=now
                )
            await asyncio.wait({self.exited}, timeout=0.02)
        if not self.exited.done():
            with contextlib.suppress(RuntimeFailure, OSError):
                await self._client.ask(
                    "signal", sandbox=self._sandbox_id, pid=self._pid, signal=signal.SIGKILL
                )
            await asyncio.wait({self.exited}, timeout=_GRACE)

    async def run(self, data: bytes, timeout: float | None, on_output: OutputSink | None) -> ExecResult:
        """Send input, wait for the end, and collect the output."""
        assert self.pipes is not None
        loop = asyncio.get_running_loop()
        limit: asyncio.Future[Outcome] = loop.create_future()

        def hit(outcome: Outcome) -> None:
            if not limit.done():
                limit.set_result(outcome)

        self.pipes.on_output = on_output
        self.pipes.on_overflow = lambda: hit(Outcome.OUTPUT_LIMIT)
        self.pipes.replay()
        watch = None if timeout is None else loop.call_later(timeout, hit, Outcome.TIMEOUT)
        try:
            self.feed(data, close=True)
            await wait_for_end(self._client, self._sandbox_id, self._limits.cpu_seconds, self.exited, limit)
            if not self.exited.done():
                await self.kill()
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self.kill()
            raise
        finally:
            if watch is not None:
                watch.cancel()
            self.pipes.drain()
            stdout, stderr = self.pipes.take()
            self.close()
        outcome = limit.result() if limit.done() else Outcome.OK
        code = self.exited.result() if self.exited.done() else 137
        return ExecResult(outcome=outcome, exit_code=code, stdout=stdout, stderr=stderr)

    def close(self) -> None:
        """Close all pipes."""
        if self._stdin >= 0:
            asyncio.get_running_loop().remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1
        self._input.clear()
        self._drained.set()
        if self.pipes is not None:
            self.pipes.close()


class CommandStream:
    """Running command with live pipes; see `runtimes.Stream`."""

    def __init__(self, command: RunningCommand) -> None:
        self._command = command
        self._pieces: asyncio.Queue[tuple[StreamName, bytes] | None] = asyncio.Queue()
        pipes = command.pipes
        assert pipes is not None
        pipes.on_output = self._got
        pipes.on_end = lambda: self._pieces.put_nowait(None)
        # A command on a busy machine may write, and even end, before its start has been reported.
        pipes.replay()

    def _got(self, name: StreamName, data: bytes) -> None:
        self._pieces.put_nowait((name, data))
        assert self._command.pipes is not None
        self._command.pipes.take()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.kill()
        self._command.close()

    async def send(self, data: bytes) -> None:
        """Write to standard input.

        :raises BrokenPipeError: if either end of it is closed.
        """
        self._command.feed(data, close=False)
        await self._command.drained()

    async def close_stdin(self) -> None:
        """Close standard input."""
        self._command.feed(b"", close=True)

    async def receive(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """Yield output as it arrives, until both pipes are closed."""
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def wait(self) -> int:
        """Return the exit status; 128 + n if signal n ended it."""
        return await asyncio.shield(self._command.exited)

    async def kill(self) -> None:
        """Kill the command and all processes that it started."""
        await self._command.kill()
