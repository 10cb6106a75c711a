"""Rollouts of a training run: the interface, and the default, episodes of the team or a single agent."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from msgspec import Struct

from agentflow.learner._config import TrainConfig
from agentflow.learner._debug import debug_rollouts
from agentflow.learner._episode_runner import open_episode_runner
from agentflow.learner._group_rollout import GroupRollout, GroupSettings, PolicyRollout
from agentflow.learner._groups import EpisodeResult
from agentflow.models import Accounts, ModelSettings
from agentflow.rollouts import Assignment
from agentflow.scoring import Metric


class RolloutContext(Struct, frozen=True, kw_only=True):
    """Resources of a run that its rollouts use."""

    config: TrainConfig
    """Settings of the run."""
    assignment: Assignment
    """Tasks and their metric."""
    models: Mapping[str, ModelSettings]
    """Model of each role, with the addresses of those that the run serves."""
    engine_ready: Callable[[], Awaitable[None]]
    """Waits until the engine answers."""
    on_result: Callable[[EpisodeResult], None]
    """Called with the result of each episode."""
    accounts: Accounts
    """Usage of the models, and its budgets."""
    version: int = 0
    """Version of the weights at the beginning."""


class RolloutFactory(Protocol):
    """Opens the rollouts of a run. Give one to `TrainRun` to train on episodes of other programs."""

    def models(self, config: TrainConfig) -> Mapping[str, ModelSettings]:
        """Return the model of each role; `policy` and `frozen` are served by the run."""
        ...

    def open(self, context: RolloutContext) -> AbstractAsyncContextManager[PolicyRollout]:
        """Open the rollouts for the duration of a run."""
        ...

    async def debug(
        self, config: TrainConfig, assignment: Assignment, say: Callable[[str], None]
    ) -> dict[str, float]:
        """Run the episodes of backbone=debug and print each; return the figures of the last step.

        :param say: receives one line at a time.
        """
        ...


class TeamRollouts:
    """Episodes of the team or a single agent, independent or branching. Implements `RolloutFactory`."""

    def __init__(self, metric: Metric | None = None) -> None:
        """Configure it.

        :param metric: metric of the answers, instead of that of the settings.
        """
        self._metric = metric

    def models(self, config: TrainConfig) -> Mapping[str, ModelSettings]:
        """Return the model of each role."""
        return config.episodes.models

    @asynccontextmanager
    async def open(self, context: RolloutContext) -> AsyncGenerator[PolicyRollout]:
        """Open sandboxes, models and roles."""
        config = context.config
        async with open_episode_runner(
            config, context.assignment, context.models, self._metric, context.accounts
        ) as runner:
            yield GroupRollout(
                runner,
                GroupSettings.of(config),
                branch=runner.branch if config.branching is not None else None,
                engine_ready=context.engine_ready,
                on_result=context.on_result,
            )

    async def debug(
        self, config: TrainConfig, assignment: Assignment, say: Callable[[str], None]
    ) -> dict[str, float]:
        """Run episodes one at a time and print each."""
        return await debug_rollouts(config, assignment, self._metric, say)
