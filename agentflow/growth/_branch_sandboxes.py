"""Sandboxes of branches: the state of each depends on its path alone.

A `BranchState` is the state after a path. Every branch that continues from it holds a claim. A stateful action uses up
a claim: it forks the state's sandbox or, with the last claim, takes the sandbox over. So n branches cost n - 1 forks, and
a chain costs none. An action of a stateless tool passes its claim on.

After a crash a state has no sandbox, only its history. When it is needed, the history is replayed in a fresh sandbox.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import anyio

from agentflow.actors import together
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox, Tool
from agentflow.trajectory import Action, ActionOutcome, Isolation

MAX_REPLAYS = 3
"""Replays of a history before a different outcome is accepted: an outside process may have killed the sandbox."""
MAX_FORK_ATTEMPTS = 3
"""Attempts to fork: a fork may fail because the sandbox or its copy was killed."""

Replay = Callable[[Sandbox, "PastAction", bool], Awaitable[bool]]
"""Replays an action and tells whether to continue: the outcome is the recorded one, or this is the last attempt."""


class CannotBranch(Exception):
    """The state cannot be forked, and its path cannot be replayed safely."""


@dataclass(frozen=True, slots=True)
class PastAction:
    """An action in the history of a state."""

    path_key: str
    """Path key of the node that ran it."""
    action: Action
    """The action."""
    outcome: ActionOutcome
    """Its recorded outcome."""


@dataclass(slots=True, eq=False)
class BranchState:
    """State after a path."""

    history: tuple[PastAction, ...] = ()
    """Stateful actions from the root on."""
    sandbox: Sandbox | None = None
    """Sandbox in this state; `None` before the first action and after a crash."""
    claims: int = 1
    """Number of branches that will continue from this state."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Serialises forks, so that the last branch sees that it is alone."""

    def share(self, branches: int) -> None:
        """Turn one claim into one per branch."""
        self.claims += branches - 1


class BranchSandboxes:
    """All sandboxes of a run: a base sandbox for stateless tools, and one for each state of its trees.

    Example::

        async with Sandbox(backends=["bash"]) as base:
            sandboxes = BranchSandboxes(base, await base.tools("bash_run"))
    """

    def __init__(self, base: Sandbox, tools: Sequence[Tool], *, max_sandboxes: int = 128) -> None:
        """Describe the sandboxes; the caller closes the base.

        :param tools: the tools that may be used.
        :param max_sandboxes: maximum number of concurrent sandboxes; a wider tree grows alone.
        """
        self.base = base
        """Sandbox for stateless tools; it never gets a session."""
        self.tools = {tool.name: tool for tool in tools}
        """Available tools by name."""
        self._max_sandboxes = max_sandboxes
        self._slots = anyio.Semaphore(max_sandboxes)
        self._reserving = anyio.Lock()

    @property
    def stateful(self) -> bool:
        """Some tool has state."""
        return any(tool.stateful for tool in self.tools.values())

    @asynccontextmanager
    async def reserve(self, width: int) -> AsyncGenerator["TreeSandboxes"]:
        """Reserve sandboxes for a tree of this width. Trees wait in order, so they cannot deadlock.

        Sandboxes still open at the end are closed.
        """
        taken = 0
        sandboxes = TreeSandboxes(self)
        try:
            if self.stateful:
                async with self._reserving:
                    for _ in range(min(width, self._max_sandboxes)):
                        await self._slots.acquire()
                        taken += 1
            yield sandboxes
        finally:
            with anyio.CancelScope(shield=True):
                await sandboxes.close()
            for _ in range(taken):
                self._slots.release()

    def is_repeatable(self, action: Action) -> bool:
        """Tell whether repeating an action is safe."""
        hints = self.tools[action.tool].hints
        return hints.read_only or hints.idempotent


class TreeSandboxes:
    """Sandboxes of one tree."""

    def __init__(self, sandboxes: BranchSandboxes) -> None:
        self._all = sandboxes
        self._open: dict[Sandbox, None] = {}

    async def branch(self, state: BranchState, replay: Replay) -> tuple[Sandbox, Isolation]:
        """Return a sandbox in this state for one branch, and use up its claim.

        :raises CannotBranch: if other branches need the state too and it cannot be copied. The claim is kept.
        :raises RunStopped: if no sandbox can be started any more.
        """
        async with state.lock:
            if state.claims == 1:
                sandbox = state.sandbox or await self.rebuild(state.history, replay)
                state.sandbox = None
                state.claims = 0
                return sandbox, Isolation.FORK
            copy = await self._copy(state, replay)
            await self.release(state)
            return copy

    async def rebuild(self, history: Sequence[PastAction], replay: Replay) -> Sandbox:
        """Return a fresh sandbox in which the history was replayed."""
        for attempt in range(1, MAX_REPLAYS + 1):
            sandbox = await self._track(self._all.base.fork)
            if await _replay_all(sandbox, history, replay, last=attempt == MAX_REPLAYS):
                return sandbox
            await self.discard(sandbox)
        raise AssertionError("the last attempt accepts any outcome")

    async def release(self, *states: BranchState) -> None:
        """Give back a claim on each state; the last claim on a state closes its sandbox."""
        unused: list[Sandbox] = []
        for state in states:
            state.claims -= 1
            if state.claims == 0 and state.sandbox is not None:
                unused.append(state.sandbox)
                state.sandbox = None
        await together([partial(self.discard, sandbox) for sandbox in unused])

    async def discard(self, sandbox: Sandbox) -> None:
        """Close a sandbox, even if it has already ended."""
        self._open.pop(sandbox, None)
        with suppress(ToolFailure):
            await sandbox.close()

    async def close(self) -> None:
        """Close all sandboxes."""
        await together([partial(self.discard, sandbox) for sandbox in self._open])

    async def _copy(self, state: BranchState, replay: Replay) -> tuple[Sandbox, Isolation]:
        if not state.history:
            return await self.rebuild((), replay), Isolation.FORK
        reason = ""
        for _ in range(MAX_FORK_ATTEMPTS):
            if state.sandbox is None:
                state.sandbox = await self.rebuild(state.history, replay)
            try:
                return await self._track(state.sandbox.fork), Isolation.FORK
            except ToolFailure as failure:
                reason = failure.message
                if failure.kind is not ErrorKind.CANNOT_FORK:
                    # The sandbox is lost, but its state can be rebuilt from its history.
                    await self.discard(state.sandbox)
                    state.sandbox = None
        if all(self._all.is_repeatable(past.action) for past in state.history):
            return await self.rebuild(state.history, replay), Isolation.REPLAY
        raise CannotBranch(reason)

    async def _track(self, make: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
        sandbox = await make()
        self._open[sandbox] = None
        return sandbox


async def _replay_all(sandbox: Sandbox, history: Sequence[PastAction], replay: Replay, *, last: bool) -> bool:
    """Replay a history; stop at the first outcome that is not accepted."""
    for past in history:
        if not await replay(sandbox, past, last):
            return False
    return True
