"""Where branches act: each in a sandbox whose state is that of its path and of nothing else.

A *place* is the state after a path. Whoever will go on from it holds a claim. An action that changes state uses a claim
up: it forks the place's sandbox, or takes it over if no claim but its own is left, so n branches cost n - 1 forks
and a chain costs none. An action without state leaves the place as it is and hands its claim on.

A place that was reached before the last crash has no sandbox any more, only its history. If somebody needs it, the
history is done again in a fresh sandbox.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import anyio

from agentflow.actors import together
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox, Tool
from agentflow.trajectory import Action, Isolation, Outcome

__all__ = ["CannotBranch", "Greenhouse", "Past", "Place", "Plot", "Replay"]

REPLAYS_TRIED = 3
"""Somebody may kill what a history is done again in: only what never comes out as it did has another outcome."""
FORKS_TRIED = 3
"""A copy may die on its way, or its parent be gone: only what fails again and again can't be forked."""

Replay = Callable[[Sandbox, "Past", bool], Awaitable[bool]]
"""Does a thing of the past again, and says whether to go on from there: it came out as then, or this try is the last."""


class CannotBranch(Exception):
    """The state of a place can't be copied, and its path can't be replayed without harm."""


@dataclass(frozen=True, slots=True)
class Past:
    """One action that changed a place's state."""

    spot: str
    """The node that did it, as its path."""
    action: Action
    """What was done."""
    outcome: Outcome
    """What came of it then."""


@dataclass(slots=True, eq=False)
class Place:
    """The state after a path."""

    history: tuple[Past, ...] = ()
    """What has changed it, from the root on."""
    sandbox: Sandbox | None = None
    """Where it lives, unless nothing has happened there yet or it went with a crash."""
    claims: int = 1
    """How many branches will go on from it."""
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    """Forks of one place happen one after the other, so that the last one finds itself alone."""

    def share(self, branches: int) -> None:
        """One claim becomes as many as there are branches."""
        self.claims += branches - 1


class Greenhouse:
    """All sandboxes of a run: the base one, on which what has no state runs, and one for each place of its trees."""

    def __init__(self, base: Sandbox, tools: Sequence[Tool], *, max_sandboxes: int = 128) -> None:
        """Describe it; whoever gives the base closes it.

        :param tools: the tools that may be used.
        :param max_sandboxes: how many may live at once; a tree that is wider than that grows alone.
        """
        self.base = base
        """Where what has no state runs; it never gets a session."""
        self.tools = {tool.name: tool for tool in tools}
        """What can be used, by name."""
        self._most = max_sandboxes
        self._room = anyio.Semaphore(max_sandboxes)
        self._turn = anyio.Lock()

    @property
    def stateful(self) -> bool:
        """Some tool changes state."""
        return any(tool.stateful for tool in self.tools.values())

    @asynccontextmanager
    async def plot(self, width: int) -> AsyncGenerator["Plot"]:
        """Room for a tree of that width, waited for in turn, so that no two trees wait for each other's.

        Whatever lives on it when it is left is ended.
        """
        taken = 0
        plot = Plot(self)
        try:
            if self.stateful:
                async with self._turn:
                    for _ in range(min(width, self._most)):
                        await self._room.acquire()
                        taken += 1
            yield plot
        finally:
            with anyio.CancelScope(shield=True):
                await plot.clear()
            for _ in range(taken):
                self._room.release()

    def harmless(self, action: Action) -> bool:
        """Doing it again changes nothing more."""
        hints = self.tools[action.tool].hints
        return hints.read_only or hints.idempotent


class Plot:
    """The sandboxes of one tree."""

    def __init__(self, greenhouse: Greenhouse) -> None:
        self._greenhouse = greenhouse
        self._alive: dict[Sandbox, None] = {}

    async def branch(self, place: Place, replay: Replay) -> tuple[Sandbox, Isolation]:
        """A sandbox in the state of the place for one branch, whose claim is used up.

        :raises CannotBranch: if other branches need the place too and it can't be copied. The claim is still there.
        :raises RunStopped: if no sandbox can be had any more.
        """
        async with place.turn:
            if place.claims == 1:
                sandbox = place.sandbox or await self.rebuild(place.history, replay)
                place.sandbox = None
                place.claims = 0
                return sandbox, Isolation.FORK
            copy = await self._copy(place, replay)
            await self.release(place)
            return copy

    async def rebuild(self, history: Sequence[Past], replay: Replay) -> Sandbox:
        """A fresh sandbox in which that history has been done again."""
        for tried in range(REPLAYS_TRIED):
            sandbox = await self._keep(self._greenhouse.base.fork)
            last = tried == REPLAYS_TRIED - 1
            if await _done_again(sandbox, history, replay, last=last):
                return sandbox
            await self.discard(sandbox)
        raise AssertionError("the last try is taken as it is")

    async def release(self, *places: Place) -> None:
        """Give a claim on each back; the last one on a place ends its sandbox."""
        ended: list[Sandbox] = []
        for place in places:
            place.claims -= 1
            if place.claims == 0 and place.sandbox is not None:
                ended.append(place.sandbox)
                place.sandbox = None
        await together([partial(self.discard, sandbox) for sandbox in ended])

    async def discard(self, sandbox: Sandbox) -> None:
        """End a sandbox; that it has ended by itself is fine."""
        self._alive.pop(sandbox, None)
        with suppress(ToolFailure):
            await sandbox.close()

    async def clear(self) -> None:
        """End all that still live."""
        await together([partial(self.discard, sandbox) for sandbox in self._alive])

    async def _copy(self, place: Place, replay: Replay) -> tuple[Sandbox, Isolation]:
        if not place.history:
            return await self.rebuild((), replay), Isolation.FORK
        reason = ""
        for _ in range(FORKS_TRIED):
            if place.sandbox is None:
                place.sandbox = await self.rebuild(place.history, replay)
            try:
                return await self._keep(place.sandbox.fork), Isolation.FORK
            except ToolFailure as failure:
                reason = failure.message
                if failure.kind is not ErrorKind.CANNOT_FORK:
                    # The sandbox itself is gone; its state is not, since it follows from its history.
                    await self.discard(place.sandbox)
                    place.sandbox = None
        if all(self._greenhouse.harmless(past.action) for past in place.history):
            return await self.rebuild(place.history, replay), Isolation.REPLAY
        raise CannotBranch(reason)

    async def _keep(self, make: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
        sandbox = await make()
        self._alive[sandbox] = None
        return sandbox


async def _done_again(sandbox: Sandbox, history: Sequence[Past], replay: Replay, *, last: bool) -> bool:
    """Whether a history was done again from its beginning to its end."""
    for past in history:
        if not await replay(sandbox, past, last):
            return False
    return True
