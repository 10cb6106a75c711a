"""Signal of a step: rewards by class of task, and warnings when groups or a class no longer give any."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Final, NamedTuple

from agentflow.learner._groups import Batch
from agentflow.telemetry import get_logger
from agentflow.trace import Task

logger = get_logger(__name__)

MAX_CLASSES: Final = 20
"""Maximum number of classes with figures of their own."""
SHARE: Final = 0.8
"""Share of groups with equal rewards from which a step counts as one without signal."""
STEPS: Final = 5
"""Consecutive steps without signal before a warning."""
_KEYS: Final = ("class", "source")
_NAME_CHARS: Final = 40


class _GroupOutcome(NamedTuple):
    """Outcome of a sampled group."""

    task_class: str
    reward: float
    is_flat: bool


def class_of(task: Task) -> str:
    """Return the class of a task: its field `class`, else `source`; empty if it has none."""
    found = (task.metadata.get(key) for key in _KEYS)
    name = next((str(value) for value in found if isinstance(value, str | int) and str(value)), "")
    return re.sub(r"[^\w.-]+", "_", name)[:_NAME_CHARS]


def rewards_by_class(rewards: Iterable[tuple[str, float]], prefix: str) -> dict[str, float]:
    """Return the mean reward of each class as figures; none if there is a single class, or too many.

    :param rewards: class and reward of each group or task.
    """
    by_class: dict[str, list[float]] = {}
    for name, reward in rewards:
        by_class.setdefault(name, []).append(reward)
    if not 2 <= len(by_class) <= MAX_CLASSES:
        return {}
    return {f"{prefix}/{name or 'none'}": fmean(values) for name, values in sorted(by_class.items())}


def signal_figures(batch: Batch) -> dict[str, float]:
    """Return the share of all sampled groups whose rewards are equal, and the mean reward of each class."""
    outcomes = _outcomes(batch)
    if not outcomes:
        return {}
    return {
        "groups/no_signal": fmean(outcome.is_flat for outcome in outcomes),
        **rewards_by_class(((outcome.task_class, outcome.reward) for outcome in outcomes), "reward/class"),
    }


class SignalWatch:
    """Logs advice once when most groups, or all of a class, have had equal rewards for several steps."""

    def __init__(self) -> None:
        self._flat_steps = 0
        self._advised = False
        self._flat_steps_of: Counter[str] = Counter()
        self._warned: set[str] = set()

    def add(self, batch: Batch) -> None:
        """Take the outcomes of a step into account."""
        outcomes = _outcomes(batch)
        if not outcomes:
            return
        is_flat = fmean(outcome.is_flat for outcome in outcomes) > SHARE
        self._flat_steps = self._flat_steps + 1 if is_flat else 0
        if self._flat_steps >= STEPS and not self._advised:
            self._advised = True
            solved = fmean(outcome.reward for outcome in outcomes) > 0.5
            logger.warning(
                "most groups give no signal: their rewards are equal",
                step=batch.step,
                advice=f"use {'harder tasks' if solved else 'easier tasks or examples in the prompt'}, larger groups "
                "(schedule.episodes_per_task), a higher temperature, or schedule.replace_equal",
            )
        by_class: dict[str, list[_GroupOutcome]] = {}
        for outcome in outcomes:
            by_class.setdefault(outcome.task_class, []).append(outcome)
        if len(by_class) <= MAX_CLASSES:
            self._watch_classes(batch.step, by_class)

    def _watch_classes(self, step: int, by_class: Mapping[str, list[_GroupOutcome]]) -> None:
        for name, own in by_class.items():
            others = [
                outcome for other, outcomes in by_class.items() if other != name for outcome in outcomes
            ]
            if not all(outcome.is_flat for outcome in own):
                self._flat_steps_of[name] = 0
            elif not all(outcome.is_flat for outcome in others) and _mean(own) < _mean(others):
                self._flat_steps_of[name] += 1
            if self._flat_steps_of[name] >= STEPS and name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "a class of tasks gives no signal while others learn: it is about to be forgotten",
                    task_class=name or "none",
                    step=step,
                    reward=round(_mean(own), 4),
                    advice="fine-tune on a few right answers first, show an example of it in the prompt, raise its share of the "
                    "tasks, or use larger groups",
                )


def _outcomes(batch: Batch) -> list[_GroupOutcome]:
    kept = [
        _GroupOutcome(group.task_class, fmean(sample.reward for sample in group.samples), group.is_flat)
        for group in batch.groups
        if group.samples
    ]
    return [*kept, *(_GroupOutcome(group.task_class, group.reward, True) for group in batch.replaced)]


def _mean(outcomes: Iterable[_GroupOutcome]) -> float:
    return fmean(outcome.reward for outcome in outcomes)
