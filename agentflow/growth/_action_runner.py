"""Running the chosen actions of a level, each branch in the sandbox of its own path."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from agentflow.actors import together
from agentflow.errors import ErrorKind, RunStopped, StopCause
from agentflow.growth._action_chooser import ChosenAction
from agentflow.growth._branch_sandboxes import (
    BranchSandboxes,
    BranchState,
    CannotBranch,
    PastAction,
    TreeSandboxes,
)
from agentflow.growth._records import ActionRecord
from agentflow.growth._settings import ExecutorPort, Unforkable
from agentflow.journal import Page
from agentflow.sandbox import Sandbox
from agentflow.trajectory import Action, ActionOutcome, Failure, Isolation, Observation

MAX_ATTEMPTS = 5
"""Attempts at an action that an outside process may have ended."""
EQUAL_OUTCOMES = 3
"""Equal outcomes in a row after which an action itself is held responsible: a sandbox may be killed twice."""

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


class BranchResult(NamedTuple):
    """A branch after its action."""

    record: ActionRecord
    """The completed action."""
    state: BranchState
    """State from which its children continue, including a claim."""


Job = Callable[[], Awaitable[BranchResult]]
"""Remaining work of one branch."""


class ActionRunner:
    """Runs the chosen actions of one tree."""

    def __init__(
        self,
        page: Page,
        executor: ExecutorPort,
        run_sandboxes: BranchSandboxes,
        tree_sandboxes: TreeSandboxes,
        unforkable: Unforkable,
    ) -> None:
        self._page = page
        self._executor = executor
        self._run_sandboxes = run_sandboxes
        self._sandboxes = tree_sandboxes
        self._unforkable = unforkable

    async def act(
        self, state: BranchState, keys: Sequence[str], choices: Sequence[ChosenAction]
    ) -> list[BranchResult]:
        """Run the actions of a node's children; this uses up the parent's claim on its state.

        :param keys: path keys of the children.
        """
        if not choices:
            await self._sandboxes.release(state)
            return []
        state.share(len(choices))
        results: dict[str, BranchResult] = {}
        for key, choice in zip(keys, choices, strict=True):
            record = self._page.recall(f"act/{key}", ActionRecord)
            if record is not None:
                results[key] = await self._resume(state, key, choice.action, record)
        pending = [pair for pair in zip(keys, choices, strict=True) if pair[0] not in results]
        jobs = await self._prepare(state, pending)
        done = await together(jobs)
        results.update(zip((key for key, _ in pending), done, strict=True))
        return [results[key] for key in keys]

    async def _prepare(self, state: BranchState, pending: Sequence[tuple[str, ChosenAction]]) -> list[Job]:
        """Return the jobs in order. Every branch has its sandbox before the first one acts."""
        jobs: list[Job] = []
        refused = ""
        for index, (key, choice) in enumerate(pending):
            if not self._stateful(choice):
                jobs.append(partial(self._act_shared, state, key, choice.action))
            elif refused:
                jobs.append(partial(self._refuse, state, key, choice.action, refused))
            else:
                try:
                    jobs.append(await self._branch(state, key, choice.action))
                except CannotBranch as error:
                    refused = f"its sandbox cannot be forked: {error}"
                    others = sum(self._stateful(sibling) for _, sibling in pending[index + 1 :])
                    jobs.append(await self._branch_alone(state, key, choice.action, others, refused))
        return jobs

    def _stateful(self, choice: ChosenAction) -> bool:
        return self._run_sandboxes.tools[choice.action.tool].stateful

    async def _branch(self, state: BranchState, key: str, action: Action) -> Job:
        sandbox, isolation = await self._sandboxes.branch(state, self._replay)
        return partial(self._act_isolated, state.history, sandbox, isolation, key, action)

    async def _branch_alone(
        self, state: BranchState, key: str, action: Action, others: int, reason: str
    ) -> Job:
        """Apply the policy for unforkable sandboxes: the first child takes its parent's sandbox, or none does."""
        for _ in range(others):
            await self._sandboxes.release(state)
        if self._unforkable is Unforkable.CHAIN and state.claims == 1:
            return await self._branch(state, key, action)
        await self._sandboxes.release(state)
        return partial(self._refuse, state, key, action, reason)

    async def _act_shared(self, state: BranchState, key: str, action: Action) -> BranchResult:
        outcome = await self._act(self._run_sandboxes.base, action)
        return await self._record(key, ActionRecord(outcome, Isolation.SHARED), state)

    async def _act_isolated(
        self,
        history: tuple[PastAction, ...],
        sandbox: Sandbox,
        isolation: Isolation,
        key: str,
        action: Action,
    ) -> BranchResult:
        outcome = await self._act(sandbox, action)
        equal = 1
        for _ in range(1, MAX_ATTEMPTS):
            if equal == EQUAL_OUTCOMES or not self._may_be_external(action, outcome):
                break
            # An outside process may have killed the sandbox. Repeat from the same state until outcomes are equal.
            await self._sandboxes.discard(sandbox)
            sandbox = await self._sandboxes.rebuild(history, self._replay)
            before, outcome = outcome, await self._executor.act(sandbox, action)
            equal = equal + 1 if outcome == before else 1
        if outcome.failure is not None and outcome.failure.kind == ErrorKind.UNAVAILABLE:
            message = f"no sandbox is available: {outcome.failure.message} Run the same command to resume."
            raise RunStopped(StopCause.SANDBOX, message)
        state = BranchState((*history, PastAction(key, action, outcome)), sandbox)
        return await self._record(key, ActionRecord(outcome, isolation), state)

    async def _act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        if self._run_sandboxes.tools[action.tool].hints.changes_world:
            # A crash must not lose the decision that led to an external effect, even if repeating it is safe.
            await self._page.settle()
        return await self._executor.act(sandbox, action)

    async def _refuse(self, state: BranchState, key: str, action: Action, reason: str) -> BranchResult:
        """Record an action that was not tried. Its claim was given back, so its state has only a history."""
        outcome = ActionOutcome(Observation(), Failure(ErrorKind.CANNOT_FORK, f"not tried: {reason}"))
        return await self._record(key, ActionRecord(outcome, Isolation.SHARED), BranchState(state.history))

    async def _resume(
        self, state: BranchState, key: str, action: Action, record: ActionRecord
    ) -> BranchResult:
        """Return an action completed before a crash; its state has only a history."""
        failure = record.outcome.failure
        refused = failure is not None and failure.kind == ErrorKind.CANNOT_FORK
        if record.isolation is Isolation.SHARED and not refused:
            return BranchResult(record, state)
        await self._sandboxes.release(state)
        if refused:
            return BranchResult(record, BranchState(state.history))
        return BranchResult(record, BranchState((*state.history, PastAction(key, action, record.outcome))))

    async def _record(self, key: str, record: ActionRecord, state: BranchState) -> BranchResult:
        await self._page.note(f"act/{key}", record)
        return BranchResult(record, state)

    async def _replay(self, sandbox: Sandbox, past: PastAction, last: bool) -> bool:
        outcome = await self._executor.act(sandbox, past.action)
        same = (outcome.observation, outcome.lost) == (past.outcome.observation, past.outcome.lost)
        if same or not (last or self._is_external(past.action)):
            return same
        key = f"diverged/{past.path_key}"
        if key not in self._page:
            await self._page.record(key, True)
        return True

    def _may_be_external(self, action: Action, outcome: ActionOutcome) -> bool:
        """Tell whether an outside process may have ended the action, and repeating it is safe."""
        if self._is_external(action):
            return False
        failed = outcome.failure is not None and outcome.failure.kind in _EXTERNAL_FAILURES
        return failed or outcome.lost or outcome.trouble in _KILLED

    def _is_external(self, action: Action) -> bool:
        """Tell whether repeating the action may do harm that a fresh sandbox cannot undo."""
        hints = self._run_sandboxes.tools[action.tool].hints
        return hints.open_world and not self._run_sandboxes.is_repeatable(action)
