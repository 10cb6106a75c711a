"""Episodes that stream in while steps are made: none of them is ever older than its bound when it is learned from."""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
from msgspec import structs

from agentflow.learner._group_rollout import Playing
from agentflow.learner._groups import Batch, FailureCause, Group, Played
from agentflow.learner._order import Draw, Order
from agentflow.learner._sources import EQUAL, refuse_empty
from agentflow.trajectory import Failure

__all__ = ["Stream"]


class _Begun:
    """A group in work, or finished and not used yet."""

    def __init__(self, draw: Draw, version: int, size: int) -> None:
        self.draw = draw
        self.version = version
        self.places: list[Played | None] = [None] * size
        self.scope = anyio.CancelScope()
        self.group: Group | None = None


class Stream:
    """Groups are begun as long as they can be used in time, and used oldest first.

    So many are begun that each would be used within the bound if none took long. One that takes so long that it would
    be too old is cut: what is finished of it is used, the rest is left out and counted (`drop`); or it is waited for
    (`wait`).
    """

    def __init__(
        self,
        playing: Playing,
        order: Order,
        *,
        tasks: int,
        size: int,
        bound: int,
        stale: Literal["drop", "wait"] = "drop",
        replace_equal: float = 0.0,
    ) -> None:
        """Describe it.

        :param tasks: groups of a batch.
        :param size: episodes of a group.
        :param bound: by how many versions an episode may be behind the weights that learn from it.
        :param stale: what becomes of one that takes too long for that.
        :param replace_equal: how many groups a batch may leave out because their rewards are equal, as a share.
        """
        self._playing = playing
        self._order = order
        self._tasks = tasks
        self._size = size
        self._bound = bound
        self._waits = stale == "wait"
        self._replaced_at_most = math.floor(tasks * replace_equal)
        self._replaced = 0
        self._again: list[int] = []
        self._begun: dict[int, _Begun] = {}
        self._in_step = False
        self._ended = False
        self._dropped: Counter[str] = Counter()
        self._changed = anyio.Event()

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """Go on there: what was in work is begun again."""
        self._order.taken = taken
        self._again = sorted(pending)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Play episodes while the block lasts; what is in work at its end is given up."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._begin_groups)
            yield
            tasks.cancel_scope.cancel()

    async def collect(self, step: int, version: int) -> Batch | None:
        """The oldest groups, as soon as there are enough."""
        self._playing.version = version
        self._in_step = False
        self._replaced = 0
        self._notify()
        while not self._is_enough(version):
            changed = self._changed
            await changed.wait()
        due = [
            begun for begun in self._begun.values() if begun.group is None and self._is_due(begun, version)
        ]
        for begun in due:
            self._cut(begun)
        chosen = self._choose(version)
        self._in_step = True
        self._notify()
        if not chosen:
            return None
        refuse_empty(step, chosen)
        dropped, self._dropped = self._dropped, Counter()
        return Batch(
            step=step,
            version=version,
            taken=self._order.taken,
            pending=tuple(sorted([*self._begun, *self._again])),
            groups=tuple(chosen),
            dropped=dict(sorted(dropped.items())),
        )

    async def _begin_groups(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                while len(self._begun) < self._room and (draw := self._next()) is not None:
                    begun = _Begun(draw, self._playing.version, self._size)
                    self._begun[draw.number] = begun
                    tasks.start_soon(self._play, begun)
                changed = self._changed
                await changed.wait()

    @property
    def _room(self) -> int:
        """Groups that may be there at a time: the steps that may use them in time take so many."""
        return (self._bound + (not self._in_step)) * self._tasks

    def _next(self) -> Draw | None:
        if self._again:
            return self._order.draw(self._again.pop(0))
        draws = self._order.take(1)
        self._ended = not draws
        return draws[0] if draws else None

    async def _play(self, begun: _Begun) -> None:
        with begun.scope:
            group = await self._playing.group(begun.draw, self._size, begun.places)
            if begun.group is not None:
                # It was cut just when it ended.
                return
            if self._replaces(group):
                del self._begun[begun.draw.number]
                self._dropped[EQUAL] += 1
                self._replaced += 1
            else:
                begun.group = group
            self._notify()

    def _replaces(self, group: Group) -> bool:
        return group.is_flat and self._replaced < self._replaced_at_most

    def _is_due(self, begun: _Begun, version: int) -> bool:
        """No later step can use it."""
        return version - begun.version >= self._bound

    def _is_enough(self, version: int) -> bool:
        unfinished = [begun for begun in self._begun.values() if begun.group is None]
        if self._waits and any(self._is_due(begun, version) for begun in unfinished):
            return False
        ready = len(self._begun) - len(unfinished)
        none_to_come = self._ended and not self._again and not unfinished
        return ready >= self._tasks or none_to_come

    def _cut(self, begun: _Begun) -> None:
        """Use what is finished of a group; too little of it is nothing."""
        begun.scope.cancel()
        begun.group = self._playing.group_of(begun.draw, begun.places)

    def _choose(self, version: int) -> list[Group]:
        """The oldest groups, each without what is too old in it."""
        ready = [begun for begun in self._begun.values() if begun.group is not None]
        ready.sort(key=lambda begun: (begun.version, begun.draw.number))
        chosen: list[Group] = []
        for begun in ready:
            if len(chosen) == self._tasks and not self._is_due(begun, version):
                break
            del self._begun[begun.draw.number]
            assert begun.group is not None, "it is ready"
            group = self._young(begun.group, version)
            lost = len(group.samples) < 2 and any(each.kind == FailureCause.STALE for each in group.failures)
            if lost or len(chosen) == self._tasks:
                # More fell due at once than a step takes, or too little is left to be compared.
                self._dropped[FailureCause.STALE] += self._size
            else:
                chosen.append(group)
        return sorted(chosen, key=lambda group: group.number)

    def _young(self, group: Group, version: int) -> Group:
        """A group without the episodes that are too old."""
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
