"""Tasks of state: from a node of a tree to a descendant, verified by conditions on the state."""

from functools import partial

from msgspec import Struct

from agentflow.actors import together
from agentflow.growth import BranchSandboxes, ExecutorPort
from agentflow.journal import Page
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
from agentflow.tasks._state_verifier import StateVerifier
from agentflow.tasks._states import StateReader
from agentflow.tasks._survey import TaskCandidate, candidates, survey
from agentflow.trace import Tree, Usage

SHORTCUT = "shortcut"
"""Name of the attempt to pass without solving."""


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
