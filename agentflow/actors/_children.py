"""A supervisor's records of its children."""

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentflow.actors._child import Child
from agentflow.actors._specs import ChildSpec

if TYPE_CHECKING:
    from agentflow.actors._running import ChildRun


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
    """ChildRun children."""
    supervisors: int
    """Supervisors, running or not."""
    workers: int
    """Workers, running or not."""


class RestartPlan:
    """Planned restart: slots to start, in order."""

    __slots__ = ("slots",)

    def __init__(self, slots: "list[ChildSlot]") -> None:
        self.slots = slots


class ChildSlot:
    """Record of one child, across its restarts."""

    __slots__ = ("arguments", "failures", "plan", "running", "spec", "started_at")

    def __init__(self, spec: ChildSpec, arguments: tuple[object, ...] = ()) -> None:
        self.spec = spec
        self.arguments = arguments
        self.running: ChildRun | None = None
        self.plan: RestartPlan | None = None
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

    __slots__ = ("_intensity", "_period", "_times")

    def __init__(self, intensity: int, period: float) -> None:
        self._intensity = intensity
        self._period = period
        self._times: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Count a restart; return `False` if it exceeds the limit."""
        self._times.append(now)
        while self._times[0] < now - self._period:
            self._times.popleft()
        return len(self._times) <= self._intensity
