"""Sandboxes of branches: the state of each depends on its path alone.

A `BranchState` is the state after a path: its stateful actions and, while there is one, a sandbox in that state. After a
crash a state has only its history, which is replayed in a fresh sandbox when the state is needed. If a replayed action
returns something else, the recorded outcome counts, and the path is marked as diverged.

`BranchActions` runs the chosen actions of a tree, each branch in the sandbox of its own path. Every branch that continues
from a state holds a claim on it. A stateful action uses up a claim: it forks the state's sandbox or, with the last claim,
takes the sandbox over. So n branches cost n - 1 forks, and a chain costs none. An action of a stateless tool passes its
claim on. `EpisodeActions` runs those of an episode, a chain in a sandbox that is given.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeAlias

import anyio
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.errors import ErrorKind, RunStopped, StopCause, ToolFailure
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, Tool
from agentflow.telemetry import mark_spans, silent_spans
from agentflow.trace import Action, ActionOutcome, Failure, Isolation, Node, Observation

MAX_ATTEMPTS = 5
"""Attempts at an action that an outside process may have ended."""
EQUAL_OUTCOMES = 3
"""Equal outcomes in a row after which an action itself is held responsible: a sandbox may be killed twice."""
MAX_REPLAYS = 3
"""Replays of a history before a different outcome is accepted: an outside process may have killed the sandbox."""
MAX_FORK_ATTEMPTS = 3
"""Attempts to fork: a fork may fail because the sandbox or its copy was killed."""

_EXTERNAL_FAILURES = frozenset(
    {
        ErrorKind.SESSION_NOT_FOUND,
        ErrorKind.UNAVAILABLE,
        ErrorKind.FAILED,
        ErrorKind.CANCELLED,
        ErrorKind.BUSY,
    }
)
_KILLED = frozenset({"exit code 137", "exit code 143", "exit code -9", "exit code -15"})

Prepare: TypeAlias = Callable[[Sandbox], Awaitable[None]]
"""Brings a fresh session into the initial state of a task. See docs/engine.md."""


class ExecutorPort(Protocol):
    """Executor of a grower: `agentflow.team.Executor`, or any class with this method. See docs/engine.md."""

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool in a sandbox. A failed call is an outcome."""
        ...


class Unforkable(StrEnum):
    """Policy for a sandbox that cannot be forked and whose path cannot be replayed safely. See docs/engine.md."""

    CHAIN = "chain"
    """The first child continues in its parent's sandbox; its siblings are not tried."""
    REFUSE = "refuse"
    """No child is tried."""


class CannotBranch(Exception):
    """The state cannot be forked, and its path cannot be replayed safely."""


@dataclass(frozen=True, slots=True)
class PastAction:
    """An action in the history of a state."""

    key: str
    """Path key of the node that ran it, or number of the turn."""
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


def is_repeatable(tool: Tool) -> bool:
    """Tell whether repeating a call of the tool is safe. See docs/engine.md."""
    return tool.hints.read_only or tool.hints.idempotent


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
    async def reserve(self, width: int, prepare: Prepare | None = None) -> AsyncGenerator["TreeSandboxes"]:
        """Reserve sandboxes for a tree of this width. Trees wait in order, so they cannot deadlock.

        Sandboxes still open at the end are closed.

        :param prepare: brings a fresh sandbox into the initial state.
        """
        taken = 0
        sandboxes = TreeSandboxes(self.base, prepare)
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
        return is_repeatable(self.tools[action.tool])


class SandboxSource(Protocol):
    """Source of sandboxes in the initial state."""

    async def fresh(self) -> Sandbox:
        """Return a sandbox in the initial state."""
        ...

    async def discard(self, sandbox: Sandbox) -> None:
        """Close a sandbox that is not needed any more."""
        ...


class TreeSandboxes:
    """Sandboxes of one tree: forks of the base, or of each other. Implements `SandboxSource`."""

    def __init__(self, base: Sandbox, prepare: Prepare | None = None) -> None:
        self._base = base
        self._prepare = prepare
        self._open: dict[Sandbox, None] = {}

    async def fresh(self) -> Sandbox:
        """Return an unused sandbox in the initial state."""
        sandbox = await self.fork(self._base)
        if self._prepare is not None:
            await self._prepare(sandbox)
        return sandbox

    async def fork(self, sandbox: Sandbox) -> Sandbox:
        """Return a copy of a sandbox."""
        copy = await sandbox.fork()
        self._open[copy] = None
        return copy

    async def discard(self, sandbox: Sandbox) -> None:
        """Close a sandbox, even if it has already ended."""
        self._open.pop(sandbox, None)
        with suppress(ToolFailure):
            await sandbox.close()

    async def close(self) -> None:
        """Close all sandboxes."""
        await together([partial(self.discard, sandbox) for sandbox in self._open])


class EpisodeSandbox:
    """The sandbox of an episode, which starts its session anew in the initial state. Implements `SandboxSource`."""

    def __init__(self, sandbox: Sandbox, prepare: Prepare | None) -> None:
        self._sandbox = sandbox
        self._prepare = prepare
        self._is_used = False

    async def fresh(self) -> Sandbox:
        """Return the sandbox in the initial state, in which the caller gives it."""
        if self._is_used:
            await self._sandbox.destroy_session()
            if self._prepare is not None:
                await self._prepare(self._sandbox)
        self._is_used = True
        return self._sandbox

    async def discard(self, sandbox: Sandbox) -> None:
        """Do nothing: the next session replaces this one."""


class ReplayableActions:
    """Runs actions, and replays histories of actions in fresh sandboxes."""

    def __init__(
        self, page: Page, tools: Mapping[str, Tool], executor: ExecutorPort, source: SandboxSource
    ) -> None:
        self._page = page
        self._tools = tools
        self._executor = executor
        self._source = source

    async def _act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        if self._tools[action.tool].hints.changes_world:
            # A crash must not lose the decision that led to an external effect, even if repeating it is safe.
            await self._page.settle()
        return await self._executor.act(sandbox, action)

    async def _rebuild(self, history: Sequence[PastAction]) -> Sandbox:
        """Return a fresh sandbox in which the history was replayed."""
        for attempt in range(1, MAX_REPLAYS + 1):
            sandbox = await self._source.fresh()
            if await self._replay(sandbox, history, is_last=attempt == MAX_REPLAYS):
                return sandbox
            await self._source.discard(sandbox)
        raise AssertionError("the last attempt accepts any outcome")

    async def _replay(self, sandbox: Sandbox, history: Sequence[PastAction], *, is_last: bool) -> bool:
        """Replay a history; stop at the first outcome that differs, unless it must be accepted."""
        for past in history:
            with silent_spans():
                outcome = await self._executor.act(sandbox, past.action)
            if (outcome.observation, outcome.lost) == (past.outcome.observation, past.outcome.lost):
                continue
            if not (is_last or self._is_external(past.action)):
                return False
            key = f"diverged/{past.key}"
            if key not in self._page:
                await self._page.record(key, True)
        return True

    async def _copy(self, state: BranchState, sandboxes: TreeSandboxes) -> tuple[Sandbox, Isolation, str]:
        """Return a copy of a state, how it was made, and the reason if it is no fork.

        :raises CannotBranch: if it can be neither forked nor replayed safely.
        """
        if not state.history:
            return await sandboxes.fresh(), Isolation.FORK, ""
        reason = ""
        for _ in range(MAX_FORK_ATTEMPTS):
            if state.sandbox is None:
                state.sandbox = await self._rebuild(state.history)
            try:
                return await sandboxes.fork(state.sandbox), Isolation.FORK, ""
            except ToolFailure as failure:
                reason = failure.message
                if failure.kind is not ErrorKind.CANNOT_FORK:
                    # The sandbox is lost, but its state can be rebuilt from its history.
                    await sandboxes.discard(state.sandbox)
                    state.sandbox = None
        if all(is_repeatable(self._tools[past.action.tool]) for past in state.history):
            return await self._rebuild(state.history), Isolation.REPLAY, reason
        raise CannotBranch(reason)

    def _is_external(self, action: Action) -> bool:
        """Tell whether repeating the action may do harm that a fresh sandbox cannot undo."""
        tool = self._tools[action.tool]
        return tool.hints.open_world and not is_repeatable(tool)


class EpisodeActions(ReplayableActions):
    """Runs the actions of one episode, or of one path of a branching one, in a sandbox of its own."""

    def __init__(
        self,
        page: Page,
        tools: Mapping[str, Tool],
        executor: ExecutorPort,
        source: SandboxSource,
        base: Sandbox,
        state: BranchState | None = None,
    ) -> None:
        """:param source: makes the sandbox, when the first stateful action needs one.
        :param base: sandbox of stateless tools.
        :param state: state in which the actions begin; `None`: the initial one.
        """
        super().__init__(page, tools, executor, source)
        self.state = state or BranchState()
        """State after the actions so far."""
        self._base = base
        self._sessions = 0
        self._inherited = len(self.state.history)

    @property
    def diverged(self) -> tuple[int, ...]:
        """Turns whose action returned something else when it was replayed."""
        turns = dict.fromkeys(int(past.key) for past in self.state.history)
        return tuple(turn for turn in turns if f"diverged/{turn}" in self._page)

    async def run(self, action: Action) -> ActionOutcome:
        """Run an action in the current state."""
        if not self._tools[action.tool].stateful:
            return await self._act(self._base, action)
        sandbox, session = await self._catch_up()
        outcome = await self._act(sandbox, action)
        if outcome.failure is not None and outcome.failure.kind == ErrorKind.SESSION_NOT_FOUND:
            # The session ended before the action ran; the next call starts another one.
            if session == self._sessions:
                await self.release()
            sandbox, _ = await self._catch_up()
            outcome = await self._act(sandbox, action)
        return outcome

    def add(self, turn: int, action: Action, outcome: ActionOutcome, *, is_current: bool) -> None:
        """Add an action to the history.

        :param is_current: it ran in the current session, not in an earlier one.
        """
        if self._tools[action.tool].stateful:
            if self._inherited:
                self._inherited -= 1
                return
            self.state.history += (PastAction(str(turn), action, outcome),)
            if not is_current:
                self.state.sandbox = None

    async def branch(self, sandboxes: TreeSandboxes) -> tuple[BranchState, Isolation, str]:
        """Return a copy of the state, how it was made, and the reason if it is no fork.

        :raises CannotBranch: if it can be neither forked nor replayed safely.
        """
        if not self.state.history:
            return BranchState(), Isolation.SHARED, ""
        async with self.state.lock:
            sandbox, isolation, reason = await self._copy(self.state, sandboxes)
        return BranchState(self.state.history, sandbox), isolation, reason

    async def release(self) -> None:
        """Close the sandbox. The next action makes another one in the same state."""
        sandbox, self.state.sandbox = self.state.sandbox, None
        if sandbox is not None:
            await self._source.discard(sandbox)

    async def _catch_up(self) -> tuple[Sandbox, int]:
        """Return a sandbox in the current state, and the number of its session."""
        async with self.state.lock:
            if self.state.sandbox is None:
                self.state.sandbox = await self._rebuild(self.state.history)
                self._sessions += 1
            return self.state.sandbox, self._sessions


BranchResult: TypeAlias = tuple[Node, BranchState]
"""A step with its outcome, and the state from which its children continue, including a claim."""
Job: TypeAlias = Callable[[], Awaitable[BranchResult]]
"""Remaining work of one branch."""


class BranchActions(ReplayableActions):
    """Runs the chosen actions of one tree."""

    def __init__(
        self,
        page: Page,
        executor: ExecutorPort,
        run_sandboxes: BranchSandboxes,
        sandboxes: TreeSandboxes,
        unforkable: Unforkable,
    ) -> None:
        super().__init__(page, run_sandboxes.tools, executor, sandboxes)
        self._base = run_sandboxes.base
        self._sandboxes = sandboxes
        self._unforkable = unforkable

    async def release(self, *states: BranchState) -> None:
        """Give up a claim on each state; the last claim on a state closes its sandbox."""
        unused: list[Sandbox] = []
        for state in states:
            state.claims -= 1
            if state.claims == 0 and state.sandbox is not None:
                unused.append(state.sandbox)
                state.sandbox = None
        await together([partial(self._sandboxes.discard, sandbox) for sandbox in unused])

    async def act(
        self, state: BranchState, keys: Sequence[str], choices: Sequence[Node]
    ) -> list[BranchResult]:
        """Run the actions of a node's children; this uses up the parent's claim on its state.

        :param keys: path keys of the children.
        :param choices: the chosen steps, without outcomes.
        """
        if not choices:
            await self.release(state)
            return []
        state.share(len(choices))
        results: dict[str, BranchResult] = {}
        for key, choice in zip(keys, choices, strict=True):
            step = self._page.recall(f"act/{key}", Node)
            if step is not None:
                results[key] = await self._resume(
                    state, key, replace(choice, outcome=step.outcome, isolation=step.isolation)
                )
        pending = [pair for pair in zip(keys, choices, strict=True) if pair[0] not in results]
        jobs = await self._jobs(state, pending)
        done = await together(jobs)
        results.update(zip((key for key, _ in pending), done, strict=True))
        return [results[key] for key in keys]

    async def _jobs(self, state: BranchState, pending: Sequence[tuple[str, Node]]) -> list[Job]:
        """Return the jobs in order. Every branch has its sandbox before the first one acts."""
        jobs: list[Job] = []
        refused = ""
        for index, (key, choice) in enumerate(pending):
            if not self._tools[choice.call.tool].stateful:
                jobs.append(partial(self._act_shared, state, key, choice))
            elif refused:
                jobs.append(partial(self._refuse, state, key, choice, refused))
            else:
                try:
                    jobs.append(await self._branch(state, key, choice))
                except CannotBranch as error:
                    refused = f"its sandbox cannot be forked: {error}"
                    others = sum(
                        self._tools[sibling.call.tool].stateful for _, sibling in pending[index + 1 :]
                    )
                    jobs.append(await self._branch_alone(state, key, choice, others, refused))
        return jobs

    async def _branch(self, state: BranchState, key: str, choice: Node) -> Job:
        """Return the job of a branch in a sandbox of its own; it uses up a claim on the state.

        :raises CannotBranch: if other branches need the state too and it cannot be copied. The claim is kept.
        :raises RunStopped: if no sandbox can be started any more.
        """
        async with state.lock:
            if state.claims == 1:
                sandbox, isolation = (state.sandbox or await self._rebuild(state.history)), Isolation.FORK
                state.sandbox = None
                state.claims = 0
            else:
                sandbox, isolation, _ = await self._copy(state, self._sandboxes)
                await self.release(state)
        return partial(self._act_isolated, state.history, sandbox, isolation, key, choice)

    async def _branch_alone(
        self, state: BranchState, key: str, choice: Node, others: int, reason: str
    ) -> Job:
        """Apply the policy for unforkable sandboxes: the first child takes its parent's sandbox, or none does."""
        for _ in range(others):
            await self.release(state)
        if self._unforkable is Unforkable.CHAIN and state.claims == 1:
            return await self._branch(state, key, choice)
        await self.release(state)
        return partial(self._refuse, state, key, choice, reason)

    async def _act_shared(self, state: BranchState, key: str, choice: Node) -> BranchResult:
        with mark_spans(node=key, effect=f"act/{key}", isolation=Isolation.SHARED):
            outcome = await self._act(self._base, choice.call)
        return await self._record(key, outcome, Isolation.SHARED, choice, state)

    async def _act_isolated(
        self,
        history: tuple[PastAction, ...],
        sandbox: Sandbox,
        isolation: Isolation,
        key: str,
        choice: Node,
    ) -> BranchResult:
        action = choice.call
        with mark_spans(node=key, effect=f"act/{key}", isolation=isolation):
            outcome = await self._act(sandbox, action)
        equal = 1
        for _ in range(1, MAX_ATTEMPTS):
            if equal == EQUAL_OUTCOMES or not self._may_be_external(action, outcome):
                break
            # An outside process may have killed the sandbox. Repeat from the same state until outcomes are equal.
            await self._sandboxes.discard(sandbox)
            sandbox = await self._rebuild(history)
            with mark_spans(node=key, effect=f"act/{key}", isolation=isolation):
                before, outcome = outcome, await self._executor.act(sandbox, action)
            equal = equal + 1 if outcome == before else 1
        if outcome.failure is not None and outcome.failure.kind == ErrorKind.UNAVAILABLE:
            message = f"no sandbox is available: {outcome.failure.message} Run the same command to resume."
            raise RunStopped(StopCause.SANDBOX, message)
        state = BranchState((*history, PastAction(key, action, outcome)), sandbox)
        return await self._record(key, outcome, isolation, choice, state)

    async def _refuse(self, state: BranchState, key: str, choice: Node, reason: str) -> BranchResult:
        """Record an action that was not tried. Its claim was released, so its state has only a history."""
        outcome = ActionOutcome(Observation(), Failure(ErrorKind.CANNOT_FORK, f"not tried: {reason}"))
        return await self._record(key, outcome, Isolation.SHARED, choice, BranchState(state.history))

    async def _resume(self, state: BranchState, key: str, step: Node) -> BranchResult:
        """Return a step completed before a crash; its state has only a history."""
        refused = is_refused(step)
        if step.isolation is Isolation.SHARED and not refused:
            return step, state
        await self.release(state)
        if refused:
            return step, BranchState(state.history)
        return step, BranchState((*state.history, PastAction(key, step.call, step.outcome)))

    async def _record(
        self, key: str, outcome: ActionOutcome, isolation: Isolation, choice: Node, state: BranchState
    ) -> BranchResult:
        step = replace(choice, outcome=outcome, isolation=isolation)
        await self._page.note(f"act/{key}", step)
        return step, state

    def _may_be_external(self, action: Action, outcome: ActionOutcome) -> bool:
        """Tell whether an outside process may have ended the action, and repeating it is safe."""
        if self._is_external(action):
            return False
        failed = outcome.failure is not None and outcome.failure.kind in _EXTERNAL_FAILURES
        return failed or outcome.lost or outcome.trouble in _KILLED


def is_refused(step: Node) -> bool:
    """Tell whether the action was not tried: its path cannot be replayed, so nothing can follow it."""
    return step.failure is not None and step.failure.kind == ErrorKind.CANNOT_FORK
