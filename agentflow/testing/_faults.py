"""Children that fail as told."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import anyio

from agentflow.actors import Actor, Child, Context, Shutdown


class InjectedCrash(Exception):
    """The failure of a child that was told to fail."""


class Fault(StrEnum):
    """What a `FaultyActor` can be told to do instead of answering."""

    CRASH = "crash"
    """Raise `InjectedCrash`."""
    SHUTDOWN = "shutdown"
    """Raise `Shutdown`."""
    END = "end"
    """Stop, normally."""
    HANG = "hang"
    """Never come back from this message; it can be cancelled."""


class FaultyActor(Actor[object, object]):
    """Answers each message with the message, and does what a `Fault` says."""

    async def receive(self, message: object) -> object:
        """Do as told."""
        match message:
            case Fault.CRASH:
                raise InjectedCrash("as told")
            case Fault.SHUTDOWN:
                raise Shutdown("as told")
            case Fault.END:
                self.stop()
            case Fault.HANG:
                await anyio.sleep_forever()
            case _:
                pass
        return message


class Start(StrEnum):
    """How a start of a `FaultyChild` goes."""

    OK = "ok"
    """It becomes ready."""
    FAIL = "fail"
    """It raises before it is ready."""
    IGNORE = "ignore"
    """It asks to be ignored."""
    HANG = "hang"
    """It never becomes ready; it can be cancelled."""


@dataclass
class FaultyChild:
    """Makes children, one after the other, whose starts go by a list; when that is used up, they start well.

    Give its `make` to a spec as `start`; `current` is the one that was made last.
    """

    starts: Iterable[Start] = ()
    """How the starts go, in order."""
    stubborn: bool = False
    """Whether the children don't end when asked, only when cancelled."""
    attempts: int = 0
    """Starts so far."""
    arguments: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    """The arguments of each start."""

    def __post_init__(self) -> None:
        self._script = iter(self.starts)
        self._children: list[_ScriptedChild] = []

    def make(self, *arguments: object) -> Child:
        """The next child."""
        self.attempts += 1
        self.arguments.append(arguments)
        child = _ScriptedChild(next(self._script, Start.OK), self.stubborn)
        self._children.append(child)
        return child

    def end(self, fault: Fault = Fault.END, which: int = -1) -> None:
        """Make a child (by default the last made) end by itself."""
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
                raise InjectedCrash("at its start, as told")
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
                raise InjectedCrash("as told")
            case Fault.SHUTDOWN:
                raise Shutdown("as told")
            case Fault.HANG:
                await anyio.sleep_forever()
            case Fault.END:
                return


def _do_nothing() -> None:
    return
