"""Contract of verified tasks: a task, the attempts at it, and the check that its verifier tells them apart."""

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct, field

from agentflow.actors import together
from agentflow.journal import Page
from agentflow.sandbox import Sandbox
from agentflow.trace import Action, TaskVerdict, Tree, Usage, digest

Json: TypeAlias = Any
"""A JSON value."""

GOLD = "gold"
"""Name of the attempt that solves a task."""
INITIAL = "initial"
"""Name of the attempt that does nothing: the verifier sees the initial state and no answer."""
NO_OP = "no_op"
"""Name of the attempt that acts without effect."""
RUNS: Final = 2
"""Number of times that each attempt is verified."""


class TaskAttempt(Struct, frozen=True, kw_only=True):
    """Actions from the initial state of a task, and the final answer."""

    name: str
    """`gold`, `initial`, `no_op`, `sibling/NODE`, or the name of the mistake that it makes."""
    actions: tuple[Action, ...] = ()
    """Tool calls from the initial state on."""
    answer: str = ""
    """Final answer: a value, a query; empty if the task is solved by the state alone."""


class TaskSetup(Struct, frozen=True, kw_only=True):
    """Initial state of a task, as data."""

    tools: tuple[str, ...] = ()
    """Names of the tools that the agent gets."""
    backends: dict[str, dict[str, Json]] = field(default_factory=dict[str, dict[str, Json]])
    """Settings of the session's backends, such as the seed of a world."""
    kwargs: dict[str, Json] = field(default_factory=dict[str, Json])
    """Tool arguments fixed by the task, such as the database."""
    actions: tuple[Action, ...] = ()
    """Tool calls that lead from a fresh session to the initial state."""


class TaskRelation(StrEnum):
    """Comparison of a value that the verifier read with the expected one."""

    EQUAL = "equal"
    """Both are the same JSON value."""
    NOT_EQUAL = "not_equal"
    """They differ."""
    CONTAINS = "contains"
    """The text or list contains the expected text or element."""
    LACKS = "lacks"
    """The text or list does not contain the expected text or element."""
    AGREES = "agrees"
    """Both are equal as typed values: numbers, dates, lists, names."""
    SAME_ROWS = "same_rows"
    """Both are tables with the same rows in any order."""
    SAME_ORDERED_ROWS = "same_ordered_rows"
    """Both are tables with the same rows in the same order."""


class TaskPredicate(Struct, frozen=True, kw_only=True):
    """Condition that the verifier evaluates after an attempt, outside the agent's session."""

    says: str
    """The condition in words, for reports; the agent never sees it."""
    probe: tuple[Action, ...] = ()
    """Tool calls made in a fork of the session after the attempt; the last one reads the value. Empty: the final answer is compared."""
    relation: TaskRelation = TaskRelation.EQUAL
    """Comparison."""
    expected: Json = None
    """Expected value."""


class VerifiableTask(Struct, frozen=True, kw_only=True):
    """Task with its initial state, a solution, and a verifier. Everything in it is JSON."""

    id: str
    """Id, derived from its content; see `task_id`."""
    kind: str
    """Name of its `TaskKind`."""
    instruction: str
    """Text that an agent gets."""
    setup: TaskSetup
    """Initial state."""
    gold: TaskAttempt
    """Attempt that solves it."""
    verifier: tuple[TaskPredicate, ...]
    """Conditions that hold after a solution; all of them must."""
    wrong: tuple[TaskAttempt, ...]
    """Attempts that must fail: `no_op`, and at least one sibling or known mistake."""
    tree_id: str
    """Id of the tree that it was derived from."""
    source_id: str
    """Id of the seed of that tree."""
    sources: tuple[str, ...] = ()
    """Ids of the nodes that it was derived from."""
    difficulty: dict[str, Json] | None = None
    """Pass rate of attempts by an agent; `None` if it was not measured."""
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    """Other facts about it, such as the engine that wrote its instruction."""

    @property
    def answer(self) -> str:
        """Answer; empty if its state solves it."""
        return str(self.metadata.get("answer") or self.gold.answer)


class TaskProblem(StrEnum):
    """Reason that a task was rejected. The set is closed: reports count by it."""

    NO_GOLD = "no_gold"
    """There is no usable solution: it failed when it was executed."""
    EMPTY_RESULT = "empty_result"
    """The solution returns nothing."""
    WHOLE_TABLE = "whole_table"
    """The solution returns a whole table."""
    CONSTANT = "constant"
    """The solution's result does not change when its inputs change."""
    AMBIGUOUS = "ambiguous"
    """Independent solutions of the instruction disagree with the gold solution."""
    CLOSED_BOOK = "closed_book"
    """A model knows the answer without the environment."""
    NOT_SHOWN = "not_shown"
    """A reader that sees only the region of a picture does not find the answer there."""
    ELSEWHERE = "elsewhere"
    """The answer is found without the region: in the rest of the page, another picture, or the text."""
    LEAK = "leak"
    """The instruction contains its solution or answer."""
    BAD_INSTRUCTION = "bad_instruction"
    """The instruction is empty, too long, or not understandable on its own."""
    MODEL_FAILED = "model_failed"
    """A model call failed for good."""
    DUPLICATE = "duplicate"
    """An earlier task asks the same."""
    GOLD_FAILS = "gold_fails"
    """The gold attempt does not pass."""
    INITIAL_PASSES = "initial_passes"
    """The initial state passes."""
    NO_OP_PASSES = "no_op_passes"
    """An attempt without effect passes."""
    WRONG_PASSES = "wrong_passes"
    """A sibling or a known mistake passes."""
    NO_WRONG = "no_wrong"
    """There is no attempt that should fail, so the verifier can't be tested."""
    UNSTABLE = "unstable"
    """The same attempt got two different verdicts."""
    UNVERIFIABLE = "unverifiable"
    """An attempt could not be verified."""


class TaskFinding(Struct, frozen=True):
    """Problem of a task."""

    problem: TaskProblem
    """The problem."""
    reason: str
    """The reason, in one line."""


class TaskTrial(Struct, frozen=True):
    """An attempt with its verdicts."""

    attempt: str
    """Name of the attempt."""
    verdicts: tuple[TaskVerdict, ...]
    """Verdict of each run of it."""


class TaskCheck(Struct, frozen=True):
    """Result of checking a task."""

    trials: tuple[TaskTrial, ...]
    """The attempts that were verified, the gold attempt first."""
    findings: tuple[TaskFinding, ...]
    """Problems; empty if the task is accepted."""

    @property
    def accepted(self) -> bool:
        """No problem was found."""
        return not self.findings


class RejectedTask(Struct, frozen=True, kw_only=True):
    """Task, or candidate of a task, that was rejected."""

    kind: str
    """Name of its `TaskKind`."""
    instruction: str = ""
    """Its instruction; empty if it was rejected before one was written."""
    solution: str = ""
    """Its solution."""
    findings: tuple[TaskFinding, ...]
    """The reasons."""


class DerivedTasks(Struct, frozen=True, kw_only=True):
    """Candidates derived from a tree."""

    tasks: tuple[VerifiableTask, ...] = ()
    """Candidates, not yet checked by `check_task`."""
    rejected: tuple[RejectedTask, ...] = ()
    """Candidates rejected on the way."""
    usage: Usage = Usage()
    """Model usage."""


class TaskVerifier(Protocol):
    """Verifies attempts at tasks of one kind. See docs/tasks.md."""

    @property
    def name(self) -> str:
        """Name of the kind."""
        ...

    async def verify(
        self, task: VerifiableTask, attempt: TaskAttempt, session: Sandbox | None = None
    ) -> TaskVerdict:
        """Verify an attempt, outside the agent's session.

        :param session: the session in which an agent made the attempt; its state is read in a fork. `None`: build the
            initial state in a session of its own and make the attempt's actions there.
        """
        ...


class TaskKind(TaskVerifier, Protocol):
    """Kind of task: derives candidates from a grown tree and verifies attempts. See docs/tasks.md."""

    async def derive(self, tree: Tree, page: Page) -> DerivedTasks:
        """Derive candidates from a tree; model calls and tool calls are recorded on the page.

        :raises RunStopped: if the run can't continue.
        """
        ...


def task_id(tree: str, kind: str, gold: TaskAttempt, setup: TaskSetup) -> str:
    """Return the id of a task, which depends on its content alone.

    >>> setup = TaskSetup(tools=("sql_execute",))
    >>> task_id("t", "text2sql", TaskAttempt(name="gold", answer="SELECT 1"), setup)[:5]
    'task_'
    """
    parts = [[action.tool, action.arguments] for action in (*setup.actions, *gold.actions)]
    return f"task_{digest([tree, kind, gold.answer, parts, setup.backends, setup.kwargs])}"


def relation_holds(relation: TaskRelation, actual: Json, expected: Json) -> bool:
    """Compare a JSON value with the expected one. `AGREES` and tables are compared by the kinds that use them.

    >>> relation_holds(TaskRelation.CONTAINS, "exit code 0", "code 0")
    True
    """
    match relation:
        case TaskRelation.EQUAL:
            return digest([actual]) == digest([expected])
        case TaskRelation.NOT_EQUAL:
            return digest([actual]) != digest([expected])
        case TaskRelation.CONTAINS | TaskRelation.LACKS:
            contains = _contains(actual, expected)
            return contains is not None and contains is (relation is TaskRelation.CONTAINS)
        case _:
            raise ValueError(f"{relation} is compared by the kind of the task")


def _contains(value: Json, expected: Json) -> bool | None:
    """Tell whether a text or a list contains something; `None` if it is neither."""
    match value:
        case str():
            return isinstance(expected, str) and expected in value
        case [*items]:
            return any(digest([item]) == digest([expected]) for item in items)
        case _:
            return None


async def check_task(task: VerifiableTask, kind: TaskKind, page: Page) -> TaskCheck:
    """Verify the gold attempt, the initial state, and each wrong attempt of a task, twice each.

    Each verdict is recorded on the page. If the gold attempt does not pass, the others are not tried.

    See docs/tasks.md for an example.

    :raises RunStopped: if the run can't continue.
    """
    gold = await _trial(task, task.gold, kind, page)
    findings = _gold_findings(gold)
    if findings:
        return TaskCheck((gold,), findings)
    wrong = (TaskAttempt(name=INITIAL), *task.wrong)
    trials = await together(partial(_trial, task, attempt, kind, page) for attempt in wrong)
    return TaskCheck((gold, *trials), (*_missing(task.wrong), *_wrong_findings(trials)))


async def _trial(task: VerifiableTask, attempt: TaskAttempt, kind: TaskKind, page: Page) -> TaskTrial:
    verdicts: list[TaskVerdict] = []
    for number in range(1, RUNS + 1):
        key = f"verify/{task.id}/{attempt.name}/{number}"
        verdicts.append(await page.once(key, TaskVerdict, partial(kind.verify, task, attempt)))
    return TaskTrial(attempt.name, tuple(verdicts))


def _gold_findings(trial: TaskTrial) -> tuple[TaskFinding, ...]:
    if broken := _broken(trial):
        return (broken,)
    verdict = trial.verdicts[0]
    if not verdict.passed:
        reason = "; ".join(verdict.reasons) or "a condition does not hold"
        return (TaskFinding(TaskProblem.GOLD_FAILS, f"the {GOLD} attempt does not pass: {reason}"),)
    return ()


def _missing(wrong: Sequence[TaskAttempt]) -> tuple[TaskFinding, ...]:
    """Return findings about attempts that every task needs."""
    names = {attempt.name for attempt in wrong}
    if NO_OP not in names:
        return (TaskFinding(TaskProblem.NO_WRONG, f"there is no {NO_OP} attempt"),)
    if names == {NO_OP}:
        return (TaskFinding(TaskProblem.NO_WRONG, "there is no sibling and no known mistake"),)
    return ()


def _wrong_findings(trials: Sequence[TaskTrial]) -> tuple[TaskFinding, ...]:
    findings: list[TaskFinding] = []
    problems = {INITIAL: TaskProblem.INITIAL_PASSES, NO_OP: TaskProblem.NO_OP_PASSES}
    for trial in trials:
        if broken := _broken(trial):
            findings.append(broken)
        elif trial.verdicts[0].passed:
            problem = problems.get(trial.attempt, TaskProblem.WRONG_PASSES)
            findings.append(TaskFinding(problem, f"the attempt {trial.attempt} passes"))
    return tuple(findings)


def _broken(trial: TaskTrial) -> TaskFinding | None:
    """Return the reason that a trial has no verdict, or two different ones."""
    errors = [verdict.error for verdict in trial.verdicts if verdict.error]
    if errors:
        return TaskFinding(
            TaskProblem.UNVERIFIABLE, f"the attempt {trial.attempt} can't be verified: {errors[0]}"
        )
    if len({verdict.passed for verdict in trial.verdicts}) > 1:
        reason = f"the attempt {trial.attempt} passes once and fails once"
        return TaskFinding(TaskProblem.UNSTABLE, reason)
    return None
