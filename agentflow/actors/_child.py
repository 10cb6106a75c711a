"""Supervised children (functions and operating-system processes), and the context they run in."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol

import anyio

from agentflow.actors._clock import Clock
from agentflow.actors._errors import ActorError, ProcessEnded

if TYPE_CHECKING:
    from anyio.abc import Process as Subprocess

KEEPER = Path(__file__).with_name("_keeper.py")


class Child(Protocol):
    """Anything that can be supervised: an actor, a process, a supervisor, a function. See docs/actors.md."""

    async def run(self, context: "Context") -> None:
        """Run: call `context.ready()` once started, and return when done.

        It runs in a task of its own. An exception is a crash; `Shutdown` is a deliberate end.
        """
        ...


class Ignore(Exception):
    """Raised by `Context.ignore`, and caught by the code that runs the child."""


class Context:
    """A child's connection to its supervisor. See docs/actors.md."""

    __slots__ = ("_on_ready", "clock", "id", "is_ready", "stop_callback")

    def __init__(self, id: str, clock: Clock, on_ready: Callable[[], None]) -> None:
        self.id = id
        """Id of the child."""
        self.clock = clock
        """Source of time."""
        self.is_ready = False
        """`ready` was called."""
        self.stop_callback: Callable[[], None] | None = None
        """Callback that asks the child to end; `None` cancels it."""
        self._on_ready = on_ready

    def ready(self) -> None:
        """Report that the child has started: its supervisor starts the next one."""
        self.is_ready = True
        self._on_ready()

    def ignore(self) -> NoReturn:
        """Report that there is nothing to do: the supervisor continues without this child."""
        raise Ignore

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Register a callback that asks the child to end; it is cancelled only after the spec's `shutdown` seconds.

        Without a callback the child is cancelled at once, and may clean up as any cancelled task.
        """
        self.stop_callback = callback


class FunctionChild:
    """Child that runs an async function; it counts as started at once. See docs/actors.md."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], Awaitable[None]]) -> None:
        self._function = function

    async def run(self, context: Context) -> None:
        """Run the function to its end."""
        context.ready()
        await self._function()


class Process:
    """Runs one command until it ends or is stopped, and leaves none of its processes behind. See docs/actors.md.

    To stop it, its process group gets `stop_signal`; after the spec's `shutdown` seconds everything is killed. The same
    happens when this program dies in any way: a small keeper process adopts the command's orphans, and kills everything
    when its socket to this program closes. An unasked exit with a non-zero status is a crash.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        ready: Callable[[], Awaitable[None]] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._command = [*command]
        self._env = env
        self._cwd = cwd
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._ready = ready
        self._stop_signal = stop_signal
        self._asked_to_end = False
        self._line: socket.socket
        self._pid = 0

    @property
    def pid(self) -> int:
        """Process id (and group id) of the command; 0 before its start."""
        return self._pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command's process group; no effect once it has ended."""
        try:
            self._line.send(bytes([number]))
        except OSError:
            return

    async def run(self, context: Context) -> None:
        """Run as a supervisor's child. It is ready when `ready` returns, or without one as soon as it runs.

        :raises ProcessEnded: if it ends unasked with a non-zero status.
        """
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        with self._line:
            with theirs:
                keeper = await self._start_keeper(theirs.fileno())
            try:
                await self._greet()
                context.on_stop(self._end)
                status = await self._live(context, keeper)
            finally:
                self._line.close()
                await _wait_for_end(keeper)
        if status and not self._asked_to_end:
            raise ProcessEnded(self._command[0], status)

    async def _start_keeper(self, line: int) -> "Subprocess":
        return await anyio.open_process(
            [sys.executable, "-I", "-S", str(KEEPER), str(line), str(os.getpid()), *self._command],
            stdin=self._stdin,
            stdout=self._stdout,
            stderr=self._stderr,
            env=self._env,
            cwd=self._cwd,
            start_new_session=True,
            pass_fds=[line],
        )

    async def _greet(self) -> None:
        greeting = await asyncio.get_running_loop().sock_recv(self._line, 1024)
        word, _, rest = greeting.decode().partition(" ")
        if word != "started":
            raise ActorError(f"{self._command[0]} can't be run: {rest or 'its keeper did not start'}")
        self._pid = int(rest)

    async def _live(self, context: Context, keeper: "Subprocess") -> int:
        status = 0
        async with anyio.create_task_group() as tasks:

            async def become_ready() -> None:
                if self._ready is not None:
                    await self._ready()
                context.ready()

            tasks.start_soon(become_ready)
            status = await keeper.wait()
            tasks.cancel_scope.cancel()
        return status

    def _end(self) -> None:
        self._asked_to_end = True
        self.send_signal(self._stop_signal)


async def _wait_for_end(keeper: "Subprocess") -> None:
    with anyio.CancelScope(shield=True):
        # A keeper stopped by SIGSTOP can't kill, but its own death kills the command.
        with anyio.move_on_after(10):
            await keeper.wait()
        if keeper.returncode is None:
            keeper.kill()
        await keeper.wait()
        await keeper.aclose()
