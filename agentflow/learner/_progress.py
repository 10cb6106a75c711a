"""Progress of a training run."""

import time
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from agentflow.learner._groups import EpisodeResult
from agentflow.runs import Phase


class TrainStatus(Struct, frozen=True, kw_only=True):
    """Progress of a training run at one moment."""

    phase: Phase
    """Current phase."""
    step: int
    """Number of steps made."""
    steps: int | None
    """Number of steps of the run; `None`: determined by the tasks."""
    episodes: int
    """Number of episodes this process has run."""
    failed: dict[str, int] = field(default_factory=dict[str, int])
    """Number of them left out, by reason."""
    reward: float | None = None
    """Mean reward of the last step."""
    validation: float | None = None
    """Last score on the held-out tasks."""
    seconds: float = 0.0
    """Seconds since this process began."""


class TrainProgress:
    """Counts steps and episodes of a training run."""

    def __init__(self, steps: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start counting.

        :param clock: monotonic seconds.
        """
        self.phase = Phase.STARTING
        """Current phase."""
        self.step = 0
        """Number of steps made."""
        self._steps = steps
        self._clock = clock
        self._began = clock()
        self._episodes = 0
        self._failed: dict[str, int] = {}
        self._reward: float | None = None
        self._validation: float | None = None

    def add_result(self, result: EpisodeResult) -> None:
        """Count an episode."""
        self._episodes += 1
        if result.failure is not None:
            kind = str(result.failure.kind)
            self._failed[kind] = self._failed.get(kind, 0) + 1

    def add_step(self, step: int, figures: Mapping[str, float]) -> None:
        """Count a step."""
        self.step = step
        self._reward = figures.get("reward/mean", self._reward)
        self._validation = figures.get("validation/score", self._validation)

    def status(self) -> TrainStatus:
        """Return the progress so far."""
        return TrainStatus(
            phase=self.phase,
            step=self.step,
            steps=self._steps,
            episodes=self._episodes,
            failed=dict(sorted(self._failed.items())),
            reward=self._reward,
            validation=self._validation,
            seconds=self._clock() - self._began,
        )
