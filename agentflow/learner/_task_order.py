"""Tasks of the readers of a run, and their order: shuffled anew in every epoch, determined by the seed."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal

from msgspec import Struct

from agentflow.learner._config import TrainConfig
from agentflow.learner._signal import class_of
from agentflow.readers import aprepare_tasks, with_own_scorers
from agentflow.rollouts import RolloutConfig
from agentflow.trace import Task


class TaskDraw(Struct, frozen=True):
    """A task drawn for a group of episodes."""

    number: int
    """Number of the draw, from 0. It determines the task and the randomness of its episodes."""
    task: Task
    """The task."""

    @property
    def group(self) -> str:
        """Name of its group: a task drawn again has another group."""
        return f"{self.task.id}@{self.number}"

    @property
    def task_class(self) -> str:
        """Class of its task; empty if it has none."""
        return class_of(self.task)


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
        draws = [self.draw(self.taken + place) for place in range(count)]
        self.taken += len(draws)
        return draws

    def draw(self, number: int) -> TaskDraw:
        """Return the draw of that number, made or not."""
        epoch, place = divmod(number, len(self._tasks))
        if epoch != self._epoch:
            self._epoch = epoch
            self._places = list(range(len(self._tasks)))
            Random(f"{self._seed}/{epoch}").shuffle(self._places)
        return TaskDraw(number, self._tasks[self._places[place]])

    def __iter__(self) -> Iterator[TaskDraw]:
        while draws := self.take(1):
            yield from draws


async def read_tasks_of(
    config: TrainConfig, kind: Literal["training", "validation"], given: Sequence[Task] | None
) -> Sequence[Task] | None:
    """Return the given tasks, or those of a reader; `None`: they are in a file, or the run replays stored rollouts.

    :raises ConfigurationError: one line with the place, if they can't be read.
    """
    reader = config.reader_for(kind)
    if given is not None or reader is None or config.schedule.replay is not None:
        return given
    return (await aprepare_tasks(reader)).tasks


def rules_for_tasks(
    config: TrainConfig, kind: Literal["training", "validation"], tasks: Sequence[Task] | None
) -> RolloutConfig:
    """Return the settings of a rollout; tasks with scorers of their own are scored by these."""
    return with_own_scorers(config.rules_for(kind), tasks or ())
