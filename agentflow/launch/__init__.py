"""Runs on several workers: processes of this machine, or of the machines of a Ray cluster. See docs/scaling.md."""

from agentflow.launch._kubernetes import render_job
from agentflow.launch._ray import RayWorkers
from agentflow.launch._status import LaunchedRuns, LaunchStatus
from agentflow.launch._workers import LocalWorkers, WorkerCommand, WorkerEnd

__all__ = [
    "LaunchStatus",
    "LaunchedRuns",
    "LocalWorkers",
    "RayWorkers",
    "WorkerCommand",
    "WorkerEnd",
    "render_job",
]
