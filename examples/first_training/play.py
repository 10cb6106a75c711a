"""Run tasks with the team of four roles: the given planner, and roles without a language model."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import Supervisor
from agentflow.engine import EpisodeEngine, EpisodeSettings
from agentflow.journal import MemoryPage
from agentflow.models import (
    Accounts,
    Call,
    Completion,
    Model,
    ModelSettings,
    ModelWrapper,
    Sampling,
    make_model,
)
from agentflow.sandbox import Sandbox, SandboxSettings, Tool
from agentflow.scoring import make_metric
from agentflow.team import Team, TeamAgent
from agentflow.trace import Episode, NextStepRequest, Task, digest
from examples.first_training.teacher import CODE, SEARCH

__all__ = ["Seeded", "TaskOutcome", "play"]

T = TypeVar("T")


class Seeded(ModelWrapper):
    """A model with a seed per call, derived from the request: the same weights give the same episodes."""

    def __init__(self, model: Model, seed: int) -> None:
        """:param seed: another seed gives other samples."""
        super().__init__(model)
        self._seed = seed

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Complete one call."""
        request = call.request
        assert isinstance(request, NextStepRequest), "only the planner is seeded"
        seed = int(digest([self._seed, request.question, request.turns_left]), 16) % 2**31
        return await self._model.complete(replace(call, sampling=Sampling(seed=seed)))


class TaskOutcome(Struct, frozen=True, kw_only=True):
    """TaskOutcome of a task."""

    task: str
    """Id of the task."""
    kind: str
    """Kind of the task."""
    right: bool
    """True if the answer is exactly the expected one."""
    answer: str
    """The answer."""
    steps: int
    """Number of steps the planner was asked for."""
    errors: int
    """Number of steps that were invalid, named no tool, or led to a failed call."""


async def play(
    planner: Model,
    tasks: Sequence[Task],
    corpus: Path,
    *,
    max_turns: int = 3,
    at_once: int = 32,
    tools: Sequence[str] = (CODE, SEARCH),
) -> list[TaskOutcome]:
    """Run every task once.

    :param corpus: documents to search.
    :param tools: names of the tools, in the order of the training.
    """
    outcomes: dict[int, TaskOutcome] = {}
    room = anyio.Semaphore(at_once)
    metric = make_metric("exact_match")
    settings = EpisodeSettings(max_turns=max_turns)
    async with _team(planner) as team, _tools(corpus, tools) as (sandbox, opened):

        async def one(number: int, task: Task) -> None:
            async with room, await sandbox.fork() as own:
                engine = EpisodeEngine(agent=TeamAgent(team), tools=opened, settings=settings)
                episode = await engine.solve(task, own, MemoryPage())
            scored = await metric.score(episode.answer, task)
            outcomes[number] = _outcome(episode, scored.score >= 1)

        async with anyio.create_task_group() as group:
            for number, task in enumerate(tasks):
                group.start_soon(one, number, task)
    return [outcomes[number] for number in range(len(tasks))]


def _outcome(episode: Episode, right: bool) -> TaskOutcome:
    return TaskOutcome(
        task=episode.task.id,
        kind=str(episode.task.metadata.get("kind", "")),
        right=right,
        answer=episode.answer,
        steps=episode.calls["planner"],
        errors=sum(turn.failed for turn in episode.turns),
    )


@asynccontextmanager
async def _team(planner: Model) -> AsyncGenerator[Team]:
    async with make_model(ModelSettings(name="offline"), Accounts()) as offline:
        models = dict.fromkeys(("analyst", "executor", "verifier", "generator"), offline)
        team = Team({**models, "planner": planner}, short_prompts=True)
        async with Supervisor(team.specs(), name="team"):
            yield team


@asynccontextmanager
async def _tools(corpus: Path, names: Sequence[str]) -> AsyncGenerator[tuple[Sandbox, list[Tool]]]:
    backends: dict[str, dict[str, object]] = {"rag": {"index_path": str(corpus), "top_k": 1}}
    if CODE in names:
        backends["code"] = {}
    async with Sandbox(SandboxSettings(backends=backends)) as sandbox:
        yield sandbox, await sandbox.tools(names)
