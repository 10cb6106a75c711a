"""Progress of a rollout."""

from collections.abc import Callable

from agentflow.rollouts._result import TaskResult
from agentflow.runs import RunProgress, RunStatus


class RolloutStatus(RunStatus, frozen=True, kw_only=True):
    """Progress of a rollout at one moment."""

    failed: int
    """Number of tasks that this process could not answer."""
    score: float | None
    """Mean score of the tasks that this process scored; `None`: no task was scored yet."""
    unjudged: int
    """Number of answers that this process could not score."""
    trouble: str
    """Reason of the last of them."""


class RolloutProgress(RunProgress):
    """Counters of an active rollout."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._failed = 0
        self._scored = 0
        self._score = 0.0
        self._unjudged = 0
        self._trouble = ""

    def count_unjudged(self, trouble: str) -> None:
        """Count an answer that could not be scored."""
        self._unjudged += 1
        self._trouble = trouble

    def count(self, result: TaskResult) -> None:
        """Count a finished task."""
        if result.failure is not None:
            self._failed += 1
            self.failures[f"task {result.failure.kind}"] += 1
        if result.scored is not None and result.scored.failure is not None:
            self.count_unjudged(f"{result.task.id}: {result.scored.failure.message}")
        elif result.scored is not None:
            self._scored += 1
            self._score += result.score

    def status(self) -> RolloutStatus:
        """Return the current progress."""
        score = self._score / self._scored if self._scored else None
        return RolloutStatus(
            **self._status_fields(),
            failed=self._failed,
            score=score,
            unjudged=self._unjudged,
            trouble=self._trouble,
        )
