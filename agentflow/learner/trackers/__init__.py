"""Trackers of the figures of training steps. The console and JSON lines need no further package. See docs/trackers.md."""

from agentflow.learner.trackers._jsonl import read_figures
from agentflow.learner.trackers._open import METRICS, open_trackers
from agentflow.learner.trackers._settings import TrackerName, TrackerSettings
from agentflow.learner.trackers._tracker import Tracker, Trackers

__all__ = [
    "METRICS",
    "Tracker",
    "TrackerName",
    "TrackerSettings",
    "Trackers",
    "open_trackers",
    "read_figures",
]
