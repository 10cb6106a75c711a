"""Tasks of state: from a node of a tree to a descendant, verified by conditions on the state."""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from agentflow.actors import together
from agentflow.engine import BranchSandboxes, ExecutorPort
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.journal import Page
from agentflow.sandbox import Sandbox
from agentflow.tasks._contract import (
    GOLD,
    NO_OP,
    DerivedTasks,
    RejectedTask,
    TaskAttempt,
    TaskFinding,
    TaskSetup,
    VerifiableTask,
    task_id,
)
from agentflow.tasks._instructions import InstructionAuthor, InstructionSettings, write_instruction
from agentflow.tasks._states import StateCondition, StateReader
from agentflow.tasks._survey import TaskCandidate, candidates, survey
from agentflow.trace import TaskVerdict, Tree, Usage

SHORTCUT = "shortcut"
"""Name of the attempt to pass without solving."""


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


class StateTaskSettings(Struct, frozen=True, kw_only=True):
    """Settings of tasks of state."""

    max_tasks: int = 3
    """Maximum number of tasks per tree."""
    min_steps: int = 1
    """Minimum number of actions of a solution."""
    instruction: InstructionSettings = InstructionSettings()
    """Settings of the instruction."""


class _Candidates(Struct, frozen=True):
    found: tuple[TaskCandidate, ...]


class StateTasks(StateVerifier):
    """Kind of tasks whose solution is a state: of a terminal, a household, a desktop.

    The initial state is a node of the tree, the solution a descendant, and the gold attempt the actions between them. Conditions are
    enumerated from the difference of both states. See docs/tasks.md.
    """

    def __init__(
        self,
        reader: StateReader,
        *,
        executor: ExecutorPort,
        sandboxes: BranchSandboxes,
        author: InstructionAuthor,
        settings: StateTaskSettings | None = None,
    ) -> None:
        """:param reader: reads states, and compares them.
        :param executor: makes the tool calls.
        :param sandboxes: sandboxes of the run.
        :param author: writes instructions.
        :param settings: settings; the defaults if omitted.
        """
        super().__init__(reader, executor=executor, sandboxes=sandboxes)
        self._author = author
        self._settings = settings or StateTaskSettings()

    async def derive(self, tree: Tree, page: Page) -> DerivedTasks:
        """Derive candidates from a tree: repeat its actions, compare the states, and write an instruction for each.

        :raises RunStopped: if the run can't continue.
        """

        async def find() -> _Candidates:
            states = await survey(tree, self._reader, self._executor, self._sandboxes)
            settings = self._settings
            return _Candidates(
                candidates(
                    tree, states, self._reader, most=settings.max_tasks, least_steps=settings.min_steps
                )
            )

        chosen = (await page.once(f"tasks/{self.name}", _Candidates, find)).found
        written = await together(partial(self._task, tree, task, page) for task in chosen)
        return DerivedTasks(
            tasks=tuple(outcome for outcome, _ in written if isinstance(outcome, VerifiableTask)),
            rejected=tuple(outcome for outcome, _ in written if isinstance(outcome, RejectedTask)),
            usage=sum((usage for _, usage in written), Usage()),
        )

    async def _task(
        self, tree: Tree, candidate: TaskCandidate, page: Page
    ) -> tuple[VerifiableTask | RejectedTask, Usage]:
        setup, gold = self._setup(tree, candidate), self._gold(tree, candidate)
        name = task_id(tree.id, self.name, gold, setup)
        instruction = await write_instruction(
            name, tree, candidate, self._reader, self._author, self._settings.instruction, page
        )
        if instruction.findings:
            solution = "\n".join(str(action.arguments) for action in gold.actions)
            return (
                RejectedTask(
                    kind=self.name,
                    instruction=instruction.text,
                    solution=solution,
                    findings=tuple(TaskFinding(*finding) for finding in instruction.findings),
                ),
                instruction.usage,
            )
        task = VerifiableTask(
            id=name,
            kind=self.name,
            instruction=instruction.text,
            setup=setup,
            gold=gold,
            verifier=tuple(
                condition.predicate(self._reader.says(condition), self._reader.probe(condition))
                for condition in candidate.conditions
            ),
            wrong=self._wrong(candidate),
            tree_id=tree.id,
            source_id=tree.seed.id,
            sources=(candidate.start, *candidate.path),
            metadata={"steps": len(gold.actions), "drafts": instruction.drafts},
        )
        return task, instruction.usage

    def _setup(self, tree: Tree, candidate: TaskCandidate) -> TaskSetup:
        before = tree.path(candidate.start)
        return TaskSetup(
            tools=tuple(self._sandboxes.tools),
            kwargs=tree.seed.kwargs,
            actions=tuple(node.action for node in before if node.action is not None),
        )

    @staticmethod
    def _gold(tree: Tree, candidate: TaskCandidate) -> TaskAttempt:
        nodes = [tree.by_id[node_id] for node_id in candidate.path]
        return TaskAttempt(name=GOLD, actions=tuple(node.action for node in nodes if node.action is not None))

    def _wrong(self, candidate: TaskCandidate) -> tuple[TaskAttempt, ...]:
        siblings = [
            TaskAttempt(name=f"sibling/{miss.node}", actions=miss.actions) for miss in candidate.wrong
        ]
        shortcut = self._reader.shortcut(candidate.conditions)
        cheats = [TaskAttempt(name=SHORTCUT, actions=shortcut)] if shortcut else []
        return (TaskAttempt(name=NO_OP, actions=self._reader.no_op()), *siblings, *cheats)
