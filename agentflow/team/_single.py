"""An episode of one agent that calls tools by itself."""

from collections.abc import Sequence

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.journal import Page
from agentflow.models import Model, Prices
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._asking import ReadBlob
from agentflow.team._executor import PutBlob
from agentflow.team._settings import EpisodeSettings
from agentflow.team._solving import Through
from agentflow.trajectory import Episode, Task

__all__ = ["solve_alone"]


async def solve_alone(
    task: Task,
    *,
    model: Model,
    sandbox: Sandbox,
    tools: Sequence[Tool],
    page: Page,
    settings: EpisodeSettings,
    put_blob: PutBlob,
    blob: ReadBlob,
    prices: Prices | None = None,
    through: Through | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Episode:
    """Have one model work on a task, with tools that it calls by itself. See `solve_task`."""
    raise NotImplementedError
