"""Recording the events of a supervisor."""

from typing import TypeVar

import anyio

from agentflow.actors import (
    ChildEnded,
    ChildStarted,
    ExitReason,
    RestartPlanned,
    SupervisorEnding,
    SupervisorEvent,
)

E = TypeVar("E", ChildStarted, ChildEnded, RestartPlanned, SupervisorEnding)


class EventRecorder:
    """Observer that records all events in order and lets a test wait for one.

    See docs/actors.md.
    """

    def __init__(self) -> None:
        self.events: list[SupervisorEvent] = []
        """All events so far."""
        self._more = anyio.Event()

    def __call__(self, event: SupervisorEvent) -> None:
        """Record one event."""
        self.events.append(event)
        self._more.set()
        self._more = anyio.Event()

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def story(self) -> list[str]:
        """Return the events as short lines: `+a` started, `-a shutdown` ended, `~a b` to be restarted, `! reason` ending."""
        return [_line(event) for event in self.events]

    def started(self) -> list[str]:
        """Return the ids of children that became ready, in order."""
        return [event.child for event in self.of(ChildStarted)]

    def ended(self) -> list[tuple[str, str]]:
        """Return the ids of children that ended, in order, each with the kind of its exit reason."""
        return [(event.child, str(event.reason.kind)) for event in self.of(ChildEnded)]

    def reason(self, child: str) -> ExitReason:
        """Return the last exit reason of a child."""
        return next(event.reason for event in reversed(self.of(ChildEnded)) if event.child == child)

    def clear(self) -> None:
        """Forget all events so far."""
        self.events.clear()

    async def until_started(self, child: str, times: int = 1) -> None:
        """Wait until a child has become ready that many times since `clear`."""
        while self.started().count(child) < times:
            await self._more.wait()

    async def until_ended(self, child: str, times: int = 1) -> None:
        """Wait until a child has ended that many times since `clear`."""
        while [event.child for event in self.of(ChildEnded)].count(child) < times:
            await self._more.wait()


def _line(event: SupervisorEvent) -> str:
    match event:
        case ChildStarted(_, child):
            return f"+{child}"
        case ChildEnded(_, child, reason):
            return f"-{child} {reason.kind}"
        case RestartPlanned(_, children, _):
            return f"~{' '.join(children)}"
        case SupervisorEnding(_, reason):
            return f"! {reason.kind}"
