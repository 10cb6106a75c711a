"""Interface of a tracker, and several trackers as one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from agentflow.telemetry import get_logger

logger = get_logger("agentflow.train")


class Tracker(Protocol):
    """Receives the figures of steps."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Store the figures of a step. Steps come in order, each once."""
        ...

    def close(self) -> None:
        """Flush and release all resources."""
        ...


class Trackers:
    """Several trackers as one. Errors of a tracker are logged; they affect neither the others nor the training."""

    def __init__(self, trackers: Mapping[str, Tracker], after: int = -1) -> None:
        """:param after: last step that they already have."""
        self._trackers = dict(trackers)
        self._last = after

    @property
    def names(self) -> Sequence[str]:
        """Names of the trackers."""
        return list(self._trackers)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Store the figures of a step.

        :raises ValueError: if the step was logged before: all figures of a step are given at once.
        """
        if step <= self._last:
            raise ValueError(
                f"step {step} comes after step {self._last}: steps are logged in order, each once"
            )
        self._last = step
        for name, tracker in self._trackers.items():
            try:
                tracker.log(step, figures)
            except Exception as error:  # no step is lost because of its figures: full disk, service down
                logger.warning("a tracker failed", tracker=name, step=step, error=str(error))

    def close(self) -> None:
        """Close all trackers."""
        for name, tracker in self._trackers.items():
            try:
                tracker.close()
            except Exception as error:  # same as above
                logger.warning("a tracker failed", tracker=name, error=str(error))
