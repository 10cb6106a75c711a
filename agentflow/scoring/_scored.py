"""What a metric is, and what it says."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from agentflow.trajectory import Failure, Task, Usage

__all__ = ["Embed", "Metric", "Scored"]

Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Gives a vector for each text."""


class Scored(Struct, frozen=True):
    """What a prediction is worth."""

    score: float
    """From 0, wrong, to 1, right."""
    reason: str = ""
    """Why, where there is something to say."""
    failure: Failure | None = None
    """It could not be judged: nothing is known about the prediction, and `score` is 0."""
    usage: Usage = Usage()
    """What judging it consumed."""
    weight: float = 1.0
    """How much it counts in a mean; only the F1 of documents sets it."""


class Metric(Protocol):
    """Scores predictions of tasks."""

    @property
    def name(self) -> str:
        """What it is called in settings and reports."""
        ...

    async def score(self, prediction: str, task: Task) -> Scored:
        """What the prediction is worth for that task.

        :raises RunStopped: if it asks a model and the run can't go on.
        """
        ...
