"""Metric interface and scores."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from agentflow.trajectory import Failure, Task, Usage

Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Returns a vector for each text."""


class Scored(Struct, frozen=True):
    """Score of a prediction."""

    score: float
    """From 0 (wrong) to 1 (right)."""
    reason: str = ""
    """Explanation, if there is one."""
    failure: Failure | None = None
    """The prediction could not be judged: nothing is known about it, and `score` is 0."""
    usage: Usage = Usage()
    """Usage of the judgement."""
    weight: float = 1.0
    """Weight in a mean; only the F1 of documents sets it."""


class Metric(Protocol):
    """Scores predictions of tasks."""

    @property
    def name(self) -> str:
        """Its name in settings and reports."""
        ...

    async def score(self, prediction: str, task: Task) -> Scored:
        """Score a prediction of a task.

        :raises RunStopped: if it calls a model and the run can't continue.
        """
        ...
