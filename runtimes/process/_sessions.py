"""Live sessions, seen from the server: start, run, limit, interrupt, fork, end. Everything received from them is untrusted."""

import array
import asyncio
import contextlib
import fcntl
import os
import re
import signal
import socket
import termios
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, Generic

import anyio

from agentflow.errors import CannotFork, InstanceGone, RuntimeFailure
from runtimes._protocol import Display, Limits, Outcome, OutputSink, PythonError, RunResult
from runtimes.process._channel import RequestChannel, socket_pair
from runtimes.process._control_socket import (
    MAX_TEXT_BYTES,
    ControlSocket,
    PythonControlSocket,
    PythonReply,
    ReplyT,
    ShellControlSocket,
    ShellReply,
)
from runtimes.process._output import OutputPipes, make_pipes, wait_for_end
from runtimes.process.linux import _processes
from runtimes.process.trusted import _wire

GRACE = 2.0
"""Seconds that an interrupted run has to end before its session is killed."""
_INTERRUPT_INTERVAL = 0.02
START_DEADLINE = 60.0
"""Seconds that a process has to start or to end."""


def _new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class PendingRun(Generic[ReplyT]):
    """Run in progress; it ends with a reply or because a limit was hit."""

    started: float = field(default_factory=_processes.uptime)
    """Start in seconds since boot."""
    answer: asyncio.Future[ReplyT | None] = field(default_factory=_new_future)
    """Reply of the session; `None` if its process ended first."""
    limit: asyncio.Future[Outcome] = field(default_factory=_new_future)
    """Outcome with which the run must be ended."""

    def end(self, outcome: Outcome) -> None:
        """Request the end of the run; the first outcome counts."""
        if not self.limit.done():
            self.limit.set_result(outcome)


class LiveSession(ABC, Generic[ReplyT]):
    """Base of Python and shell sessions."""

    language: ClassVar[str]

    def __init__(self, client: RequestChannel, sandbox: str, limits: Limits, env: Mapping[str, str]) -> None:
        self._client = client
        self._sandbox_id = sandbox
        self._limits = limits
        self._env = env
        self._control: ControlSocket[ReplyT] | None = None
        self._pipes: OutputPipes | None = None
        self._pid = 0
        self._started = 0.0
        self._call: PendingRun[ReplyT] | None = None
        self._exit_code: asyncio.Future[int] | None = None
        self._loss_unreported = False
        self._fault = ""
        self.lock = asyncio.Lock()
        """Held during a run and during a fork."""

    @property
    def alive(self) -> bool:
        """The session's process is running."""
        return self._control is not None

    @property
    def used(self) -> bool:
        """The session's process is running and has executed a run."""
        return self.alive and self._started > 0.0

    @property
    def unreported_loss(self) -> bool:
        """The session ended between two runs, and no result has reported it yet."""
        return self._loss_unreported or (self._pid != 0 and not self.alive)

    def inherit_loss(self, parent: "LiveSession[ReplyT]") -> None:
        """Take over the unreported loss of a parent session that has ended and can't be copied."""
        self._loss_unreported = parent.unreported_loss

    @abstractmethod
    async def _launch(self) -> None:
        """Start the session's process."""

    @abstractmethod
    def _ask(self, source: str, *, stdin_open: bool) -> asyncio.Future[ReplyT | None]:
        """Send a run request; return the future of its reply."""

    @abstractmethod
    async def _interrupt_run(self) -> None:
        """Interrupt the run but keep the session; may be called repeatedly."""

    @abstractmethod
    def _result(self, answer: ReplyT, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
        """Convert a reply to a result."""

    @abstractmethod
    def _connect(self, sock: socket.socket) -> ControlSocket[ReplyT]:
        """Return the control socket of a new process."""

    async def _start_process(self, op: str, stdin: Sequence[int] = ()) -> None:
        """Request a process and adopt it."""
        ours, theirs = socket_pair()
        pipes, ends = make_pipes(self._limits.output_bytes)
        control = self._connect(ours)
        ends.append(_wire.payload({"env": dict(self._env)}))
        try:
            fds, exited = [theirs.fileno(), *stdin, *ends], self._exit_reporter()
            reply = await self._client.ask(op, fds, on_exit=exited, sandbox=self._sandbox_id)
        except BaseException:
            control.close()
            pipes.close()
            raise
        finally:
            theirs.close()
            for fd in ends:
                os.close(fd)
        self._adopt(reply.fields["pid"], control, pipes)

    def _adopt(self, pid: int, control: ControlSocket[ReplyT], pipes: OutputPipes) -> None:
        self._pid = pid
        self._control = control
        self._pipes = pipes
        control.listen(self._lost)
        pipes.on_overflow = lambda: self._call.end(Outcome.OUTPUT_LIMIT) if self._call else None

    def _exit_reporter(self) -> Callable[[int], None]:
        """Return a callback for the end of the process that is being started."""
        exit_code = self._exit_code = asyncio.get_running_loop().create_future()

        def report(status: int) -> None:
            if not exit_code.done():
                exit_code.set_result(status)
            if exit_code is self._exit_code:
                self._process_gone()

        return report

    def _lost(self, fault: str) -> None:
        """Handle a closed control socket. The run continues as long as the process does (`exec make`).

        :param fault: reason for which the server closed it; the process is killed.
        """
        self._control = None
        if fault:
            self._fault = f"the session was ended, because {fault}"
            if self._pid:
                self._client.post("signal", sandbox=self._sandbox_id, pid=self._pid, signal=signal.SIGKILL)
        if self._exit_code is None or self._exit_code.done():
            self._process_gone()

    def _process_gone(self) -> None:
        if self._control is not None:
            control, self._control = self._control, None
            control.close()
        if self._call is not None and not self._call.answer.done():
            self._call.answer.set_result(None)

    async def start(self) -> None:
        """Start the session if it is not running.

        :raises RuntimeFailure: if it does not start.
        """
        async with self.lock:
            await self._ensure()

    async def _ensure(self) -> None:
        if self.alive:
            return
        self._loss_unreported = self.unreported_loss
        await self.end()
        await self._launch()

    async def run(
        self, source: str, timeout: float | None, on_output: OutputSink | None, stdin_open: bool
    ) -> RunResult:
        """Run source text; see `Instance.run`."""
        async with self.lock:
            await self._ensure()
            assert self._pipes is not None
            call = PendingRun[ReplyT]()
            self._started = call.started
            self._call = call
            self._pipes.on_output = on_output
            if self._pipes.overflowed:
                self._pipes.take()
            try:
                if self.alive:
                    call.answer = self._ask(source, stdin_open=stdin_open)
                else:
                    # It ended right after its start.
                    self._lost("")
                outcome = await self._finish(call, timeout)
                return self._report_loss(await self._collect(call, outcome))
            except asyncio.CancelledError:
                await self._abandon(call)
                raise
            finally:
                self._call = None
                self._stop_forwarding()

    def _report_loss(self, result: RunResult) -> RunResult:
        """Mark a result as `state_lost` if the session ended before this run."""
        unreported, self._loss_unreported = self._loss_unreported, False
        if not unreported or result.state_lost:
            return result
        fault, self._fault = self._fault or "the session's process had ended before", ""
        detail = f"{fault}; this run started a fresh one"
        return replace(result, state_lost=True, fresh=True, detail=result.detail or detail)

    def _stop_forwarding(self) -> None:
        if self._pipes is not None:
            self._pipes.on_output = None

    async def _finish(self, call: PendingRun[ReplyT], timeout: float | None) -> Outcome:
        """Wait for the reply or a limit; at a limit, end the run or its session."""
        watch = None
        if timeout is not None:
            watch = asyncio.get_running_loop().call_later(timeout, call.end, Outcome.TIMEOUT)
        try:
            await wait_for_end(
                self._client, self._sandbox_id, self._limits.cpu_seconds, call.answer, call.limit
            )
        finally:
            if watch is not None:
                watch.cancel()
        if self._pipes is not None and call.answer.done():
            self._pipes.drain()
        if call.limit.done():
            await self._stop_run(call)
            return call.limit.result()
        return Outcome.OK if call.answer.result() is not None else Outcome.ENDED

    async def _stop_run(self, call: PendingRun[ReplyT]) -> None:
        """Interrupt the run and kill its processes; after a grace period, kill the session."""
        deadline = time.monotonic() + GRACE
        while not call.answer.done() and time.monotonic() < deadline:
            # In this order: a shell whose command is killed must not continue with the next one.
            await self._interrupt_run()
            await self._kill_since(call.started)
            await asyncio.wait({call.answer}, timeout=_INTERRUPT_INTERVAL)
        await self._kill_since(call.started)
        if not call.answer.done():
            await self._signal(signal.SIGKILL)
            await asyncio.wait({call.answer}, timeout=START_DEADLINE)
        if self._pipes is not None:
            self._pipes.drain()

    async def end_leftovers(self) -> None:
        """Kill the processes that the last run left running."""
        await self._kill_since(self._started)

    async def _kill_since(self, started: float) -> None:
        with contextlib.suppress(RuntimeFailure, OSError):
            now = _processes.uptime()
            await self._client.ask(
                "kill_run", sandbox=self._sandbox_id, pid=self._pid, since=started, now=now
            )

    async def _signal(self, number: int) -> None:
        with contextlib.suppress(RuntimeFailure, OSError):
            await self._client.ask("signal", sandbox=self._sandbox_id, pid=self._pid, signal=number)

    async def _abandon(self, call: PendingRun[ReplyT]) -> None:
        """End the run of a cancelled caller."""
        with anyio.CancelScope(shield=True):
            await self._stop_run(call)
        if self._pipes is not None:
            self._pipes.take()

    async def _collect(self, call: PendingRun[ReplyT], outcome: Outcome) -> RunResult:
        if self._pipes is None:
            raise InstanceGone("the instance has ended")
        stdout, stderr = (part.decode("utf-8", "replace") for part in self._pipes.take())
        answer = call.answer.result() if call.answer.done() else None
        if answer is None:
            return await self._ended_result(outcome, stdout, stderr)
        try:
            return self._result(answer, outcome, stdout, stderr)
        except (KeyError, TypeError, ValueError, AttributeError):
            await self.end()
            detail = "the session was ended, because it sent a malformed reply"
            return RunResult(
                outcome=Outcome.ENDED, stdout=stdout, stderr=stderr, state_lost=True, detail=detail
            )

    async def _ended_result(self, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
        """Return the result of a run whose session ended: by itself, by a limit, or killed from inside."""
        code = self._exit_code.result() if self._exit_code is not None and self._exit_code.done() else None
        await self.end()
        if code is not None and code < 0:
            code = 128 - code
        elif code is not None and outcome is Outcome.ENDED and self.language == "bash":
            outcome = Outcome.OK
        fault, self._fault = self._fault or "the session's process ended", ""
        detail = f"{fault}; the next run starts a fresh one"
        return RunResult(
            outcome=outcome, stdout=stdout, stderr=stderr, exit_code=code, state_lost=True, detail=detail
        )

    async def interrupt(self) -> bool:
        """Interrupt the run in progress; return `False` if there is none."""
        if self._call is None or self._call.answer.done():
            return False
        self._call.end(Outcome.INTERRUPTED)
        return True

    async def answer_to(self, reply: asyncio.Future[ReplyT | None], deadline: float) -> ReplyT:
        """Wait for the reply to a request that is not a run. The caller holds the lock.

        :raises CannotFork: if no reply comes before the deadline, or the session ends.
        """
        call = PendingRun[ReplyT](answer=reply)
        self._call = call
        try:
            if not self.alive and not reply.done():
                reply.set_result(None)
            await asyncio.wait({call.answer}, timeout=deadline)
        finally:
            self._call = None
        answer = call.answer.result() if call.answer.done() else None
        if answer is None:
            raise CannotFork(f"the {self.language} session does not respond")
        return answer

    async def end(self) -> None:
        """Kill the session's process."""
        if self._pid:
            await self._signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Close all descriptors; the process has ended."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._pipes is not None:
            self._pipes.close()
            self._pipes = None
        self._pid = 0


# As long as that of a start: on a busy machine a sandbox waits for its share of the CPU.
_MOVE_DEADLINE = 60.0
_DUMP_DEADLINE = 60.0
_LEFT = re.compile(rb"\n# left: ([^\n]*)")
_MAX_LEFT = 1000


class PythonSession(LiveSession[PythonReply]):
    """Session with a live interpreter."""

    language = "python"

    _ready: asyncio.Future[PythonReply | None]

    def _connect(self, sock: socket.socket) -> PythonControlSocket:
        control = PythonControlSocket(sock)
        self._ready = control.ready
        return control

    async def _launch(self) -> None:
        await self._start_process("python")
        await self.wait_ready()

    async def wait_ready(self) -> PythonReply:
        """Wait for the first reply of a new session.

        :raises RuntimeFailure: if the session ends instead.
        """
        try:
            return await self.answer_to(self._ready, START_DEADLINE)
        except CannotFork:
            detail = ""
            if self._pipes is not None:
                self._pipes.drain()
                detail = self._pipes.take()[1].decode("utf-8", "replace").strip()
            await self.end()
            raise RuntimeFailure(f"the python session did not start: {detail[-500:]}") from None

    def _ask(self, source: str, *, stdin_open: bool) -> asyncio.Future[PythonReply | None]:
        assert isinstance(self._control, PythonControlSocket)
        return self._control.request("run", source=source)

    async def _interrupt_run(self) -> None:
        await self._signal(signal.SIGINT)

    def _result(self, answer: PythonReply, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
        return python_result(answer, outcome, stdout, stderr)

    async def fork_into(self, sandbox: str, uid: int) -> tuple["PythonSession", list[str]]:
        """Copy the live interpreter into another sandbox. The caller holds the lock.

        :raises CannotFork: if it can't be copied; this session keeps running.
        """
        ours, theirs = socket_pair()
        pipes, ends = make_pipes(self._limits.output_bytes)
        control = PythonControlSocket(ours)
        child = PythonSession(self._client, sandbox, self._limits, self._env)
        child._adopt(0, control, pipes)
        try:
            moved = self._client.expect_move(sandbox)
            await self._client.ask(
                "move_python", [theirs.fileno(), *ends], sandbox=self._sandbox_id, to=sandbox
            )
            # It may have ended since `alive` was checked.
            if not isinstance(self._control, PythonControlSocket):
                raise CannotFork("the python session does not respond")
            answer = await self.answer_to(self._control.request("fork", uid=uid), _MOVE_DEADLINE)
            if "error" in answer.fields:
                raise CannotFork(str(answer.fields["error"]))
            theirs.close()
            await child._arrive(moved)
            left = _texts(await child.answer_to(control.ready, _MOVE_DEADLINE), "left_behind")
        except BaseException:
            child.close()
            raise
        finally:
            theirs.close()
            for fd in ends:
                os.close(fd)
        return child, left

    async def _arrive(self, moved: asyncio.Future[int]) -> None:
        try:
            async with asyncio.timeout(_MOVE_DEADLINE):
                self._pid = await moved
        except TimeoutError:
            raise CannotFork("the interpreter's copy hung during its move") from None
        except InstanceGone:
            raise
        except RuntimeFailure as error:
            raise CannotFork(str(error)) from None


def python_result(answer: PythonReply, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
    """Return the result of a run from an untrusted reply.

    :raises ValueError: if it is malformed; also KeyError, TypeError and AttributeError.
    """
    fields, parts = answer.fields, _Parts(answer.data)
    value = None if fields["value"] is None else parts.text(fields["value"])
    error = None if fields["error"] is None else PythonError(*map(parts.text, fields["error"]))
    displays = tuple(Display(_text(mime), parts.take(size)) for mime, size in fields["displays"])
    parts.end()
    return RunResult(
        outcome=outcome,
        stdout=stdout,
        stderr=stderr,
        value=value,
        error=error,
        displays=displays,
        cwd=_text(fields["cwd"]),
    )


class _Parts:
    """Parts of a reply's data, taken in order. Sizes come from inside.

    :raises ValueError: if the sizes do not add up to the data.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, size: object) -> bytes:
        """Return the next part."""
        if not isinstance(size, int) or not 0 <= size <= len(self._data):
            raise ValueError("a size is wrong")
        part, self._data = bytes(self._data[:size]), self._data[size:]
        return part

    def text(self, size: object) -> str:
        """Return the next part as text."""
        part = self.take(size)
        if len(part) > MAX_TEXT_BYTES:
            raise ValueError("a text is too long")
        return part.decode("utf-8", "replace")

    def end(self) -> None:
        """Check that no data is left."""
        if self._data:
            raise ValueError("there is more data than expected")


def _texts(reply: PythonReply, name: str) -> list[str]:
    """Return the texts of a reply that consists of texts.

    :raises CannotFork: if it is malformed.
    """
    parts = _Parts(reply.data)
    try:
        return [parts.text(size) for size in reply.fields[name]]
    except (KeyError, TypeError, ValueError):
        raise CannotFork("the interpreter's copy sent a malformed reply") from None


def _text(value: object) -> str:
    """Return text from inside without lone surrogates.

    :raises TypeError: if it is not text.
    """
    if not isinstance(value, str):
        raise TypeError("not text")
    return value.encode("utf-8", "replace").decode()


class ShellSession(LiveSession[ShellReply]):
    """Session with a live bash."""

    language = "bash"

    def __init__(self, client: RequestChannel, sandbox: str, limits: Limits, env: Mapping[str, str]) -> None:
        super().__init__(client, sandbox, limits, env)
        self._stdin = -1
        self._stdin_reader = -1
        self._stdin_open = False

    @property
    def takes_input(self) -> bool:
        """The run in progress has an open standard input."""
        return self._stdin_open and self._call is not None

    def _connect(self, sock: socket.socket) -> ShellControlSocket:
        return ShellControlSocket(sock)

    async def _launch(self) -> None:
        stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(stdin_write, False)
        try:
            await self._start_process("shell", [stdin_read])
        except BaseException:
            os.close(stdin_write)
            os.close(stdin_read)
            raise
        self._stdin, self._stdin_reader = stdin_write, stdin_read

    def _ask(self, source: str, *, stdin_open: bool) -> asyncio.Future[ShellReply | None]:
        assert isinstance(self._control, ShellControlSocket)
        self._discard_input()
        self._stdin_open = stdin_open
        text = source.encode("utf-8", "surrogateescape")
        return self._control.request("ask" if stdin_open else "run", text)

    def _discard_input(self) -> None:
        """Discard input that an earlier run was sent and did not read."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self._stdin_reader, termios.FIONREAD, waiting)
        if waiting[0]:
            os.read(self._stdin_reader, waiting[0])

    async def _interrupt_run(self) -> None:
        await self._signal(signal.SIGRTMAX)

    def _result(self, answer: ShellReply, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
        status, cwd = answer
        return RunResult(
            outcome=outcome,
            stdout=stdout,
            stderr=stderr,
            exit_code=int(status),
            cwd=cwd.decode("utf-8", "replace"),
        )

    def send_input(self, data: bytes) -> None:
        """Write to the running command's standard input.

        :raises BlockingIOError: if the pipe is full.
        :raises BrokenPipeError: if no process reads from it.
        """
        view = memoryview(data)
        while view:
            view = view[os.write(self._stdin, view) :]

    async def dump(self) -> tuple[bytes, list[str]]:
        """Return the session's state as shell code, and one line for each thing left behind. The caller holds the lock.

        :raises CannotFork: if the session does not respond.
        """
        assert isinstance(self._control, ShellControlSocket)
        state, *_ = await self.answer_to(self._control.request("dump", b""), _DUMP_DEADLINE)
        left = islice(_LEFT.finditer(state), _MAX_LEFT)
        return state, [line[1].decode("utf-8", "replace") for line in left]

    async def restore(self, state: bytes) -> None:
        """Restore another session's state. The caller holds the lock.

        :raises CannotFork: if the session does not respond.
        """
        await self._ensure()
        assert isinstance(self._control, ShellControlSocket)
        await self.answer_to(self._control.request("restore", state), _DUMP_DEADLINE)
        if self._pipes is not None:
            self._pipes.drain()
            self._pipes.take()

    def close(self) -> None:
        """Close all descriptors; the process has ended."""
        super().close()
        if self._stdin >= 0:
            os.close(self._stdin)
            os.close(self._stdin_reader)
            self._stdin = self._stdin_reader = -1
