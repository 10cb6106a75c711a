"""In which order tasks are drawn: every epoch in an order of its own, all of them known from the seed alone."""

from collections.abc import Iterator, Sequence
from random import Random

from msgspec import Struct

from agentflow.trajectory import Task

__all__ = ["Draw", "Order"]


class Draw(Struct, frozen=True):
    """A task that is drawn to be worked on by a group of episodes."""

    number: int
    """Which draw of the run it is, from 0. The same number is the same task, and the same randomness."""
    task: Task
    """The task."""

    @property
    def group(self) -> str:
        """What its group is called: a task that is drawn again has another group."""
        return f"{self.task.id}@{self.number}"


class Order:
    """The draws of a run. Where it stands is one number, so that it can be gone on with."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, epochs: int | None = None) -> None:
        """Describe it.

        :param epochs: how often each task is drawn; `None`: there is no end.
        """
        self._tasks = tasks
        self._seed = seed
        self._end = None if epochs is None else epochs * len(tasks)
        self._epoch = -1
        self._places: list[int] = []
        self.taken = 0
        """Draws that are made."""

    def take(self, count: int) -> list[Draw]:
        """The next draws; fewer where the last epoch ends, none after it."""
        if self._end is not None:
            count = min(count, self._end - self.taken)
        draws = [self.draw(self.taken + place) for place in range(count)]
        self.taken += len(draws)
        return draws

    def draw(self, number: int) -> Draw:
        """The draw of that number, taken or not."""
        epoch, place = divmod(number, len(self._tasks))
        if epoch != self._epoch:
            self._epoch = epoch
            self._places = list(range(len(self._tasks)))
            Random(f"{self._seed}/{epoch}").shuffle(self._places)
        return Draw(number, self._tasks[self._places[place]])

    def __iter__(self) -> Iterator[Draw]:
        while draws := self.take(1):
            yield from draws
