"""Sources of batches: synchronous rollouts, and stored rollouts."""

import math
from collections.abc import Sequence
from typing import Protocol

import anyio

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._group_rollout import GroupRollout
from agentflow.learner._groups import Batch, Group
from agentflow.learner._rollout_store import RolloutStore
from agentflow.learner._task_order import TaskDraw, TaskOrder

EQUAL = "equal"
"""Reason for leaving out a group: its rewards are all equal."""


class BatchSource(Protocol):
    """Supplies the batches of steps."""

    async def collect(self, step: int, version: int) -> Batch | None:
        """Return the batch of a step; `None`: there are no more.

        :param version: version of the weights at the beginning of the step.
        :raises RunStopped: if no episode of the batch succeeded.
        """
        ...

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """Continue after an earlier run.

        :param taken: number of draws made.
        :param pending: draws that no step has used.
        """
        ...


class SyncSource:
    """Alternates between rollouts and steps. The same weights and seed give the same batch."""

    def __init__(
        self, rollout: GroupRollout, order: TaskOrder, *, tasks: int, size: int, replace_equal: float
    ) -> None:
        """Configure it.

        :param tasks: groups of a batch.
        :param size: episodes of a group.
        :param replace_equal: maximum share of additional groups, to replace those whose rewards are equal.
        """
        self._rollout = rollout
        self._order = order
        self._tasks = tasks
        self._size = size
        self._max_groups = tasks + math.floor(tasks * replace_equal)
        self._replaces = replace_equal > 0

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """Continue after an earlier run. Draws left unused by asynchronous rollouts are skipped."""
        del pending
        self._order.taken = taken

    async def collect(self, step: int, version: int) -> Batch | None:
        """Run the groups of a step; groups with equal rewards are replaced, a wave at a time, independent of timing."""
        self._rollout.version = version
        kept: list[Group] = []
        flat: list[Group] = []
        while draws := self._order.take(
            min(self._tasks - len(kept), self._max_groups - len(kept) - len(flat))
        ):
            for group in await run_groups(self._rollout, draws, self._size):
                (flat if self._replaces and group.is_flat else kept).append(group)
        if not kept:
            kept, flat = flat, []
        if not kept:
            return None
        refuse_empty(step, kept)
        kept.sort(key=lambda group: group.number)
        dropped = {EQUAL: len(flat)} if flat else {}
        return Batch(step=step, version=version, taken=self._order.taken, groups=tuple(kept), dropped=dropped)


class ReplaySource:
    """Reads stored rollouts."""

    def __init__(self, rollouts: RolloutStore) -> None:
        self._rollouts = rollouts

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """Do nothing: the step number identifies the batch."""
        del taken, pending

    async def collect(self, step: int, version: int) -> Batch | None:
        """Return the stored batch of a step.

        :raises ConfigurationError: if not even the first one exists.
        """
        del version
        batch = self._rollouts.read(step)
        if batch is None and step == 1:
            raise ConfigurationError(
                f"schedule.replay: there is no {self._rollouts.path(1)}; name a folder of stored rollouts"
            )
        return batch


async def run_groups(rollout: GroupRollout, draws: Sequence[TaskDraw], size: int) -> list[Group]:
    """Run the groups of draws concurrently and return them in the order of the draws."""
    groups: list[Group | None] = [None] * len(draws)

    async def one(place: int, draw: TaskDraw) -> None:
        groups[place] = await rollout.group(draw, size)

    async with anyio.create_task_group() as tasks:
        for place, draw in enumerate(draws):
            tasks.start_soon(one, place, draw)
    return [group for group in groups if group is not None]


def refuse_empty(step: int, groups: Sequence[Group]) -> None:
    """Refuse a step without an episode.

    :raises RunStopped: if none counts, with the most frequent reason.
    """
    if any(group.samples for group in groups):
        return
    reasons = [failure for group in groups for failure in group.failures]
    kinds = [failure.kind for failure in reasons]
    kind = max(dict.fromkeys(kinds), key=kinds.count)
    example = next(failure.message for failure in reasons if failure.kind == kind)
    message = (
        f"step {step}: all {len(reasons)} episodes failed, {kinds.count(kind)} of them with {kind}: {example}"
    )
    raise RunStopped(StopCause.MODEL, f"{message}; fix that, then run the same command to resume")
