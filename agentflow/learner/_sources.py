"""The order of tasks, and sources of batches: synchronous and asynchronous rollouts, and stored rollouts.

An asynchronous source runs episodes while steps are made, within a bound on their staleness.
"""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from random import Random
from typing import Literal, Protocol

import anyio
from msgspec import structs

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._checkpoints import RolloutStore
from agentflow.learner._group_rollout import PolicyRollout
from agentflow.learner._groups import Batch, EpisodeResult, FailureCause, Group, ReplacedGroup, TaskDraw
from agentflow.trace import Failure, Task

EQUAL = "equal"
"""Reason for leaving out a group: its rewards are all equal."""


class TaskOrder:
    """The draws of a run. Its state is one number, so a run can resume."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, epochs: int | None = None) -> None:
        """Configure it.

        :param epochs: number of draws of each task; `None`: unlimited.
        """
        self._tasks = tasks
        self._seed = seed
        self._end = None if epochs is None else epochs * len(tasks)
        self._epoch = -1
        self._places: list[int] = []
        self.taken = 0
        """Number of draws made."""

    def take(self, count: int) -> list[TaskDraw]:
        """Return the next draws; fewer at the end of the last epoch, none after it."""
        if self._end is not None:
            count = min(count, self._end - self.taken)
        draws = [self.draw(self.taken + offset) for offset in range(count)]
        self.taken += len(draws)
        return draws

    def draw(self, number: int) -> TaskDraw:
        """Return the draw of that number, made or not."""
        epoch, index = divmod(number, len(self._tasks))
        if epoch != self._epoch:
            self._epoch = epoch
            self._places = list(range(len(self._tasks)))
            Random(f"{self._seed}/{epoch}").shuffle(self._places)
        return TaskDraw(number, self._tasks[self._places[index]])

    def __iter__(self) -> Iterator[TaskDraw]:
        while draws := self.take(1):
            yield from draws


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

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run what runs beside the steps inside the block."""
        ...


class SyncSource:
    """Alternates between rollouts and steps. The same weights and seed give the same batch."""

    def __init__(
        self, rollout: PolicyRollout, order: TaskOrder, *, tasks: int, size: int, replace_equal: float
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

    def running(self) -> AbstractAsyncContextManager[None]:
        """Do nothing: `collect` runs the episodes."""
        return nullcontext()

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
        return Batch(
            step=step,
            version=version,
            taken=self._order.taken,
            groups=tuple(kept),
            dropped={EQUAL: len(flat)} if flat else {},
            replaced=tuple(map(ReplacedGroup.of, flat)),
        )


class ReplaySource:
    """Reads stored rollouts."""

    def __init__(self, rollouts: RolloutStore) -> None:
        self._rollouts = rollouts

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """Do nothing: the step number identifies the batch."""
        del taken, pending

    def running(self) -> AbstractAsyncContextManager[None]:
        """Do nothing: there are no episodes to run."""
        return nullcontext()

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


async def run_groups(rollout: PolicyRollout, draws: Sequence[TaskDraw], size: int) -> list[Group]:
    """Run the groups of draws concurrently and return them in the order of the draws."""
    groups: list[Group | None] = [None] * len(draws)

    async def run_group(index: int, draw: TaskDraw) -> None:
        groups[index] = await rollout.group(draw, size)

    async with anyio.create_task_group() as tasks:
        for index, draw in enumerate(draws):
            tasks.start_soon(run_group, index, draw)
    return [group for group in groups if group is not None]


def refuse_empty(step: int, groups: Sequence[Group]) -> None:
    """Refuse a step without an episode.

    :raises RunStopped: if none counts, with the most frequent reason.
    """
    if any(group.samples for group in groups):
        return
    reasons = [failure for group in groups for failure in group.failures]
    [(kind, count)] = Counter(failure.kind for failure in reasons).most_common(1)
    example = next(failure.message for failure in reasons if failure.kind == kind)
    message = f"step {step}: all {len(reasons)} episodes failed, {count} of them with {kind}: {example}"
    raise RunStopped(StopCause.MODEL, f"{message}; fix that, then run the same command to resume")


class _PendingGroup:
    """A group that is running, or finished and not used yet."""

    def __init__(self, draw: TaskDraw, version: int, size: int) -> None:
        self.draw = draw
        self.version = version
        self.results: list[EpisodeResult | None] = [None] * size
        self.scope = anyio.CancelScope()
        self.group: Group | None = None


class AsyncSource:
    """Starts groups as long as they can be used in time, and uses the oldest first.

    Enough groups are started that each would be used within the bound if none took long. A group that takes so long that
    it would become too old is cancelled: its finished episodes are used, the rest is left out and counted (`drop`); or
    the step waits for it (`wait`).
    """

    def __init__(
        self,
        rollout: PolicyRollout,
        order: TaskOrder,
        *,
        tasks: int,
        size: int,
        bound: int,
        stale: Literal["drop", "wait"] = "drop",
        replace_equal: float = 0.0,
    ) -> None:
        """Configure it.

        :param tasks: groups of a batch.
        :param size: episodes of a group.
        :param bound: maximum age of an episode, in versions of the weights.
        :param stale: treatment of a group that takes too long for that.
        :param replace_equal: maximum share of a batch's groups that are replaced because their rewards are equal.
        """
        self._rollout = rollout
        self._order = order
        self._tasks = tasks
        self._size = size
        self._bound = bound
        self._waits = stale == "wait"
        self._max_replaced = math.floor(tasks * replace_equal)
        self._replaced = 0
        self._again: list[int] = []
        self._pending: dict[int, _PendingGroup] = {}
        self._in_step = False
        self._ended = False
        self._dropped: Counter[str] = Counter()
        self._equal: list[ReplacedGroup] = []
        self._changed = anyio.Event()

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """Continue after an earlier run: its unused draws are run again."""
        self._order.taken = taken
        self._again = sorted(pending)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run episodes inside the block; running ones are cancelled at its end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._start_groups)
            yield
            tasks.cancel_scope.cancel()

    async def collect(self, step: int, version: int) -> Batch | None:
        """Return the oldest groups, as soon as there are enough."""
        self._rollout.version = version
        self._in_step = False
        self._replaced = 0
        self._notify()
        while not self._is_enough(version):
            changed = self._changed
            await changed.wait()
        due = [
            pending
            for pending in self._pending.values()
            if pending.group is None and self._is_due(pending, version)
        ]
        for pending in due:
            self._cancel(pending)
        chosen = self._choose(version)
        self._in_step = True
        self._notify()
        if not chosen:
            return None
        refuse_empty(step, chosen)
        dropped, self._dropped = self._dropped, Counter()
        replaced, self._equal = self._equal, []
        return Batch(
            step=step,
            version=version,
            taken=self._order.taken,
            pending=tuple(sorted([*self._pending, *self._again])),
            groups=tuple(chosen),
            dropped=dict(sorted(dropped.items())),
            replaced=tuple(replaced),
        )

    async def _start_groups(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                while len(self._pending) < self._capacity and (draw := self._next()) is not None:
                    pending = _PendingGroup(draw, self._rollout.version, self._size)
                    self._pending[draw.number] = pending
                    tasks.start_soon(self._run, pending)
                changed = self._changed
                await changed.wait()

    @property
    def _capacity(self) -> int:
        """Maximum number of pending groups: as many as the steps take that may still use them."""
        return (self._bound + (not self._in_step)) * self._tasks

    def _next(self) -> TaskDraw | None:
        if self._again:
            return self._order.draw(self._again.pop(0))
        draws = self._order.take(1)
        self._ended = not draws
        return draws[0] if draws else None

    async def _run(self, pending: _PendingGroup) -> None:
        with pending.scope:
            group = await self._rollout.group(pending.draw, self._size, pending.results)
            if pending.group is not None:
                # It was cancelled just as it ended.
                return
            if self._replaces(group):
                del self._pending[pending.draw.number]
                self._dropped[EQUAL] += 1
                self._equal.append(ReplacedGroup.of(group))
                self._replaced += 1
            else:
                pending.group = group
            self._notify()

    def _replaces(self, group: Group) -> bool:
        return group.is_flat and self._replaced < self._max_replaced

    def _is_due(self, pending: _PendingGroup, version: int) -> bool:
        """Return true if no later step can use it."""
        return version - pending.version >= self._bound

    def _is_enough(self, version: int) -> bool:
        unfinished = [pending for pending in self._pending.values() if pending.group is None]
        if self._waits and any(self._is_due(pending, version) for pending in unfinished):
            return False
        ready = len(self._pending) - len(unfinished)
        exhausted = self._ended and not self._again and not unfinished
        return ready >= self._tasks or exhausted

    def _cancel(self, pending: _PendingGroup) -> None:
        """Cancel a group and keep its finished episodes."""
        pending.scope.cancel()
        pending.group = self._rollout.group_of(pending.draw, pending.results)

    def _choose(self, version: int) -> list[Group]:
        """Return the oldest groups, without the episodes that are too old."""
        ready = [pending for pending in self._pending.values() if pending.group is not None]
        ready.sort(key=lambda pending: (pending.version, pending.draw.number))
        chosen: list[Group] = []
        for pending in ready:
            if len(chosen) == self._tasks and not self._is_due(pending, version):
                break
            del self._pending[pending.draw.number]
            assert pending.group is not None, "filtered above"
            group = self._without_stale(pending.group, version)
            lost = len(group.samples) < 2 and any(
                failure.kind == FailureCause.STALE for failure in group.failures
            )
            if lost or len(chosen) == self._tasks:
                # More groups became due at once than a step takes, or too few episodes are left to compare.
                self._dropped[FailureCause.STALE] += self._size
            else:
                chosen.append(group)
        return sorted(chosen, key=lambda group: group.number)

    def _without_stale(self, group: Group, version: int) -> Group:
        samples = tuple(
            sample for sample in group.samples if version - sample.details["version"] <= self._bound
        )
        old = len(group.samples) - len(samples)
        if not old:
            return group
        failure = Failure(FailureCause.STALE, f"its weights were more than {self._bound} versions old")
        return structs.replace(group, samples=samples, failures=(*group.failures, *[failure] * old))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
