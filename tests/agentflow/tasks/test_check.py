"""The check of a task against its own solution and its wrong attempts."""

from collections.abc import Callable

import msgspec
import pytest

from agentflow.journal import Page
from agentflow.sandbox import Sandbox
from agentflow.tasks import (
    DerivedTasks,
    TaskAttempt,
    TaskPredicate,
    TaskProblem,
    TaskRelation,
    TaskSetup,
    TaskVerdict,
    VerifiableTask,
    check_task,
    relation_holds,
    task_id,
)
from agentflow.trace import Action, Tree

NO_OP = TaskAttempt(name="no_op", answer="?")
SIBLING = TaskAttempt(name="sibling/node_2", answer="Vessel Bay")
GOLD = TaskAttempt(name="gold", answer="Brenn")


def task_with(*wrong: TaskAttempt, gold: TaskAttempt = GOLD) -> VerifiableTask:
    """Return a task whose answer is Brenn."""
    setup = TaskSetup(tools=("rag_search",))
    return VerifiableTask(
        id=task_id("tree_1", "recall", gold, setup),
        kind="recall",
        instruction="Which harbour has the lighthouse of 1874?",
        setup=setup,
        gold=gold,
        verifier=(TaskPredicate(says="the answer is Brenn", expected="Brenn"),),
        wrong=wrong,
        tree_id="tree_1",
        source_id="seed_001",
    )


class Recall:
    """Kind with the answer as the only state."""

    name = "recall"

    def __init__(self, verdict: Callable[[str, int], TaskVerdict] | None = None) -> None:
        self._verdict = verdict
        self.verified: list[str] = []

    async def derive(self, tree: Tree, page: Page) -> DerivedTasks:
        """Derive nothing."""
        return DerivedTasks()

    async def verify(
        self, task: VerifiableTask, attempt: TaskAttempt, session: Sandbox | None = None
    ) -> TaskVerdict:
        """Compare the answer, or return the scripted verdict of this run."""
        self.verified.append(attempt.name)
        if self._verdict is not None:
            return self._verdict(attempt.name, self.verified.count(attempt.name))
        failed = [
            one.says
            for one in task.verifier
            if not relation_holds(one.relation, attempt.answer, one.expected)
        ]
        return TaskVerdict(not failed, tuple(failed))


@pytest.mark.promise("tasks:check:accepted")
@pytest.mark.promise("tasks:check:twice")
async def test_a_task_is_accepted_if_only_its_solution_passes_twice() -> None:
    kind = Recall()
    check = await check_task(task_with(NO_OP, SIBLING), kind, Page())
    assert check.accepted
    assert {trial.attempt: [one.passed for one in trial.verdicts] for trial in check.trials} == {
        "gold": [True, True],
        "initial": [False, False],
        "no_op": [False, False],
        "sibling/node_2": [False, False],
    }
    assert sorted(kind.verified) == sorted(2 * ["gold", "initial", "no_op", "sibling/node_2"])


def passing(*names: str) -> Callable[[str, int], TaskVerdict]:
    """Return verdicts by which these attempts pass."""

    def verdict(name: str, run: int) -> TaskVerdict:
        return TaskVerdict(name in names, () if name in names else ("the answer is Brenn",))

    return verdict


def unstable(wavering: str) -> Callable[[str, int], TaskVerdict]:
    """Return verdicts by which one attempt passes only the first time, and the solution always."""

    def verdict(name: str, run: int) -> TaskVerdict:
        return TaskVerdict(run == 1 if name == wavering else name == "gold")

    return verdict


def without_sandbox(name: str, run: int) -> TaskVerdict:
    """Verdict of a verifier that can't verify anything but the solution."""
    return TaskVerdict(name == "gold", error="" if name == "gold" else "no sandbox")


@pytest.mark.promise("tasks:check:accepted")
@pytest.mark.promise("tasks:check:reasons")
@pytest.mark.parametrize(
    ("wrong", "verdict", "problem"),
    [
        ((NO_OP, SIBLING), passing(), TaskProblem.GOLD_FAILS),
        ((NO_OP, SIBLING), passing("gold", "initial"), TaskProblem.INITIAL_PASSES),
        ((NO_OP, SIBLING), passing("gold", "no_op"), TaskProblem.NO_OP_PASSES),
        ((NO_OP, SIBLING), passing("gold", "sibling/node_2"), TaskProblem.WRONG_PASSES),
        ((SIBLING,), passing("gold"), TaskProblem.NO_WRONG),
        ((NO_OP,), passing("gold"), TaskProblem.NO_WRONG),
        ((NO_OP, SIBLING), unstable("gold"), TaskProblem.UNSTABLE),
        ((NO_OP, SIBLING), unstable("no_op"), TaskProblem.UNSTABLE),
        ((NO_OP, SIBLING), without_sandbox, TaskProblem.UNVERIFIABLE),
    ],
)
async def test_a_task_with_a_blind_verifier_is_rejected_with_the_reason(
    wrong: tuple[TaskAttempt, ...], verdict: Callable[[str, int], TaskVerdict], problem: TaskProblem
) -> None:
    check = await check_task(task_with(*wrong), Recall(verdict), Page())
    assert not check.accepted
    assert {finding.problem for finding in check.findings} == {problem}
    assert all(finding.reason and "\n" not in finding.reason for finding in check.findings)


@pytest.mark.promise("tasks:check:journal")
async def test_a_repeated_check_verifies_nothing_again() -> None:
    page, kind, again = Page(), Recall(), Recall()
    task = task_with(NO_OP, SIBLING)
    assert await check_task(task, again, page) == await check_task(task, kind, page)
    assert len(again.verified) == 8
    assert kind.verified == []


@pytest.mark.promise("tasks:contract:json")
def test_a_task_survives_json_and_its_id_depends_on_its_content() -> None:
    action = Action("bash_run", {"command": "touch a"})
    task = task_with(NO_OP, gold=TaskAttempt(name="gold", actions=(action,)))
    assert msgspec.json.decode(msgspec.json.encode(task), type=VerifiableTask) == task
    other = Action("bash_run", {"command": "touch b"})
    ids = {
        task_id("tree_1", "recall", TaskAttempt(name="gold", actions=(each,)), TaskSetup())
        for each in (action, Action("bash_run", {"command": "touch a"}), other)
    }
    assert len(ids) == 2


@pytest.mark.promise("tasks:contract:json")
@pytest.mark.parametrize(
    ("relation", "found", "expected", "holds"),
    [
        (TaskRelation.EQUAL, {"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        (TaskRelation.EQUAL, "1", 1, False),
        (TaskRelation.EQUAL, True, 1, False),
        (TaskRelation.NOT_EQUAL, None, "", True),
        (TaskRelation.CONTAINS, "exit code 0", "code 0", True),
        (TaskRelation.CONTAINS, ["a", {"b": 1}], {"b": 1}, True),
        (TaskRelation.CONTAINS, 5, 5, False),
        (TaskRelation.LACKS, "abc", "d", True),
        (TaskRelation.LACKS, ["a"], "a", False),
        (TaskRelation.LACKS, None, "a", False),
    ],
)
def test_values_are_compared_by_relation(
    relation: TaskRelation, found: object, expected: object, holds: bool
) -> None:
    assert relation_holds(relation, found, expected) is holds


@pytest.mark.promise("tasks:contract:json")
def test_a_relation_of_a_kind_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="compared by the kind"):
        relation_holds(TaskRelation.SAME_ROWS, [[1]], [[1]])
