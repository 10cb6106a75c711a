"""Check of a task: its solution passes, everything else fails, and each verdict is the same twice."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from agentflow.actors import together
from agentflow.journal import Page
from agentflow.tasks._contract import (
    GOLD,
    INITIAL,
    NO_OP,
    TaskAttempt,
    TaskCheck,
    TaskFinding,
    TaskKind,
    TaskProblem,
    TaskTrial,
    TaskVerdict,
    VerifiableTask,
)

RUNS: Final = 2
"""Number of times that each attempt is verified."""


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
