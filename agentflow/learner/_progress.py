"""How far a training run is."""

import time
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from agentflow.learner._groups import Played
from agentflow.runs import Phase

__all__ = ["TrainProgress", "TrainStatus"]


class TrainStatus(Struct, frozen=True, kw_only=True):
    """How far a training run is, at one moment."""

    phase: Phase
    """What it is doing."""
    step: int
    """Steps that are made."""
    steps: int | None
    """How many there will be; `None`: as many as the tasks give."""
    episodes: int
    """Episodes that this process played."""
    failed: dict[str, int] = field(default_factory=dict[str, int])
    """Those of them that are left out, by why."""
    reward: float | None = None
    """The mean reward of the last step."""
    validation: float | None = None
    """The last score on held-out tasks."""
    seconds: float = 0.0
    """Since this process began."""


class TrainProgress:
    """Counts while a training run goes on."""

    def __init__(self, steps: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin.

        :param clock: seconds that only grow.
        """
        self.phase = Phase.STARTING
        """What the run is doing."""
        self.step = 0
        """Steps that are made."""
        self._steps = steps
        self._clock = clock
        self._began = clock()
        self._episodes = 0
        self._failed: dict[str, int] = {}
        self._reward: float | None = None
        self._validation: float | None = None

    def played(self, played: Played) -> None:
        """An episode ended."""
        self._episodes += 1
        if played.failure is not None:
            kind = str(played.failure.kind)
            self._failed[kind] = self._failed.get(kind, 0) + 1

    def made(self, step: int, figures: Mapping[str, float]) -> None:
        """A step is made."""
        self.step = step
        self._reward = figures.get("reward/mean", self._reward)
        self._validation = figures.get("validation/score", self._validation)

    def status(self) -> TrainStatus:
        """How far it is now."""
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
