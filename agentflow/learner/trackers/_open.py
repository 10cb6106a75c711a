"""The trackers that the settings name."""

from pathlib import Path

from agentflow.learner.trackers._console import Console
from agentflow.learner.trackers._jsonl import Jsonl
from agentflow.learner.trackers._services import TensorBoard, Trackio, Wandb
from agentflow.learner.trackers._settings import TrackerName, TrackerSettings
from agentflow.learner.trackers._tracker import Tracker, Trackers

__all__ = ["METRICS", "open_trackers"]

METRICS = "metrics.jsonl"
"""The file of figures in the folder of a run."""


def open_trackers(settings: TrackerSettings, folder: Path, after: int = -1) -> Trackers:
    """The trackers that the settings name, for the run in that folder.

    :param after: the last step of the run that goes on; what they hold of later ones no longer counts.
    :raises ConfigurationError: one line, if the package of one is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    opened: dict[str, Tracker] = {}
    try:
        for name in dict.fromkeys(settings.use):
            opened[name] = _open(name, settings, folder, after)
    except BaseException:
        Trackers(opened).close()
        raise
    return Trackers(opened, after)


def _open(name: TrackerName, settings: TrackerSettings, folder: Path, after: int) -> Tracker:
    match name:
        case "console":
            return Console(settings.console_figures)
        case "jsonl":
            return Jsonl(folder / METRICS, after)
        case "tensorboard":
            return TensorBoard(folder, after)
        case "trackio":
            return Trackio(settings, folder, after)
        case "wandb":
            return Wandb(settings, folder, after)
