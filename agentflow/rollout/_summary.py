"""A rollout in few figures."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Literal

from msgspec import Struct

from agentflow.rollout._config import RolloutConfig
from agentflow.rollout._result import TaskResult
from agentflow.rollout._tasks import Assignment
from agentflow.runs import ChosenTools
from agentflow.scoring import Interval, Scored, best_of, majority, pass_at, summarise
from agentflow.trajectory import Failure, Usage

__all__ = ["FailedTask", "RolloutSummary", "Spread", "SummaryBuilder", "ToolUsage"]

_NAMED_FAILURES = 20
_PERFECT = 0.99
_UNJUDGED = Failure("unjudged", "no sample of it could be judged")


class Spread(Struct, frozen=True):
    """How a quantity is spread over episodes."""

    mean: float = 0.0
    """Its mean."""
    p50: float = 0.0
    """Half of them have no more."""
    p95: float = 0.0
    """Of 20 of them 19 have no more."""


class ToolUsage(Struct, frozen=True):
    """How a tool was used."""

    calls: int
    """How often it was called."""
    share: float
    """Of all calls of tools."""
    errors: int
    """Calls that failed, or whose program ended badly."""


class FailedTask(Struct, frozen=True):
    """A task without an answer."""

    task_id: str
    """Which."""
    sample: int
    """Which of its samples, from 0."""
    why: str
    """What went wrong."""


class RolloutSummary(Struct, frozen=True, kw_only=True):
    """A rollout in few figures; only `seconds` and `wall_seconds` differ from run to run of the same work."""

    benchmark: str
    """What the tasks are."""
    metric: str | None
    """What answers were scored by; `None`: they were not."""
    agent: Literal["team", "single"]
    """Who worked."""
    verify: Literal["separate", "merged"]
    """Who verified, in the team."""
    max_turns: int
    """Turns of an episode at most."""
    samples: int
    """Episodes of each task."""
    models: dict[str, str]
    """The model of each role."""
    tools: list[str]
    """What could be used."""
    dropped_tools: dict[str, str]
    """Tools that were asked for and could not be used, with why."""
    tasks: int
    """Tasks that are finished, all samples of each."""
    results: int
    """Samples that are finished."""
    failed: int
    """Those without an answer; they count as wrong."""
    failures: dict[str, int]
    """Those by why."""
    failed_tasks: list[FailedTask]
    """The first of them."""
    unjudged: int
    """Answers that could not be judged; nothing is known of them, and they are not in the mean."""
    perfect: int
    """Answers with full marks."""
    score: float | None
    """The mean score of tasks; `None`: nothing was scored."""
    interval: Interval | None
    """Where it lies, 95 times of 100, were other tasks of the kind drawn."""
    pass_at: dict[str, float]
    """k -> how likely one of k samples is right; only with several samples."""
    majority: float | None
    """The mean score of the answer that most samples give; only with several samples."""
    best_by_verifier: float | None
    """The mean score of the sample of which the verifier was surest; only with several samples."""
    endings: dict[str, int]
    """Episodes by why their turns ended."""
    turns: Spread
    """Turns of an episode."""
    seconds: Spread
    """Time of an episode."""
    calls_per_task: dict[str, float]
    """Calls of models in an episode, by role."""
    usage: dict[str, Usage]
    """What the roles consumed in the whole run, with all that was tried in vain."""
    tokens: int
    """Tokens read and written."""
    cost: dict[str, float]
    """What that costs, of roles whose model has prices."""
    tool_calls: int
    """Calls of tools."""
    tool_use: dict[str, ToolUsage]
    """The tools that were called."""
    tool_error_rate: float
    """Calls of tools that failed, of all."""
    wall_seconds: float
    """How long this process took."""


class SummaryBuilder:
    """Counts results. What it holds of each is a few numbers."""

    def __init__(
        self,
        config: RolloutConfig,
        assignment: Assignment,
        tools: ChosenTools,
        used: Mapping[str, Usage],
        wall_seconds: float,
    ) -> None:
        """Begin.

        :param used: what the roles consumed in the whole run.
        :param wall_seconds: how long this process took.
        """
        self._config = config
        self._assignment = assignment
        self._tools = tools
        self._used = used
        self._wall_seconds = wall_seconds
        self._tasks: dict[str, list[_Mark]] = {}
        self._failures: Counter[str] = Counter()
        self._failed: list[FailedTask] = []
        self._endings: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._tool_calls: Counter[str] = Counter()
        self._tool_errors: Counter[str] = Counter()
        self._turns: list[float] = []
        self._seconds: list[float] = []

    def add(self, result: TaskResult) -> None:
        """Count a result."""
        self._tasks.setdefault(result.task.id, []).append(_mark(result))
        if result.failure is not None:
            self._failures[result.failure.kind] += 1
            if len(self._failed) < _NAMED_FAILURES:
                self._failed.append(FailedTask(result.task.id, result.sample, result.failure.message))
        if result.episode is None:
            return
        self._endings[result.episode.ending] += 1
        self._calls.update(result.episode.calls)
        self._turns.append(len(result.turns))
        self._seconds.append(result.episode.seconds)
        for turn in result.turns:
            if turn.action is not None:
                self._tool_calls[turn.action.tool] += 1
                self._tool_errors[turn.action.tool] += turn.failure is not None or bool(turn.trouble)

    def summary(self) -> RolloutSummary:
        """All that was counted."""
        config = self._config
        models = config.models
        marks = [mark for task in self._tasks.values() for mark in task]
        scored = summarise([_of_task(task) for task in self._tasks.values()])
        evaluated = config.evaluate_results and bool(marks)
        several = evaluated and self._assignment.samples > 1
        calls, errors = sum(self._tool_calls.values()), sum(self._tool_errors.values())
        costs = {role: own.prices for role, own in models.items()}
        return RolloutSummary(
            benchmark=self._assignment.name,
            metric=self._assignment.metric if config.evaluate_results else None,
            agent=config.agent,
            verify=config.verify,
            max_turns=config.turns,
            samples=self._assignment.samples,
            models={role: own.name for role, own in models.items()},
            tools=[tool.name for tool in self._tools.tools],
            dropped_tools=self._tools.dropped,
            tasks=len(self._tasks),
            results=len(marks),
            failed=sum(mark.failed for mark in marks),
            failures=dict(sorted(self._failures.items())),
            failed_tasks=self._failed,
            unjudged=sum(mark.unjudged for mark in marks),
            perfect=sum(mark.right for mark in marks),
            score=scored.mean if evaluated else None,
            interval=scored.interval if evaluated else None,
            pass_at=self._pass_at() if several else {},
            majority=self._mean_of(_by_majority) if several else None,
            best_by_verifier=self._mean_of(_by_verifier) if several else None,
            endings=dict(sorted(self._endings.items())),
            turns=_spread(self._turns),
            seconds=_spread(self._seconds),
            calls_per_task={role: count / len(marks) for role, count in sorted(self._calls.items())},
            usage=dict(sorted(self._used.items())),
            tokens=sum(used.prompt_tokens + used.completion_tokens for used in self._used.values()),
            cost={
                role: round(prices.cost(self._used.get(role, Usage())), 6)
                for role, prices in costs.items()
                if prices is not None
            },
            tool_calls=calls,
            tool_use={
                tool: ToolUsage(count, count / calls, self._tool_errors[tool])
                for tool, count in sorted(self._tool_calls.items())
            },
            tool_error_rate=errors / calls if calls else 0.0,
            wall_seconds=self._wall_seconds,
        )

    def _pass_at(self) -> dict[str, float]:
        samples = self._assignment.samples
        whole = [task for task in self._tasks.values() if len(task) == samples]
        return {
            str(k): _mean(
                [pass_at(k, right=sum(mark.right for mark in task), samples=samples) for task in whole]
            )
            for k in range(1, samples + 1)
            if whole
        }

    def _mean_of(self, choose: "_Choice") -> float:
        chosen = [(task, choose(task)) for task in self._tasks.values()]
        return _mean([0.0 if place is None else task[place].score for task, place in chosen])


class _Mark(Struct, frozen=True):
    """What is kept of a result."""

    score: float
    answer: str | None
    trust: float
    failed: bool
    unjudged: bool
    weight: float

    @property
    def right(self) -> bool:
        return self.score >= _PERFECT


_Choice = Callable[[Sequence[_Mark]], int | None]


def _mark(result: TaskResult) -> _Mark:
    scored = result.scored
    return _Mark(
        score=result.score,
        answer=result.answer or None,
        trust=result.trust,
        failed=result.failure is not None,
        unjudged=scored is not None and scored.failure is not None,
        weight=1.0 if scored is None else scored.weight,
    )


def _by_majority(task: Sequence[_Mark]) -> int | None:
    return majority([mark.answer for mark in task])


def _by_verifier(task: Sequence[_Mark]) -> int | None:
    return best_of([mark.trust if mark.answer else None for mark in task])


def _of_task(task: Sequence[_Mark]) -> Scored | None:
    """What a task is worth: the mean of its samples."""
    judged = [mark for mark in task if not mark.unjudged]
    if not judged:
        return Scored(0.0, failure=_UNJUDGED)
    if all(mark.failed for mark in judged):
        return None
    return Scored(_mean([mark.score for mark in judged]), weight=_mean([mark.weight for mark in judged]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread()
    ranked = sorted(values)
    return Spread(_mean(values), ranked[ceil(0.5 * len(ranked)) - 1], ranked[ceil(0.95 * len(ranked)) - 1])
