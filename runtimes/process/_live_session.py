"""Live session of an instance, seen from the server: start, run, limit, interrupt, end.

Everything received from its control socket is untrusted.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic

import anyio

from agentflow.errors import CannotFork, InstanceGone, RuntimeFailure
from runtimes._protocol import Limits, Outcome, OutputSink, RunResult
from runtimes.process._channel import RequestChannel, socket_pair
from runtimes.process._command import OutputPipes, make_pipes, wait_for_end
from runtimes.process._control_socket import ControlSocket, ReplyT
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
