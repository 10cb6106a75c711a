"""Our own team, or single agent, as a workflow: its trained roles call the gateway, each with the key of its episode."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from pydantic import SecretStr

from agentflow.errors import RunStopped, StopCause
from agentflow.gateway import EpisodeOutcome
from agentflow.learner import POLICY, TrainConfig, external_failure, open_episode_runner
from agentflow.models import Accounts, Model, ModelEndpoints, ModelSettings, make_model
from agentflow.rollout import Assignment
from agentflow.tasks import scored_verdict
from agentflow.trajectory import Task
from agentflow.tuner._workflow import PolicyEndpoint, Solve

_NO_KEY: Final = SecretStr("each episode has its own")


@asynccontextmanager
async def open_team_workflow(
    config: TrainConfig, assignment: Assignment, models: Mapping[str, ModelSettings], base_url: str
) -> AsyncGenerator[Solve]:
    """Open the team of the settings, its models and its sandboxes; yield the workflow that plays it.

    Each trained role is an agent of the gateway. The other roles call their models directly.

    :param models: model of each role.
    :param base_url: address of the gateway, up to `/v1`.
    :raises ConfigurationError: if a setting can't be used.
    """
    trained = config.episodes.trained_roles
    at_gateway: dict[str, object] = {
        "name": POLICY,
        "base_url": base_url,
        "api_key": _NO_KEY,
        "tokens": False,
    }
    placed = {
        role: model.model_copy(update=at_gateway) if role in trained else model
        for role, model in models.items()
    }
    endpoints = ModelEndpoints()
    async with open_episode_runner(config, assignment, placed) as runner:

        async def solve(task: Task, policy: PolicyEndpoint) -> EpisodeOutcome:
            async with AsyncExitStack() as stack:
                own: dict[str, Model] = {}
                for role in trained:
                    key = SecretStr(policy.agent(role).api_key)
                    settings = placed[role].model_copy(update={"name": policy.model, "api_key": key})
                    own[role] = await stack.enter_async_context(
                        make_model(settings, Accounts(), endpoints=endpoints)
                    )
                episode = await runner.play(task, policy.episode, models=own)
            if (failure := external_failure(episode)) is not None:
                raise RunStopped(StopCause.MODEL, failure.message)
            figures = {
                "turns": float(len(episode.turns)),
                "tool_calls": float(sum(turn.action is not None for turn in episode.turns)),
                "tool_errors": float(sum(turn.failed for turn in episode.turns)),
                "answered": float(episode.failure is None),
            }
            if episode.failure is not None:
                return EpisodeOutcome(answer="", reward=0.0, metrics=figures)
            if episode.verdict is None:
                return EpisodeOutcome(answer=episode.answer, metrics=figures)
            scored = scored_verdict(episode.verdict)
            if scored.failure is not None:
                return EpisodeOutcome(answer=episode.answer, failure=scored.failure.message, metrics=figures)
            return EpisodeOutcome(answer=episode.answer, reward=scored.score, metrics=figures)

        yield solve
