"""Where the batches of steps come from: played one after the other, or read from stored rollouts."""

import math
from collections.abc import Sequence
from typing import Protocol

import anyio

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._group_rollout import Playing
from agentflow.learner._groups import Batch, Group
from agentflow.learner._order import Draw, Order
from agentflow.learner._record import Rollouts

__all__ = ["EQUAL", "Replayed", "Rounds", "Source", "play_all", "refuse_empty"]

EQUAL = "equal"
"""Why a group is left out: the rewards of its episodes are all equal."""


class Source(Protocol):
    """Gives steps what they learn from."""

    async def collect(self, step: int, version: int) -> Batch | None:
        """The batch of a step; `None`: there is no more.

        :param version: the weights that the step begins with.
        :raises RunStopped: if there is none to be had.
        """
        ...

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """Go on where another run stopped.

        :param taken: how many draws were made.
        :param pending: those of them that no step has used.
        """
        ...


class Rounds:
    """Steps and episodes take turns. The same weights and the same seed give the same batch."""

    def __init__(
        self, playing: Playing, order: Order, *, tasks: int, size: int, replace_equal: float
    ) -> None:
        """Describe it.

        :param tasks: groups of a batch.
        :param size: episodes of a group.
        :param replace_equal: how many more groups may be played, as a share, for those whose rewards are equal.
        """
        self._playing = playing
        self._order = order
        self._tasks = tasks
        self._size = size
        self._most = tasks + math.floor(tasks * replace_equal)
        self._replaces = replace_equal > 0

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """Go on there. What another mode left unused is not made up for: its order was another one."""
        del pending
        self._order.taken = taken

    async def collect(self, step: int, version: int) -> Batch | None:
        """Play groups; those that tell nothing are replaced, a wave of them at a time, so that speed decides nothing."""
        self._playing.version = version
        kept: list[Group] = []
        flat: list[Group] = []
        while draws := self._order.take(min(self._tasks - len(kept), self._most - len(kept) - len(flat))):
            for group in await play_all(self._playing, draws, self._size):
                (flat if self._replaces and group.is_flat else kept).append(group)
        if not kept:
            kept, flat = flat, []
        if not kept:
            return None
        refuse_empty(step, kept)
        kept.sort(key=lambda group: group.number)
        dropped = {EQUAL: len(flat)} if flat else {}
        return Batch(step=step, version=version, taken=self._order.taken, groups=tuple(kept), dropped=dropped)


class Replayed:
    """Steps learn from what is stored."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    def resume(self, taken: int, pending: Sequence[int]) -> None:
        """The step alone says which batch it is."""
        del taken, pending

    async def collect(self, step: int, version: int) -> Batch | None:
        """What the step of that number learned from.

        :raises ConfigurationError: if not even the first one is there.
        """
        del version
        batch = self._rollouts.read(step)
        if batch is None and step == 1:
            raise ConfigurationError(
                f"schedule.replay: there is no {self._rollouts.path(1)}; name a folder of stored rollouts"
            )
        return batch


async def play_all(playing: Playing, draws: Sequence[Draw], size: int) -> list[Group]:
    """Play the groups of all these draws at once; they come in the order of the draws."""
    played: list[Group | None] = [None] * len(draws)

    async def one(place: int, draw: Draw) -> None:
        played[place] = await playing.group(draw, size)

    async with anyio.create_task_group() as tasks:
        for place, draw in enumerate(draws):
            tasks.start_soon(one, place, draw)
    return [group for group in played if group is not None]


def refuse_empty(step: int, groups: Sequence[Group]) -> None:
    """A step that has not one episode is no step.

    :raises RunStopped: if none counts; with the reason of most of them.
    """
    if any(group.samples for group in groups):
        return
    reasons = [failure for group in groups for failure in group.failures]
    kinds = [failure.kind for failure in reasons]
    kind = max(dict.fromkeys(kinds), key=kinds.count)
    said = next(failure.message for failure in reasons if failure.kind == kind)
    message = (
        f"step {step}: not one of {len(reasons)} episodes counts; {kinds.count(kind)} of them: {kind}: {said}"
    )
    raise RunStopped(StopCause.MODEL, f"{message}; mend that, then run the same again")
