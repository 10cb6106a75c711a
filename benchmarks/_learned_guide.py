"""A guide of searches that learns the value of a path from finished ones: the mean score of the answers below it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from agentflow.rollouts import TaskResult
from agentflow.text import words
from agentflow.trace import Task, Turn

__all__ = ["guide", "learn"]

Features = tuple[object, ...]

_PRIOR = 2.0
"""Weight of the mean of all paths in the value of a kind of paths."""
_sums: defaultdict[Features, float] = defaultdict(float)
_counts: defaultdict[Features, float] = defaultdict(float)
_means: dict[bool, float] = {}


def learn(results: Iterable[TaskResult]) -> None:
    """Learn from the paths of branching tasks."""
    totals: defaultdict[bool, list[float]] = defaultdict(list)
    for result in results:
        if result.episode is None or result.is_pruned:
            continue
        for end in range(len(result.turns) + 1):
            kinds = [features(result.task, result.turns[:end], None)]
            if end == len(result.turns):
                kinds.append(features(result.task, result.turns, result.answer))
            for kind in kinds:
                _sums[kind] += result.score * result.drawn
                _counts[kind] += result.drawn
                totals[bool(kind[0])] += [result.score] * result.drawn
    _means.update({ended: sum(scores) / len(scores) for ended, scores in totals.items()})


async def guide(task: Task, turns: Sequence[Turn], answer: str | None) -> float:
    """Return the mean score of learned paths of the same kind."""
    kind = features(task, turns, answer)
    mean = _means.get(answer is not None, 0.5)
    return (_sums[kind] + _PRIOR * mean) / (_counts[kind] + _PRIOR)


def features(task: Task, turns: Sequence[Turn], answer: str | None) -> Features:
    """Return the kind of a path, from what an observer sees without the reference."""
    seen = set(words(task.question))
    steps: list[Features] = []
    for turn in turns:
        command = "" if turn.action is None else " ".join(map(str, turn.action.arguments.values()))
        tool = "" if turn.action is None else turn.action.tool
        steps.append((tool, turn.failed, set(words(command)) <= seen))
        seen.update(words(turn.result))
    shown = answer is not None and bool(answer) and set(words(answer)) <= seen
    asked = task.question.split()[:2]
    return answer is not None, bool(answer), shown, tuple(steps), tuple(asked)
