"""Which trackers there are, and what they are told."""

from typing import Literal, TypeAlias

from agentflow.settings import Section

__all__ = ["TrackerName", "TrackerSettings"]

TrackerName: TypeAlias = Literal["console", "jsonl", "tensorboard", "trackio", "wandb"]
"""A tracker."""


class TrackerSettings(Section):
    """Where the figures of steps go."""

    use: tuple[TrackerName, ...] = ("console", "jsonl")
    """The trackers: console, jsonl, tensorboard, trackio, wandb; any number of them."""
    console_figures: tuple[str, ...] = (
        "reward/mean",
        "validation/*",
        "step/loss",
        "step/gradient_norm",
        "engine/k3",
        "groups/flat_share",
    )
    """The figures that the console shows, by name; `*` stands for anything."""
    project: str = "agentflow"
    """What trackio and wandb file the run under."""
    name: str | None = None
    """What they call the run; `None`: as the folder of the run."""
    online: bool = False
    """Whether wandb sends what it has to its service; else it keeps it in the folder, for `wandb sync`."""
