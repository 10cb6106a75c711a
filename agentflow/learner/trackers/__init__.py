"""Trackers of the figures of training steps. The console and JSON lines need no further package. See docs/trackers.md."""

from agentflow.learner.trackers._jsonl import read_figures
from agentflow.learner.trackers._trackers import (
    METRICS,
    Tracker,
    TrackerName,
    Trackers,
    TrackerSettings,
    open_trackers,
)

__all__ = [
    "METRICS",
    "Tracker",
    "TrackerName",
    "TrackerSettings",
    "Trackers",
    "open_trackers",
    "read_figures",
]
