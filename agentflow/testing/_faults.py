"""Actors and children with injected faults."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import anyio

from agentflow.actors import Actor, Child, Context, Shutdown


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
        match message:
            case Fault.CRASH:
                raise InjectedCrash("injected")
            case Fault.SHUTDOWN:
                raise Shutdown("injected")
            case Fault.END:
                self.stop()
            case Fault.HANG:
                await anyio.sleep_forever()
            case _:
                pass
        return message


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
        self._told = anyio.Event()
        self._fault = Fault.END

    def end(self, fault: Fault) -> None:
        self._fault = fault
        self._told.set()

    async def run(self, context: Context) -> None:
        match self._start:
            case Start.FAIL:
                raise InjectedCrash("injected at the start")
            case Start.IGNORE:
                context.ignore()
            case Start.HANG:
                await anyio.sleep_forever()
            case Start.OK:
                context.on_stop(_do_nothing if self._stubborn else self._told.set)
                context.ready()
        await self._told.wait()
        match self._fault:
            case Fault.CRASH:
                raise InjectedCrash("injected")
            case Fault.SHUTDOWN:
                raise Shutdown("injected")
            case Fault.HANG:
                await anyio.sleep_forever()
            case Fault.END:
                return


def _do_nothing() -> None:
    return
