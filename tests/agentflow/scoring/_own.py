"""Metrics of a user's own."""

from agentflow.scoring import Scored
from agentflow.trace import Task

NOT_CALLABLE = 3


def length(prediction: str, task: Task) -> float:
    """Longer is better."""
    return min(1.0, len(prediction) / len(task.question))


async def later(prediction: str, task: Task) -> Scored:
    """Awaited, with a reason."""
    return Scored(float(prediction in task.references), "looked up")


def broken(prediction: str, task: Task) -> float:
    """Raises."""
    return len(prediction) / (len(task.references) - 1)


def beyond(prediction: str, task: Task) -> float:
    """No share."""
    return 7.0 * len(prediction + task.id)
