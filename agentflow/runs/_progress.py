"""How far a run is: what its field tells of it, and what its models consume."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from agentflow.trajectory import Usage

if TYPE_CHECKING:
    from agentflow.models import Accounts, OpenModel, Statistics

__all__ = ["FieldProgress", "Phase", "RunProgress"]


class Phase(StrEnum):
    """What a run is doing. The set is closed."""

    STARTING = "starting"
    """It opens what it needs."""
    GROWING = "growing"
    """Trees and paths grow."""
    PAUSED = "paused"
    """It waits to be resumed: nothing new begins."""
    STOPPING = "stopping"
    """What is in flight ends."""
    WRITING = "writing"
    """The files are written."""
    DONE = "done"
    """Everything is done."""
    STOPPED = "stopped"
    """It ended early; the same command goes on."""


class FieldProgress:
    """What the field counts."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        """What the run is doing."""
        self.seeds = 0
        """Seeds that the run has."""
        self.done = 0
        """Seeds that are finished, as far as this process knows."""
        self.open_trees = 0
        """Seeds in work in this process."""


class RunProgress(FieldProgress):
    """The same, with what the models of the run are doing and did."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.models: Sequence[OpenModel] = ()
        """The engines, each once."""
        self.accounts: Accounts | None = None
        """What was consumed."""
        self._clock = clock
        self._began = clock()

    @property
    def seconds(self) -> float:
        """Since this process began."""
        return self._clock() - self._began

    @property
    def usage(self) -> dict[str, Usage]:
        """What models consumed, by role, in the whole run."""
        return {} if self.accounts is None else dict(sorted(self.accounts.by_role.items()))

    @property
    def cost(self) -> float:
        """What that cost, by the prices given."""
        return 0.0 if self.accounts is None else self.accounts.cost

    def statistics(self) -> "list[Statistics]":
        """What each engine is doing and did."""
        return [model.statistics() for model in self.models]
