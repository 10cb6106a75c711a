"""Metric interface, scores, and summaries of many scores: means with intervals, pass@k, votes."""

import re
from collections.abc import Awaitable, Callable, Sequence
from math import comb, sqrt
from random import Random
from statistics import NormalDist
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from agentflow.errors import ErrorKind, RunStopped, StopCause
from agentflow.text import normalise_squad
from agentflow.trace import Failure, Task, Usage

_ROUNDS: Final = 1000
_PERFECT: Final = 0.99
Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Returns a vector for each text."""


class Scored(Struct, frozen=True):
    """Score of a prediction."""

    score: float
    """From 0 (wrong) to 1 (right)."""
    reason: str = ""
    """Explanation, if there is one."""
    failure: Failure | None = None
    """The prediction could not be judged: nothing is known about it, and `score` is 0."""
    usage: Usage = Usage()
    """Usage of the judgement."""
    weight: float = 1.0
    """Weight in a mean; only the F1 of documents sets it."""


class Metric(Protocol):
    """Scores predictions of tasks."""

    @property
    def name(self) -> str:
        """Its name in settings and reports."""
        ...

    async def score(self, prediction: str, task: Task) -> Scored:
        """Score a prediction of a task.

        :raises RunStopped: if it calls a model and the run can't continue.
        """
        ...


_FAILURES: Final = 8
"""Number of equal failures after which a run ends, if nothing was scored yet."""
_DETAIL: Final = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")


VERIFIER: Final = "verifier"
"""Metric of verified tasks: the verdict of the task's own verifier on the episode."""


class VerifierMetric:
    """Metric of verified tasks. A rollout uses the verdict on the episode; an answer alone can't be judged."""

    name = VERIFIER
    """Its name."""

    async def score(self, prediction: str, task: Task) -> Scored:
        """Return that the task has no verifier: one with a verdict is not scored here."""
        reason = "the task has no verifier; name another evaluation_metric"
        return Scored(0.0, failure=Failure(ErrorKind.FAILED, reason))


class ScoreGuard:
    """Tells a broken metric, which must not look like wrong answers, from one that fails on single answers.

    Example::

        guard = ScoreGuard("rewards:close")
        problem = guard.check(await metric.score(answer, task), task.id)
    """

    def __init__(self, metric: str) -> None:
        """:param metric: name of the metric."""
        self.works = False
        """An answer of this run was scored."""
        self._metric = metric
        self._failures = 0
        self._kinds: set[str] = set()

    def check(self, scored: Scored, task: str) -> str:
        """Return why a score can't be kept: it is a failure, and no answer was scored so far. Empty if it can.

        :param task: id of its task.
        :raises RunStopped: if every answer so far has failed in the same way.
        """
        if scored.failure is None:
            self.works = True
        if self.works or scored.failure is None:
            return ""
        message = scored.failure.message.removeprefix(f"{self._metric}: ")
        self._failures += 1
        self._kinds.add(_DETAIL.sub("", message))
        problem = f"{self._metric} can't score the answer to {task}: {message}"
        if self._failures >= _FAILURES and len(self._kinds) == 1:
            every = f"{problem}; it has failed on all {self._failures} answers so far"
            raise RunStopped(
                StopCause.SCORING,
                f"{every}: fix it, then run the same command to resume; the answers are kept",
            )
        return problem


class Interval(Struct, frozen=True):
    """Confidence interval of a mean over tasks."""

    low: float
    """Lower end."""
    high: float
    """Upper end."""


class ScoreSummary(Struct, frozen=True, kw_only=True):
    """Summary of the scores of many tasks."""

    tasks: int
    """Number of tasks."""
    failed: int
    """Number of tasks without an answer: they count as wrong."""
    unjudged: int
    """Number of tasks that could not be judged: they are left out of the mean."""
    perfect: int
    """Number of tasks with full marks."""
    mean: float
    """Mean over all judged tasks; 0 if there are none."""
    interval: Interval
    """Its 95 % confidence interval."""
    usage: Usage
    """Usage of all judgements."""


def summarise(scores: Sequence[Scored | None], *, seed: int = 0) -> ScoreSummary:
    """Summarise scores. Equal scores give equal summaries.

    See docs/scoring.md for an example.

    :param scores: one for each task; `None` for a failed task.
    :param seed: seed of the interval's resampling.
    """
    judged = [score for score in scores if score is None or score.failure is None]
    values = [(0.0, 1.0) if scored is None else (scored.score, scored.weight) for scored in judged]
    return ScoreSummary(
        tasks=len(scores),
        failed=sum(1 for score in scores if score is None),
        unjudged=len(scores) - len(judged),
        perfect=sum(1 for scored in judged if scored is not None and scored.score >= _PERFECT),
        mean=_mean(values),
        interval=_interval(values, seed),
        usage=sum((score.usage for score in scores if score is not None), Usage()),
    )


def confidence_interval(values: Sequence[float], *, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the confidence interval of a mean: Wilson's if all values are 0 or 1, else a bootstrap interval.

    >>> confidence_interval([0, 0, 0]).high > 0.5
    True

    :param seed: seed of the bootstrap's resampling.
    :param level: confidence level.
    """
    return _interval([(value, 1.0) for value in values], seed, level)


def bootstrap(values: Sequence[float], *, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the bootstrap confidence interval of a mean, from 1,000 resamples.

    See docs/scoring.md for an example.

    :param seed: seed of the resampling.
    :param level: confidence level.
    """
    return _drawn([(value, 1.0) for value in values], seed, level)


def pass_at(k: int, *, right: int, samples: int) -> float:
    """Return the unbiased estimate of pass@k for one task.

    >>> pass_at(1, right=5, samples=10)
    0.5

    :raises ValueError: if there are fewer than k samples, or more right ones than samples.
    """
    if not (1 <= k <= samples and 0 <= right <= samples):
        raise ValueError(f"pass@{k} of {right} right ones among {samples} samples is not defined")
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def majority(answers: Sequence[str | None], *, same: Callable[[str, str], bool] | None = None) -> int | None:
    """Return the index of the majority answer's first sample; `None` if no sample has an answer.

    >>> majority(["5", "7", "5"])
    0

    :param answers: one for each sample; `None` or empty for no answer.
    :param same: equality of two answers; by default equality after SQuAD's normalisation.
    """
    alike = same or _equal
    groups: list[list[int]] = []
    for index, answer in enumerate(answers):
        if not answer or not answer.strip():
            continue
        group = next((group for group in groups if alike(answers[group[0]] or "", answer)), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    # A tie goes to the first sample, so that only the order of samples decides.
    return max(groups, key=len)[0] if groups else None


def best_of(marks: Sequence[float | None]) -> int | None:
    """Return the index of the sample with the highest verifier score, the first of a tie; `None` without scores.

    >>> best_of([0.2, None, 0.9])
    2
    """
    marked = [(mark, -index) for index, mark in enumerate(marks) if mark is not None]
    return -max(marked)[1] if marked else None


def _equal(text: str, other: str) -> bool:
    return normalise_squad(text) == normalise_squad(other)


def _mean(values: Sequence[tuple[float, float]]) -> float:
    weight = sum(share for _, share in values)
    return sum(value * share for value, share in values) / weight if weight else 0.0


def _interval(values: Sequence[tuple[float, float]], seed: int, level: float = 0.95) -> Interval:
    counted = [value for value, weight in values if weight]
    if all(value in {0.0, 1.0} and weight in {0.0, 1.0} for value, weight in values):
        return _wilson(sum(counted), len(counted), level)
    return _drawn(values, seed, level)


def _wilson(right: float, count: int, level: float) -> Interval:
    """Return Wilson's score interval of a proportion; everything is possible without a trial."""
    if not count:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    # Exact ends, without rounding errors.
    low, high = (0.0 if right == 0 else middle - half), (1.0 if right == count else middle + half)
    return Interval(max(0.0, low), min(1.0, high))


def _drawn(values: Sequence[tuple[float, float]], seed: int, level: float = 0.95) -> Interval:
    if not values:
        return Interval(0.0, 1.0)
    draw = Random(seed)
    means = sorted(_mean(draw.choices(values, k=len(values))) for _ in range(_ROUNDS))
    tail = (1 - level) / 2
    return Interval(means[int(tail * _ROUNDS)], means[min(_ROUNDS - 1, int((1 - tail) * _ROUNDS))])
