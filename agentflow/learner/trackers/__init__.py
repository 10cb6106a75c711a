"""Trackers: where the figures of training steps go. The console and a file of JSON lines need no further package."""

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
