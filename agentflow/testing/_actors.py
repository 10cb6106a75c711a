"""Tools for tests of actors and supervisors: virtual time, a recorder of events, injected faults."""

import asyncio
import heapq
import selectors
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TypeVar

import anyio

from agentflow.actors import (
    Actor,
    Child,
    ChildEnded,
    ChildStarted,
    Clock,
    Context,
    ExitReason,
    RestartPlanned,
    Shutdown,
    SupervisorEnding,
    SupervisorEvent,
)

E = TypeVar("E", ChildStarted, ChildEnded, RestartPlanned, SupervisorEnding)


class VirtualTimer:
    """Pending callback of a `VirtualClock`."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback
        """Callback; `None` once cancelled."""

    def cancel(self) -> None:
        """Cancel the callback."""
        self.callback = None


class VirtualClock(Clock):
    """Clock that a test moves by hand. See docs/actors.md."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = count()
        self._timers: list[tuple[float, int, VirtualTimer]] = []

    def now(self) -> float:
        """Return the virtual time."""
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> VirtualTimer:
        """Call back once the clock has been moved that far."""
        timer = VirtualTimer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, seconds), next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the clock, and run the callbacks that fall due in order, each at its own time."""
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self._now = until

    def pending(self) -> int:
        """Return the number of pending callbacks."""
        return sum(timer.callback is not None for _, _, timer in self._timers)


class _IdleSelector(selectors.DefaultSelector):
    """Selector that moves the loop's time to the next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, jump to the next timer."""
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop whose time jumps to the next timer as soon as every task waits. See docs/actors.md.

    Everything on it runs in virtual time: sleeps, deadlines, `SystemClock`. An hour takes no real time, and a hang guard
    (`anyio.fail_after`) fires at once in a test that hangs. Threads and processes do not hold virtual time back, so do not
    use it for tests of these.
    """

    def __init__(self) -> None:
        self._idle_selector = _IdleSelector()
        super().__init__(self._idle_selector)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._idle_selector.now


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
        while [name for name, _ in self.ended()].count(child) < times:
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


class InjectedCrash(Exception):
    """Injected failure."""


class Fault(StrEnum):
    """Reaction of a `FaultyActor` to a message. See docs/actors.md."""

    CRASH = "crash"
    """Raise `InjectedCrash`."""
    SHUTDOWN = "shutdown"
    """Raise `Shutdown`."""
    END = "end"
    """Stop normally."""
    HANG = "hang"
    """Never return; it can be cancelled."""


class FaultyActor(Actor[object, object]):
    """Actor that echoes each message, and reacts to a `Fault` as that says. See docs/actors.md."""

    async def receive(self, message: object) -> object:
        """Echo a message, or inject a fault."""
        if message is Fault.END:
            self.stop()
        elif isinstance(message, Fault):
            await _inject(message)
        return message


async def _inject(fault: Fault) -> None:
    match fault:
        case Fault.CRASH:
            raise InjectedCrash("injected")
        case Fault.SHUTDOWN:
            raise Shutdown("injected")
        case Fault.HANG:
            await anyio.sleep_forever()
        case Fault.END:
            return


class Start(StrEnum):
    """Outcome of a start of a `FaultyChild`. See docs/actors.md."""

    OK = "ok"
    """Become ready."""
    FAIL = "fail"
    """Raise before becoming ready."""
    IGNORE = "ignore"
    """Ask to be ignored."""
    HANG = "hang"
    """Never become ready; it can be cancelled."""


@dataclass
class FaultyChild:
    """Factory of children whose starts follow a list; after its end, all starts succeed. See docs/actors.md.

    Use its `make` as the `start` of a spec; `current` is the last child.
    """

    starts: Iterable[Start] = ()
    """Outcomes of the starts, in order."""
    stubborn: bool = False
    """Let children ignore a stop request, so that they must be cancelled."""
    attempts: int = 0
    """Number of starts."""
    arguments: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    """Arguments of each start."""

    def __post_init__(self) -> None:
        self._script = iter(self.starts)
        self._children: list[_ScriptedChild] = []

    def make(self, *arguments: object) -> Child:
        """Create the next child."""
        self.attempts += 1
        self.arguments.append(arguments)
        child = _ScriptedChild(next(self._script, Start.OK), self.stubborn)
        self._children.append(child)
        return child

    def end(self, fault: Fault = Fault.END, which: int = -1) -> None:
        """End a child, by default the last one."""
        self._children[which].end(fault)


class _ScriptedChild:
    def __init__(self, start: Start, stubborn: bool) -> None:
        self._start = start
        self._stubborn = stubborn
        self._stop_requested = anyio.Event()
        self._fault = Fault.END

    def end(self, fault: Fault) -> None:
        self._fault = fault
        self._stop_requested.set()

    async def run(self, context: Context) -> None:
        match self._start:
            case Start.FAIL:
                raise InjectedCrash("injected at the start")
            case Start.IGNORE:
                context.ignore()
            case Start.HANG:
                await anyio.sleep_forever()
            case Start.OK:
                context.on_stop((lambda: None) if self._stubborn else self._stop_requested.set)
                context.ready()
        await self._stop_requested.wait()
        await _inject(self._fault)
