"""Open the trackers that the settings name."""

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from agentflow.learner.trackers._jsonl import Jsonl
from agentflow.learner.trackers._services import TensorBoard, Trackio, Wandb
from agentflow.learner.trackers._settings import TrackerName, TrackerSettings
from agentflow.learner.trackers._tracker import Tracker, Trackers
from agentflow.telemetry import get_logger

logger = get_logger("agentflow.train")

METRICS = "metrics.jsonl"
"""File of figures in the folder of a run."""


def open_trackers(settings: TrackerSettings, folder: Path, after: int = -1) -> Trackers:
    """Open the trackers of a run. See docs/trackers.md.

    :param after: last step of a resumed run; figures of later steps are discarded.
    :raises ConfigurationError: if the package of a tracker is missing; one line.
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


class Console:
    """Logs selected figures in one line."""

    def __init__(self, shown: Sequence[str]) -> None:
        """:param shown: names of the figures, in order; `*` matches anything."""
        self._shown = shown

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures."""
        names = [name for pattern in self._shown for name in sorted(figures) if fnmatchcase(name, pattern)]
        fields = {name: float(f"{figures[name]:.4g}") for name in dict.fromkeys(names)}
        logger.log(logging.INFO, "step", step=step, **fields)

    def close(self) -> None:
        """Do nothing."""
