"""Work on one task: an episode, further ones if it failed, and the score of the answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ConfigurationError, RunStopped
from agentflow.journal import Page, Run
from agentflow.models import Call, Completion, Model, Prices
from agentflow.rollout._config import AGENT, RolloutConfig
from agentflow.rollout._result import TaskResult, task_of
from agentflow.rollout._sandbox_pool import SandboxPool
from agentflow.runs import PauseGate, unwrap_group
from agentflow.sandbox import Sandbox, Tool
from agentflow.scoring import Metric, Scored
from agentflow.team import EpisodeSettings, Team, solve_alone, solve_task
from agentflow.telemetry import get_logger
from agentflow.trajectory import Episode, Failure, Seed, Task

logger = get_logger(__name__)

T = TypeVar("T")

Solver = Callable[[Task, Sandbox, Page], Awaitable[Episode]]
"""Works on a task in a sandbox; effects recorded on the page are not repeated."""
Report = Callable[[TaskResult], Awaitable[None]]
"""Called with each finished task."""
CRASHED = "crashed"
_LONGEST_REASON = 500


class LateModel:
    """Stand-in for a model that is opened later: tools are opened before the journal, and models after it."""

    def __init__(self, role: str) -> None:
        self.engine: Model | None = None
        """The model, once it is open."""
        self._role = role

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._role if self.engine is None else self.engine.name

    @property
    def vision(self) -> bool:
        """The model accepts images."""
        return self.engine is not None and self.engine.vision

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        assert self.engine is not None, f"the model of the {self._role} is used before it is open"
        return await self.engine.complete(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSolver:
    """Run episodes with the team or a single agent."""

    run: Run
    """Store of the pictures."""
    gate: PauseGate
    """Gate in front of every effect."""
    tools: list[Tool]
    """Tools that may be used."""
    settings: EpisodeSettings
    """Settings of an episode."""
    prices: Mapping[str, Prices]
    """Prices of the models, by role."""
    team: Team | None = None
    """The team."""
    agent: Model | None = None
    """The single agent, if there is no team."""
    clock: Clock = SYSTEM_CLOCK
    """Source of time."""

    async def solve(self, task: Task, sandbox: Sandbox, page: Page) -> Episode:
        """Run an episode."""
        if self.team is not None:
            return await solve_task(
                task,
                team=self.team,
                sandbox=sandbox,
                tools=self.tools,
                page=page,
                settings=self.settings,
                prices=self.prices,
                gate=self._through,
                clock=self.clock,
            )
        assert self.agent is not None, "there is a team or an agent"
        return await solve_alone(
            task,
            model=self.agent,
            sandbox=sandbox,
            tools=self.tools,
            page=page,
            settings=self.settings,
            put_blob=self.run.put_blob,
            blob=self.run.blob,
            prices=self.prices.get(AGENT),
            gate=self._through,
            clock=self.clock,
        )

    async def _through(self, effect: Callable[[], Awaitable[T]]) -> T:
        return await self.gate.run(_call, effect)


async def _call(effect: Callable[[], Awaitable[T]]) -> T:
    return await effect()


class TaskWorker:
    """Work on the tasks of a run."""

    def __init__(
        self,
        run: Run,
        solve: Solver,
        sandboxes: SandboxPool,
        metric: Metric | None,
        config: RolloutConfig,
        report: Report,
    ) -> None:
        """Describe it.

        :param metric: metric of the answers; `None`: they are not scored.
        """
        self._run = run
        self._solve = solve
        self._sandboxes = sandboxes
        self._metric = metric
        self._tries = 1 + config.max_retries
        self._report = report

    async def work(self, seed: Seed) -> bytes:
        """Work on a task until it is answered or all tries are used, and score the answer."""
        task, sample = task_of(seed)
        page = await self._run.open_page(seed)
        episode, failure, tries = await self._answered(task, page)
        scored: Scored | None = None
        if self._metric is not None:
            scored = Scored(0.0) if failure is not None else await self._score(episode, task, page)
        result = TaskResult(
            task=task, sample=sample, episode=episode, failure=failure, scored=scored, tries=tries
        )
        await self._report(result)
        return msgspec.json.encode(result)

    def give_up(self, seed: Seed, error: Exception) -> bytes:
        """Return the result of a task whose work crashed outside its episodes."""
        task, sample = task_of(seed)
        scored = None if self._metric is None else Scored(0.0)
        return msgspec.json.encode(TaskResult(task=task, sample=sample, failure=_crash(error), scored=scored))

    async def _answered(self, task: Task, page: Page) -> tuple[Episode | None, Failure | None, int]:
        """Return the first episode with an answer, else the last one; the failure, and the number of tries."""
        episode, failure = None, None
        for tried in range(1, self._tries + 1):
            episode, failure = await self._try(task, page, tried)
            if failure is None:
                return episode, None, tried
        return episode, failure, self._tries

    async def _try(self, task: Task, page: Page, tried: int) -> tuple[Episode | None, Failure | None]:
        crash = page.recall(f"{CRASHED}/{tried}", Failure)
        if crash is not None:
            return None, crash
        try:
            async with self._sandboxes.fresh() as sandbox:
                episode = await self._solve(task, sandbox, page.section(f"try{tried}"))
        except (RunStopped, ConfigurationError):
            raise
        except (
            Exception
        ) as error:  # boundary: a task whose episode crashes is data, and must not end the others
            logger.exception("episode crashed", task=task.id, tried=tried)
            crash = _crash(unwrap_group(error))
            await page.record(f"{CRASHED}/{tried}", crash)
            return None, crash
        return episode, episode.failure

    async def _score(self, episode: Episode | None, task: Task, page: Page) -> Scored:
        metric = self._metric
        assert metric is not None and episode is not None, "only answers are scored"

        async def score() -> Scored:
            return await metric.score(episode.answer, task)

        return await page.once("score", Scored, score)


def _crash(error: Exception) -> Failure:
    why = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Failure(CRASHED, why[:_LONGEST_REASON])
