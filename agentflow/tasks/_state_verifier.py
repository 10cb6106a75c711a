"""Verifier of tasks of state: reads the state in a fork of the agent's session."""

from collections.abc import Sequence

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.growth import BranchSandboxes, ExecutorPort
from agentflow.sandbox import Sandbox
from agentflow.tasks._contract import TaskAttempt, VerifiableTask
from agentflow.tasks._states import StateCondition, StateReader
from agentflow.trace import TaskVerdict


class StateVerifier:
    """Verifies the states of a terminal, a household, a desktop. See docs/tasks.md."""

    def __init__(self, reader: StateReader, *, executor: ExecutorPort, sandboxes: BranchSandboxes) -> None:
        """:param reader: reads states.
        :param executor: makes the tool calls.
        :param sandboxes: sandboxes of the run.
        """
        self._reader = reader
        self._executor = executor
        self._sandboxes = sandboxes

    @property
    def name(self) -> str:
        """Name of the kind."""
        return self._reader.name

    async def verify(
        self, task: VerifiableTask, attempt: TaskAttempt, session: Sandbox | None = None
    ) -> TaskVerdict:
        """Verify an attempt in a fork of the agent's session, or make it in a session of its own.

        A session that can't be forked, such as a desktop, is read itself.

        :raises RunStopped: if the run can't continue.
        """
        conditions = [StateCondition.of(predicate) for predicate in task.verifier]
        try:
            if session is None:
                async with self._sandboxes.reserve(1):
                    return await self._make(task, attempt, conditions)
            return await self._judge_fork(session, conditions)
        except ToolFailure as failure:
            return TaskVerdict(False, error=failure.message)

    async def _judge_fork(self, session: Sandbox, conditions: Sequence[StateCondition]) -> TaskVerdict:
        try:
            fork = await session.fork()
        except ToolFailure as failure:
            if failure.kind is not ErrorKind.CANNOT_FORK:
                raise
            return await self._judge(session, conditions)
        async with fork:
            return await self._judge(fork, conditions)

    async def _make(
        self, task: VerifiableTask, attempt: TaskAttempt, conditions: Sequence[StateCondition]
    ) -> TaskVerdict:
        sandbox = await self.open(task)
        try:
            for action in attempt.actions:
                await self._executor.act(sandbox, action)
            return await self._judge(sandbox, conditions)
        finally:
            await sandbox.close()

    async def open(self, task: VerifiableTask) -> Sandbox:
        """Return a sandbox in the initial state of a task; the caller closes it. Attempts are made in forks of it.

        :raises ToolFailure: if the state can't be reached.
        """
        sandbox = await self._sandboxes.base.fork()
        try:
            await self.prepare(task, sandbox)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def prepare(self, task: VerifiableTask, sandbox: Sandbox) -> None:
        """Bring a fresh sandbox into the initial state of a task.

        :raises ToolFailure: if the state can't be reached.
        """
        if task.setup.backends:
            await sandbox.create_session(task.setup.backends)
        for action in task.setup.actions:
            outcome = await self._executor.act(sandbox, action)
            if outcome.failure is not None:
                kind = ErrorKind(outcome.failure.kind)
                raise ToolFailure(kind, f"the initial state can't be reached: {outcome.failure.message}")

    async def _judge(self, sandbox: Sandbox, conditions: Sequence[StateCondition]) -> TaskVerdict:
        state = await self._reader.read(sandbox, conditions)
        failed = tuple(
            self._reader.says(condition).split("\n")[0]
            for condition in conditions
            if not condition.holds(state)
        )
        return TaskVerdict(not failed, failed)
