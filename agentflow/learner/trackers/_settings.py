"""Settings of the trackers."""

from typing import Literal, TypeAlias

from agentflow.settings import Section

TrackerName: TypeAlias = Literal["console", "jsonl", "tensorboard", "trackio", "wandb"]
"""Name of a tracker."""


class TrackerSettings(Section):
    """Trackers of the figures of steps. See docs/trackers.md."""

    use: tuple[TrackerName, ...] = ("console", "jsonl")
    """Trackers to use: console, jsonl, tensorboard, trackio, wandb."""
    console_figures: tuple[str, ...] = (
        "reward/mean",
        "validation/*",
        "step/loss",
        "step/gradient_norm",
        "engine/k3",
        "groups/flat_share",
    )
    """Figures shown on the console, by name; `*` matches anything."""
    project: str = "agentflow"
    """Project name for trackio and wandb."""
    name: str | None = None
    """Run name for them; `None`: the name of the run's folder."""
    online: bool = False
    """Upload to wandb's service; otherwise keep the data in the run's folder for `wandb sync`."""
