"""How far a run is: what its field tells of it."""

from enum import StrEnum

__all__ = ["FieldProgress", "Phase"]


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
