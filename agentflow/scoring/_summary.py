"""Many scores in few figures: means with intervals, pass@k, votes."""

from collections.abc import Callable, Sequence
from math import comb
from random import Random
from typing import Final

from msgspec import Struct

from agentflow.scoring._scored import Scored
from agentflow.text import normalise_squad
from agentflow.trajectory import Usage

__all__ = ["Interval", "Summary", "best_of", "bootstrap", "majority", "pass_at", "summarise"]

_ROUNDS: Final = 1000
_PERFECT: Final = 0.99


class Interval(Struct, frozen=True):
    """Where a mean lies, were other tasks of the same kind drawn."""

    low: float
    """Its lower end."""
    high: float
    """Its upper end."""


class Summary(Struct, frozen=True, kw_only=True):
    """The scores of many tasks."""

    tasks: int
    """All of them."""
    failed: int
    """Those that gave no answer: they count as wrong."""
    unjudged: int
    """Those whose answer could not be judged: nothing is known of them, and they are not in the mean."""
    perfect: int
    """Those with full marks."""
    mean: float
    """The mean over all tasks but the unjudged ones; 0 if there are none."""
    interval: Interval
    """Where the mean lies, 95 times of 100."""
    usage: Usage
    """What judging consumed."""


def summarise(scores: Sequence[Scored | None], *, seed: int = 0) -> Summary:
    """The scores in few figures. The same scores give the same figures.

    :param scores: one for each task; `None`: the task failed, it has no answer to score.
    :param seed: of the draws for the interval.
    """
    judged = [each for each in scores if each is None or each.failure is None]
    values = [(0.0, 1.0) if each is None else (each.score, each.weight) for each in judged]
    return Summary(
        tasks=len(scores),
        failed=sum(1 for each in scores if each is None),
        unjudged=len(scores) - len(judged),
        perfect=sum(1 for each in judged if each is not None and each.score >= _PERFECT),
        mean=_mean(values),
        interval=_drawn(values, seed),
        usage=sum((each.usage for each in scores if each is not None), Usage()),
    )


def bootstrap(values: Sequence[float], *, seed: int = 0, level: float = 0.95) -> Interval:
    """The interval of the values' mean, from drawing them anew a thousand times.

    :param seed: of the draws.
    :param level: how sure it is.
    """
    return _drawn([(value, 1.0) for value in values], seed, level)


def pass_at(k: int, *, right: int, samples: int) -> float:
    """How likely one of k samples is right, where so many of all samples were: the unbiased estimate.

    :raises ValueError: if there are fewer than k samples, or more right ones than samples.
    """
    if not (1 <= k <= samples and 0 <= right <= samples):
        raise ValueError(f"pass@{k} of {right} right ones among {samples} samples is not defined")
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def majority(answers: Sequence[str | None], *, same: Callable[[str, str], bool] | None = None) -> int | None:
    """The place of the first answer of those that most samples give; `None`: no sample answered.

    :param answers: one for each sample; `None` or nothing: it gave none.
    :param same: two answers say the same; without it they do if they are equal as SQuAD normalises them.
    """
    alike = same or _equal
    groups: list[list[int]] = []
    for place, answer in enumerate(answers):
        if not answer or not answer.strip():
            continue
        group = next((each for each in groups if alike(answers[each[0]] or "", answer)), None)
        if group is None:
            groups.append([place])
        else:
            group.append(place)
    # Of those with as many votes the first one, so that the order of samples decides and nothing else.
    return max(groups, key=len)[0] if groups else None


def best_of(marks: Sequence[float | None]) -> int | None:
    """The place of the sample to which a verifier gives the highest mark; the first of several; `None`: it marked none."""
    marked = [(mark, -place) for place, mark in enumerate(marks) if mark is not None]
    return -max(marked)[1] if marked else None


def _equal(one: str, other: str) -> bool:
    return normalise_squad(one) == normalise_squad(other)


def _mean(values: Sequence[tuple[float, float]]) -> float:
    weight = sum(each for _, each in values)
    return sum(value * each for value, each in values) / weight if weight else 0.0


def _drawn(values: Sequence[tuple[float, float]], seed: int, level: float = 0.95) -> Interval:
    if not values:
        return Interval(0.0, 1.0)
    draw = Random(seed)
    means = sorted(_mean(draw.choices(values, k=len(values))) for _ in range(_ROUNDS))
    tail = (1 - level) / 2
    return Interval(means[int(tail * _ROUNDS)], means[min(_ROUNDS - 1, int((1 - tail) * _ROUNDS))])
