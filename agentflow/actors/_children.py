"""Children of a supervisor: their public description, one run of a child, and the record across its restarts."""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Literal, NamedTuple

import anyio

from agentflow.actors._child import Child, Context, Ignore
from agentflow.actors._clock import Clock
from agentflow.actors._errors import StartFailed, StartTimeout
from agentflow.actors._events import KILLED, NORMAL, SHUTDOWN, ExitKind, ExitReason
from agentflow.actors._specs import ChildSpec


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


class ChildSlot:
    """Record of one child, across its restarts."""

    __slots__ = ("arguments", "failures", "plan", "running", "spec", "started_at")

    def __init__(self, spec: ChildSpec, arguments: tuple[object, ...] = ()) -> None:
        self.spec = spec
        self.arguments = arguments
        self.running: ChildRun | None = None
        # Slots of the planned restart that this one belongs to, in the order of their start.
        self.plan: list[ChildSlot] | None = None
        self.failures = 0
        self.started_at = 0.0

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


class RestartWindow:
    """Restart limit: at most `intensity` restarts within `period` seconds."""

    __slots__ = ("_times", "intensity", "period")

    def __init__(self, intensity: int, period: float) -> None:
        self.intensity = intensity
        self.period = period
        self._times: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Count a restart; return `False` if it exceeds the limit."""
        self._times.append(now)
        while self._times[0] < now - self.period:
            self._times.popleft()
        return len(self._times) <= self.intensity
