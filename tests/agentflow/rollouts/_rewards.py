"""A reward of a user's own, broken for some tasks."""

from agentflow.trace import Task

broken: set[str] = set()
"""Ids of the tasks for which it is broken."""


def close(prediction: str, task: Task) -> float:
    """Return full marks, or fail."""
    if task.id in broken:
        raise KeyError(f"answer {task.id}")
    return float(bool(prediction))
