"""Scores of the policy on held-out tasks."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

import anyio

from agentflow.learner._config import ValidationSettings
from agentflow.learner._group_rollout import GroupRollout
from agentflow.learner._groups import EpisodeResult
from agentflow.scoring import bootstrap, pass_at
from agentflow.trajectory import Task

_RIGHT = 0.99


class Validation:
    """Runs the same tasks with the same seeds each time, so that only the policy differs."""

    def __init__(self, rollout: GroupRollout, tasks: Sequence[Task], settings: ValidationSettings) -> None:
        self._rollout = rollout
        self._tasks = tasks
        self._settings = settings

    async def score(self) -> dict[str, float]:
        """Return the mean score over tasks with its confidence interval, pass@k, and figures of the episodes.

        A failed episode (engine, time, reward) is counted and left out; so is a task without any other.
        """
        results: dict[tuple[int, int], EpisodeResult] = {}

        async def one(place: int, sample: int) -> None:
            results[place, sample] = await self._rollout.one(
                self._tasks[place],
                ("validation", place, sample),
                temperature=self._settings.temperature,
                max_turns=self._settings.max_turns,
            )

        async with anyio.create_task_group() as group:
            for place in range(len(self._tasks)):
                for sample in range(self._settings.samples):
                    group.start_soon(partial(one, place, sample))
        return self._figures(results)

    def _figures(self, results: dict[tuple[int, int], EpisodeResult]) -> dict[str, float]:
        by_task: dict[int, list[EpisodeResult]] = {}
        for place, one in sorted(results.items()):
            if one.failure is None:
                by_task.setdefault(place[0], []).append(one)
        means = [fmean(one.reward for one in ones) for ones in by_task.values()]
        interval = bootstrap(means)
        finished = [one.episode for ones in by_task.values() for one in ones if one.episode is not None]
        turns = [turn for episode in finished for turn in episode.turns]
        figures = {
            "validation/score": fmean(means) if means else 0.0,
            "validation/score_low": interval.low,
            "validation/score_high": interval.high,
            "validation/tasks": float(len(means)),
            "validation/lost": float(len(results) - len(finished)),
            "validation/turns": len(turns) / len(finished) if finished else 0.0,
            "validation/answered": fmean([one.failure is None for one in finished]) if finished else 0.0,
            "validation/tool_errors": float(
                sum(turn.failure is not None or bool(turn.trouble) for turn in turns)
            ),
            "validation/tool_calls": float(sum(turn.action is not None for turn in turns)),
        }
        whole = [ones for ones in by_task.values() if len(ones) == self._settings.samples]
        for k in range(2, self._settings.samples + 1):
            counts = [sum(one.reward >= _RIGHT for one in ones) for ones in whole]
            if counts and not k & (k - 1):
                figures[f"validation/pass@{k}"] = fmean(
                    pass_at(k, right=count, samples=self._settings.samples) for count in counts
                )
        return figures
