"""Everything there is to do for a task: an episode, again where it failed, and what its answer is worth."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ConfigurationError, RunStopped
from agentflow.journal import Page, Run
from agentflow.models import Model, Prices
from agentflow.rollout._config import AGENT, RolloutConfig
from agentflow.rollout._result import Result, task_of
from agentflow.rollout._sandboxes import Sandboxes
from agentflow.runs import Gate, innermost
from agentflow.sandbox import Sandbox, Tool
from agentflow.scoring import Metric, Scored
from agentflow.team import EpisodeSettings, Team, solve_alone, solve_task
from agentflow.telemetry import get_logger
from agentflow.trajectory import Episode, Failure, Seed, Task

__all__ = ["Crew", "Solver", "TaskWorker"]

logger = get_logger(__name__)

T = TypeVar("T")

Solver = Callable[[Task, Sandbox, Page], Awaitable[Episode]]
"""Works on a task in a sandbox; what stands on the page is not done again."""
Report = Callable[[Result], Awaitable[None]]
"""Is told of each finished task."""
CRASHED = "crashed"
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who works on tasks: the team, or a single agent."""

    run: Run
    """Where pictures are kept."""
    gate: Gate
    """What every effect goes through."""
    tools: list[Tool]
    """What may be used."""
    settings: EpisodeSettings
    """How an episode goes."""
    prices: Mapping[str, Prices]
    """What models cost, by role."""
    team: Team | None = None
    """The team."""
    agent: Model | None = None
    """The single agent, where there is no team."""
    clock: Clock = SYSTEM_CLOCK
    """Where time comes from."""

    async def solve(self, task: Task, sandbox: Sandbox, page: Page) -> Episode:
        """An episode."""
        if self.team is not None:
            return await solve_task(
                task,
                team=self.team,
                sandbox=sandbox,
                tools=self.tools,
                page=page,
                settings=self.settings,
                prices=self.prices,
                through=self._through,
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
            through=self._through,
            clock=self.clock,
        )

    async def _through(self, effect: Callable[[], Awaitable[T]]) -> T:
        return await self.gate.through(_have, effect)


async def _have(effect: Callable[[], Awaitable[T]]) -> T:
    return await effect()


class TaskWorker:
    """Works on the tasks of a run."""

    def __init__(
        self,
        run: Run,
        solve: Solver,
        sandboxes: Sandboxes,
        metric: Metric | None,
        config: RolloutConfig,
        report: Report,
    ) -> None:
        """Describe it.

        :param metric: what answers are scored by; `None`: they are not.
        """
        self._run = run
        self._solve = solve
        self._sandboxes = sandboxes
        self._metric = metric
        self._tries = 1 + config.max_retries
        self._report = report

    async def work(self, seed: Seed) -> bytes:
        """Work on a task until it is answered or no try is left, and score it."""
        task, sample = task_of(seed)
        page = await self._run.open_page(seed)
        episode, failure, tries = await self._answered(task, page)
        scored: Scored | None = None
        if self._metric is not None:
            scored = Scored(0.0) if failure is not None else await self._score(episode, task, page)
        result = Result(
            task=task, sample=sample, episode=episode, failure=failure, scored=scored, tries=tries
        )
        await self._report(result)
        return msgspec.json.encode(result)

    def give_up(self, seed: Seed, error: Exception) -> bytes:
        """What became of a task whose work crashed outside its episodes."""
        task, sample = task_of(seed)
        scored = None if self._metric is None else Scored(0.0)
        return msgspec.json.encode(Result(task=task, sample=sample, failure=_crash(error), scored=scored))

    async def _answered(self, task: Task, page: Page) -> tuple[Episode | None, Failure | None, int]:
        """The first episode that answers, else the last one; why there is no answer, and which try it was."""
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
            crash = _crash(innermost(error))
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
