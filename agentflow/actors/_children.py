"""Children of a supervisor: their clocks and specs, functions and processes, one run of a child, and the record across its restarts."""

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Protocol

import anyio

from agentflow.actors._errors import (
    KILLED,
    NORMAL,
    SHUTDOWN,
    ActorError,
    ExitKind,
    ExitReason,
    ProcessEnded,
    StartFailed,
    StartTimeout,
)
from agentflow.errors import ConfigurationError

if TYPE_CHECKING:
    from anyio.abc import Process as Subprocess


class Timer(Protocol):
    """Pending callback. See docs/actors.md."""

    def cancel(self) -> None:
        """Cancel the callback; no effect once it has run."""
        ...


class Clock(Protocol):
    """Source of time; subclasses implement `now` and `call_later`. See docs/actors.md."""

    def now(self) -> float:
        """Return monotonic seconds."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for some seconds."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, partial(_wake, woken))
        try:
            await woken
        finally:
            timer.cancel()

    def deadline(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Cancel the body after some seconds, as the scope's `cancelled_caught` reports. `inf` sets no deadline."""
        return _deadline(self, seconds)


@contextmanager
def _deadline(clock: Clock, seconds: float) -> Generator[anyio.CancelScope]:
    with anyio.CancelScope() as scope:
        timer = None if seconds == float("inf") else clock.call_later(seconds, scope.cancel)
        try:
            yield scope
        finally:
            if timer is not None:
                timer.cancel()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class SystemClock(Clock):
    """The event loop's time. See docs/actors.md."""

    def now(self) -> float:
        """Return the seconds of the loop's monotonic clock."""
        return asyncio.get_running_loop().time()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def deadline(self, seconds: float) -> anyio.CancelScope:
        """Return anyio's own scope: cheaper than the default, and used around every call."""
        return anyio.CancelScope(deadline=self.now() + seconds)


SYSTEM_CLOCK = SystemClock()
"""Default clock."""


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


class Strategy(StrEnum):
    """Children that are restarted when one of them ends. See docs/actors.md."""

    ONE_FOR_ONE = "one_for_one"
    """That child alone."""
    ONE_FOR_ALL = "one_for_all"
    """All children; those that run are stopped first."""
    REST_FOR_ONE = "rest_for_one"
    """That child and those started after it."""


class Restart(StrEnum):
    """Ends after which a child is restarted. See docs/actors.md."""

    PERMANENT = "permanent"
    """All."""
    TRANSIENT = "transient"
    """Crashes and kills."""
    TEMPORARY = "temporary"
    """None, not even a stop by a sibling's restart; the supervisor forgets the child."""


class AutoShutdown(StrEnum):
    """Ends of significant children that end their supervisor, if they are not restarted. See docs/actors.md."""

    NEVER = "never"
    """None."""
    ANY_SIGNIFICANT = "any_significant"
    """The first one."""
    ALL_SIGNIFICANT = "all_significant"
    """The last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential pause before restarts. See docs/actors.md."""

    initial: float = 0.1
    """Seconds before the first restart."""
    factor: float = 2.0
    """Factor between successive pauses."""
    maximum: float = 30.0
    """Maximum pause."""

    def delay(self, failures: int) -> float:
        """Return the pause after some failures in a row (1 or more)."""
        # The exponent is bounded, because a float overflows long before a patient supervisor gives up.
        return min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """Start, restart and stop of one child. See docs/actors.md."""

    id: str
    """Name, unique within its supervisor."""
    start: Callable[..., Child]
    """Factory, called for each start; often simply a class."""
    restart: Restart = Restart.PERMANENT
    """Ends after which it is restarted."""
    significant: bool = False
    """Its end counts for the supervisor's `auto_shutdown`."""
    shutdown: float | None = None
    """Seconds to end when asked; 0 cancels it without asking. The default is 5, and no limit for a supervisor, which
    needs the time to stop its own children."""
    start_timeout: float = 30.0
    """Seconds to become ready."""
    kind: Literal["worker", "supervisor"] = "worker"
    """Kind."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ConfigurationError("ChildSpec: the id is empty; give the child a name")
        if self.significant and self.restart is Restart.PERMANENT:
            raise ConfigurationError(
                f"ChildSpec {self.id!r}: a permanent child never ends for good, so it can't be significant; "
                "make it transient or temporary"
            )
        if self.kind == "supervisor" and self.shutdown not in (None, math.inf):
            raise ConfigurationError(
                f"ChildSpec {self.id!r}: a supervisor can't be given a limit to stop its children; "
                "leave shutdown out"
            )
        if (self.shutdown is not None and self.shutdown < 0) or self.start_timeout <= 0:
            raise ConfigurationError(f"ChildSpec {self.id!r}: shutdown and start_timeout can't be negative")

    @property
    def grace(self) -> float:
        """Seconds to end when asked."""
        if self.shutdown is not None:
            return self.shutdown
        return math.inf if self.kind == "supervisor" else 5.0


def check_specs(specs: Iterable[ChildSpec], auto_shutdown: AutoShutdown) -> None:
    """Refuse specs that contradict each other."""
    seen: set[str] = set()
    for spec in specs:
        if spec.id in seen:
            raise ConfigurationError(f"ChildSpec {spec.id!r}: two children have this id; rename one of them")
        seen.add(spec.id)
        if spec.significant and auto_shutdown is AutoShutdown.NEVER:
            raise ConfigurationError(
                f"ChildSpec {spec.id!r}: significant has no effect with auto_shutdown=never; "
                "set the supervisor's auto_shutdown"
            )


class ChildState(StrEnum):
    """State of a child. See docs/actors.md."""

    RUNNING = "running"
    """Starting or running."""
    RESTARTING = "restarting"
    """Ended, and to be restarted."""
    STOPPED = "stopped"
    """Not running; its spec is kept, so that it can be restarted."""


class ChildInfo(NamedTuple):
    """One child of a supervisor. See docs/actors.md."""

    id: str
    """Id."""
    state: ChildState
    """State."""
    kind: Literal["worker", "supervisor"]
    """Kind."""
    child: Child | None
    """The child itself while it runs."""


class ChildCounts(NamedTuple):
    """Numbers of a supervisor's children. See docs/actors.md."""

    specs: int
    """Specs, running or not."""
    active: int
    """Running children."""
    supervisors: int
    """Supervisors, running or not."""
    workers: int
    """Workers, running or not."""


class ChildRun:
    """A child from start to end."""

    __slots__ = (
        "_arguments",
        "_clock",
        "_killed",
        "_on_end",
        "_on_ready",
        "_scope",
        "_waiters",
        "child",
        "context",
        "ignored",
        "reason",
        "spec",
        "stopping",
    )

    def __init__(
        self,
        spec: ChildSpec,
        clock: Clock,
        *,
        arguments: tuple[object, ...] = (),
        on_ready: Callable[["ChildRun"], None],
        on_end: Callable[["ChildRun"], None],
    ) -> None:
        self.spec = spec
        self.child: Child | None = None
        self.reason: ExitReason | None = None
        self.ignored = False
        self.stopping = False
        self.context = Context(spec.id, clock, self._became_ready)
        # The scope is a shield, because only the supervisor ends its children: one by one, in order.
        self._scope = anyio.CancelScope(shield=True)
        self._arguments = arguments
        self._clock = clock
        self._killed = False
        self._on_ready = on_ready
        self._on_end = on_end
        self._waiters: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Create the child, and run it."""
        reason = KILLED
        try:
            with self._scope:
                self.child = self.spec.start(*self._arguments)
                await self.child.run(self.context)
                reason = NORMAL
        except Ignore:
            self.ignored = True
            reason = NORMAL
        # Boundary between a child and its supervisor: any exception of a child is its exit reason.
        except Exception as error:
            reason = ExitReason.of(error)
        finally:
            self.reason = self._as_asked(reason)
            self._notify()
            self._on_end(self)

    def _as_asked(self, reason: ExitReason) -> ExitReason:
        """Return the exit reason as it counts after a request to end."""
        if self._killed and reason.kind in (ExitKind.NORMAL, ExitKind.KILLED):
            return KILLED
        if self.stopping and reason.kind in (ExitKind.NORMAL, ExitKind.KILLED):
            return SHUTDOWN
        return reason

    async def started(self) -> None:
        """Wait until the child is ready, or has asked to be ignored.

        :raises StartFailed: if it ended instead, or was stopped at its time limit.
        """
        with self._clock.deadline(self.spec.start_timeout):
            await self._wait_for(lambda: self.context.is_ready or self.reason is not None)
        if self.context.is_ready or self.ignored:
            return
        if self.reason is None:
            self._killed = True
            await self.stop()
            raise StartTimeout(self.spec.id, f"not ready after {self.spec.start_timeout:g} s")
        raise StartFailed(self.spec.id, self.reason)

    async def stop(self) -> ExitReason:
        """Ask the child to end, cancel it after its time limit, and wait for its end."""
        if self.reason is None:
            self.stopping = True
            self._killed = self._killed or not self.spec.grace
            if self._killed or not self._ask():
                self._scope.cancel()
            with self._clock.deadline(self.spec.grace):
                await self._wait_for(lambda: self.reason is not None)
        if self.reason is None:
            self._killed = True
            self._scope.cancel()
        await self._wait_for(lambda: self.reason is not None)
        return self.reason or KILLED

    def _ask(self) -> bool:
        """Call the child's own stop callback; return `False` if it has none."""
        if self.context.stop_callback is None:
            return False
        try:
            self.context.stop_callback()
        # The callback is the child's own code: its failure must not keep the supervisor from stopping the child.
        except Exception:
            return False
        return True

    def _became_ready(self) -> None:
        self._notify()
        self._on_ready(self)

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)


@dataclass(slots=True, eq=False)
class ChildSlot:
    """Record of one child, across its restarts."""

    spec: ChildSpec
    arguments: tuple[object, ...] = ()
    running: ChildRun | None = None
    plan: "list[ChildSlot] | None" = None
    """Slots of the planned restart that this one belongs to, in the order of their start."""
    failures: int = 0
    started_at: float = 0.0

    @property
    def state(self) -> ChildState:
        """State of the child."""
        if self.running is not None:
            return ChildState.RUNNING
        return ChildState.STOPPED if self.plan is None else ChildState.RESTARTING

    def info(self) -> ChildInfo:
        """Return the public description of the child."""
        child = self.running.child if self.running is not None else None
        return ChildInfo(self.spec.id, self.state, self.spec.kind, child)

    async def stop(self) -> None:
        """Stop the child, and drop its planned restart."""
        self.plan = None
        if self.running is not None:
            await self.running.stop()
            self.running = None


@dataclass(slots=True, eq=False)
class RestartWindow:
    """Restart limit: at most `intensity` restarts within `period` seconds."""

    intensity: int
    period: float
    _times: deque[float] = field(default_factory=deque[float], init=False)

    def admits(self, now: float) -> bool:
        """Count a restart; return `False` if it exceeds the limit."""
        self._times.append(now)
        while self._times[0] < now - self.period:
            self._times.popleft()
        return len(self._times) <= self.intensity
