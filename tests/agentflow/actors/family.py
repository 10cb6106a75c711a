"""Supervisors with faulty children."""

from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from agentflow.actors import AutoShutdown, Backoff, ChildSpec, Clock, Restart, Strategy, Supervisor
from agentflow.testing import EventRecorder, Fault, FaultyChild, InjectedCrash, Start

FAULTS = {"normal": Fault.END, "shutdown": Fault.SHUTDOWN, "abnormal": Fault.CRASH}
"""The three ends that OTP's test suites give a child."""

__all__ = ["FAULTS", "Family", "InjectedCrash", "Start", "ids", "states"]


class Options(TypedDict, total=False):
    """Arguments of a supervisor."""

    strategy: Strategy
    intensity: int
    period: float
    backoff: Backoff
    auto_shutdown: AutoShutdown
    clock: Clock
    name: str


@dataclass
class Family:
    """The children of one test by id, with the events so far."""

    children: dict[str, FaultyChild] = field(default_factory=dict[str, FaultyChild])
    """Their factories."""
    events: EventRecorder = field(default_factory=EventRecorder)
    """Events so far."""

    def spec(
        self,
        id: str,
        restart: Restart = Restart.PERMANENT,
        *,
        starts: tuple[Start, ...] = (),
        stubborn: bool = False,
        significant: bool = False,
        shutdown: float | None = None,
        start_timeout: float = 30.0,
    ) -> ChildSpec:
        """Return the spec of a faulty child."""
        self.children[id] = FaultyChild(starts=starts, stubborn=stubborn)
        return ChildSpec(
            id=id,
            start=self.children[id].make,
            restart=restart,
            significant=significant,
            shutdown=shutdown,
            start_timeout=start_timeout,
        )

    def supervisor(self, *specs: ChildSpec, **options: Unpack[Options]) -> Supervisor:
        """Return a supervisor with a recorder."""
        return Supervisor(specs, observer=self.events, **options)

    async def end(self, id: str, fault: Fault = Fault.CRASH) -> None:
        """End a child, and wait for its end."""
        before = [child for child, _ in self.events.ended()].count(id)
        self.children[id].end(fault)
        await self.events.until_ended(id, before + 1)

    async def restart(self, id: str, fault: Fault = Fault.CRASH) -> None:
        """End a child, and wait for its restart."""
        before = self.events.started().count(id)
        self.children[id].end(fault)
        await self.events.until_started(id, before + 1)


def ids(supervisor: Supervisor) -> list[str]:
    """Return the ids of all children, in order."""
    return [info.id for info in supervisor.which_children()]


def states(supervisor: Supervisor) -> dict[str, str]:
    """Return the state of each child."""
    return {info.id: str(info.state) for info in supervisor.which_children()}
