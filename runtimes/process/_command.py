"""Single commands in a sandbox: run to completion, or with live pipes."""

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Self

import anyio

from agentflow.errors import RuntimeFailure
from runtimes._protocol import ExecResult, Limits, Outcome, OutputSink
from runtimes.process._channel import RequestChannel
from runtimes.process._output import OutputPipes, StreamName, make_pipes, wait_for_end
from runtimes.process.linux import _processes
from runtimes.process.trusted import _wire

_GRACE = 2.0


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
