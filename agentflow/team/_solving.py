"""An episode of the team: analysis, then turn by turn a step, its call, what came back, and whether that is enough."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.journal import Page
from agentflow.models import Prices
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._settings import EpisodeSettings
from agentflow.team._team import Team
from agentflow.trajectory import Episode, Task

__all__ = ["Through", "solve_task"]

T = TypeVar("T")


class Through(Protocol):
    """Lets an effect happen, at once or once it may."""

    async def __call__(self, effect: Callable[[], Awaitable[T]], /) -> T:
        """Have it, and give what came of it."""
        ...


async def solve_task(
    task: Task,
    *,
    team: Team,
    sandbox: Sandbox,
    tools: Sequence[Tool],
    page: Page,
    settings: EpisodeSettings,
    prices: Mapping[str, Prices] | None = None,
    through: Through | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Episode:
    """Have the team work on a task. What stands on the page is neither asked nor done again.

    :param sandbox: the episode's own; whoever gives it closes it.
    :param tools: what may be used.
    :param prices: of each role's model, for `max_cost`.
    :param through: what every call of a model or tool goes through; without one they happen at once.
    :raises RunStopped: if the run can't go on; the page holds what was done.
    """
    raise NotImplementedError
