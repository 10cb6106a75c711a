"""What every tracker can do, and several of them as one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from agentflow.telemetry import get_logger

__all__ = ["Tracker", "Trackers"]

logger = get_logger("agentflow.train")


class Tracker(Protocol):
    """Where the figures of steps go."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Keep the figures of a step. Steps come in order, each once."""
        ...

    def close(self) -> None:
        """Write what is left, and let go of everything."""
        ...


class Trackers:
    """Several trackers as one. One that fails is told of, and neither the others nor the training feel it."""

    def __init__(self, trackers: Mapping[str, Tracker], after: int = -1) -> None:
        """:param after: the last step that they have already."""
        self._trackers = dict(trackers)
        self._last = after

    @property
    def names(self) -> Sequence[str]:
        """Which they are."""
        return list(self._trackers)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Keep the figures of a step.

        :raises ValueError: if the step was there before: all figures of a step are given at once.
        """
        if step <= self._last:
            raise ValueError(
                f"step {step} comes after step {self._last}: steps are logged in order, each once"
            )
        self._last = step
        for name, tracker in self._trackers.items():
            try:
                tracker.log(step, figures)
            except (
                Exception
            ) as error:  # A full disk, a service that is down: no step is lost for its figures.
                logger.warning("a tracker failed", tracker=name, step=step, error=str(error))

    def close(self) -> None:
        """Close them all."""
        for name, tracker in self._trackers.items():
            try:
                tracker.close()
            except Exception as error:  # The same as above.
                logger.warning("a tracker failed", tracker=name, error=str(error))
