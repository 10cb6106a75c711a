"""What a supervisor remembers of its children, and what it tells about them."""

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentflow.actors._child import Child
from agentflow.actors._specs import ChildSpec

if TYPE_CHECKING:
    from agentflow.actors._running import Running


class ChildState(StrEnum):
    """What a child is doing, as its supervisor knows it."""

    RUNNING = "running"
    """It starts or runs."""
    RESTARTING = "restarting"
    """It ended and will be started again."""
    STOPPED = "stopped"
    """It does not run; its spec is kept, so that it can be restarted."""


class ChildInfo(NamedTuple):
    """One child of a supervisor."""

    id: str
    """Its id."""
    state: ChildState
    """What it is doing."""
    kind: Literal["worker", "supervisor"]
    """What it is."""
    child: Child | None
    """The child itself, while it runs."""


class ChildCounts(NamedTuple):
    """How many children a supervisor has."""

    specs: int
    """Specs that it holds, running or not."""
    active: int
    """Children that run."""
    supervisors: int
    """Children that are supervisors, running or not."""
    workers: int
    """Children that are workers, running or not."""


class Plan:
    """A restart that is going to happen: slots to start, in order."""

    __slots__ = ("slots",)

    def __init__(self, slots: "list[Slot]") -> None:
        self.slots = slots


class Slot:
    """The place of one child in its supervisor, which outlives the child's ends."""

    __slots__ = ("arguments", "failures", "plan", "running", "spec", "started_at")

    def __init__(self, spec: ChildSpec, arguments: tuple[object, ...] = ()) -> None:
        self.spec = spec
        self.arguments = arguments
        self.running: Running | None = None
        self.plan: Plan | None = None
        self.failures = 0
        self.started_at = 0.0

    @property
    def state(self) -> ChildState:
        """What the child is doing."""
        if self.running is not None:
            return ChildState.RUNNING
        return ChildState.STOPPED if self.plan is None else ChildState.RESTARTING

    def info(self) -> ChildInfo:
        """What to tell about it."""
        child = self.running.child if self.running is not None else None
        return ChildInfo(self.spec.id, self.state, self.spec.kind, child)

    async def stop(self) -> None:
        """End what runs here, and forget what was planned."""
        self.plan = None
        if self.running is not None:
            await self.running.stop()
            self.running = None


class RestartWindow:
    """Counts restarts: at most `intensity` within `period` seconds."""

    __slots__ = ("_intensity", "_period", "_times")

    def __init__(self, intensity: int, period: float) -> None:
        self._intensity = intensity
        self._period = period
        self._times: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Count one more restart; `False` if it is one too many."""
        self._times.append(now)
        while self._times[0] < now - self._period:
            self._times.popleft()
        return len(self._times) <= self._intensity
