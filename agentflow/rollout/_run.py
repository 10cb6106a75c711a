"""A rollout run: episodes for tasks, scores, files written from the journal."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial

import msgspec

from agentflow.actors import ChildSpec, Restart
from agentflow.errors import ConfigurationError
from agentflow.journal import NewSeed, Run
from agentflow.models import OpenModel
from agentflow.rollout._config import AGENT, JUDGE, TOOL, RolloutConfig
from agentflow.rollout._files import ResultLines, write_files
from agentflow.rollout._progress import RolloutProgress, RolloutStatus
from agentflow.rollout._result import TaskResult
from agentflow.rollout._sandbox_pool import SandboxPool
from agentflow.rollout._summary import RolloutSummary, SummaryBuilder
from agentflow.rollout._tasks import Assignment
from agentflow.rollout._worker import EpisodeSolver, LateModel, TaskWorker
from agentflow.runs import (
    GRACE_SECONDS,
    Phase,
    Resume,
    SupervisedRun,
    check_models,
    prices_of,
    start_child,
)
from agentflow.sandbox import Backend, Sandbox, SandboxSettings
from agentflow.scoring import Metric, make_metric, needs_judge
from agentflow.team import Team, model_tools

MAX_AHEAD = 16
"""Maximum number of sandboxes made before they are requested."""


class RolloutRun(SupervisedRun[RolloutConfig, RolloutProgress]):
    """A rollout, from its settings to its files. An instance runs once; `stop` and `pause` may be called meanwhile."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        resume: Resume = "auto",
        in_order: Callable[[TaskResult], None] | None = None,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe it.

        :param resume: handling of an existing run.
        :param in_order: called at the end with every result, in the order of the files.
        :param grace_seconds: time that effects in flight get when the run is stopped.
        :param clock: monotonic seconds.
        """
        super().__init__(
            config, RolloutProgress(clock), name="rollout", resume=resume, grace_seconds=grace_seconds
        )
        self.summary: RolloutSummary | None = None
        """RolloutSummary of the files, once they are written; also after a stop."""
        self._in_order = in_order
        self._tool_model = LateModel(TOOL)

    async def run(self, assignment: Assignment) -> RolloutSummary:
        """Work on every unfinished task, write the files and return the summary of them.

        :raises ConfigurationError: if something can't be used; nothing was begun.
        :raises RunStopped: if it ended early. The files hold the finished tasks; running it again resumes.
        """
        await self._supervise(partial(self._execute, assignment))
        assert self.summary is not None, "a run that was not stopped has written its files"
        return self.summary

    def status(self) -> RolloutStatus:
        """Return the current progress."""
        return self._progress.status()

    async def _execute(self, assignment: Assignment) -> None:
        self._check(assignment)
        sandbox = await self._open_tools(self._backends)
        metric = assignment.metric if self.config.evaluate_results else None
        run = await self._open_run(_seeds(assignment), assignment.pictures, evaluation_metric=metric)
        lines = ResultLines(self.directory.folder, self.config)
        await lines.begin(_results(run))
        if not self.nothing_to_do:
            await self._work(run, sandbox, lines, assignment)
        if self._shutdown.immediate.is_set():
            return
        self._progress.phase = Phase.WRITING
        used = await run.load_usage()
        tally = SummaryBuilder(self.config, assignment, self.chosen, used, self._progress.seconds)
        results = self._reported(_results(run))
        self.summary = await write_files(results, self.directory.folder, self.config, tally)

    async def _reported(self, results: AsyncIterator[TaskResult]) -> AsyncGenerator[TaskResult]:
        async for result in results:
            if self._in_order is not None:
                self._in_order(result)
            yield result

    def _check(self, assignment: Assignment) -> None:
        """Check models and metric before anything is begun."""
        if self.config.offline and self.config.agent == "single":
            raise ConfigurationError("agent: a single agent needs a model; set model_name, or agent=team")
        if self.config.offline and self.config.model_tools:
            raise ConfigurationError(
                f"available_tools: {self.config.model_tools[0]} needs a model; set model_name"
            )
        if self.config.offline and self.config.evaluate_results and needs_judge(assignment.metric):
            raise ConfigurationError(
                f"evaluation_metric: {assignment.metric} needs a judge model; set evaluator_model_name"
            )
        models = check_models(self.config, self.config.models)
        if self.config.evaluate_results:
            self._make_metric(assignment, models.get(JUDGE))

    def _make_metric(self, assignment: Assignment, judge: OpenModel | None) -> Metric:
        options = assignment.options
        if needs_judge(assignment.metric):
            # A judge has a sampling temperature of its own.
            options = {"temperature": self.config.evaluator_temperature, **options}
        return make_metric(assignment.metric, options=options, judge=judge)

    def _backends(self, settings: SandboxSettings) -> Sequence[str | Backend] | None:
        names = dict.fromkeys(self.config.model_tools, self._tool_model)
        return [*(settings.backend_names or ()), *model_tools(**names)] if names else None

    async def _work(self, run: Run, sandbox: Sandbox, lines: ResultLines, assignment: Assignment) -> None:
        models = await self._open_models(run, self.config.models)
        self._tool_model.engine = models.get(TOOL)
        metric = self._make_metric(assignment, models.get(JUDGE)) if self.config.evaluate_results else None
        solver = await self._open_solver(run, models)
        sandboxes = SandboxPool(
            sandbox,
            self.chosen.tools,
            most=self.config.max_sandboxes,
            ahead=min(self.config.workers, MAX_AHEAD),
            wanted=self._progress.seeds - self._progress.done,
        )
        spec = ChildSpec(id="sandboxes", start=lambda: sandboxes, restart=Restart.TRANSIENT, shutdown=30)
        await start_child(self._supervisor, spec)

        async def report(result: TaskResult) -> None:
            self._progress.count(result)
            await lines.add(result)

        worker = TaskWorker(run, solver.solve, sandboxes, metric, self.config, report)
        await self._schedule(run, worker, concurrency=self.config.workers)

    async def _open_solver(self, run: Run, models: dict[str, OpenModel]) -> EpisodeSolver:
        team: Team | None = None
        if self.config.agent == "team":
            team = Team(
                analyst=models["analyst"],
                planner=models["planner"],
                executor=models["executor"],
                verifier=models.get("verifier"),
                generator=models["generator"],
                put_blob=run.put_blob,
                blob=run.blob,
                short_prompts=self.config.short_prompts,
                workers=max(512, self.config.workers),
            )
            for spec in team.specs():
                await start_child(self._supervisor, spec)
        return EpisodeSolver(
            run=run,
            gate=self._gate,
            tools=self.chosen.tools,
            settings=self.config.episode,
            prices=prices_of(self.config.models),
            team=team,
            agent=models.get(AGENT),
        )


def _seeds(assignment: Assignment) -> Sequence[NewSeed]:
    """Return a seed for each sample of each task, task by task, so that further tasks can be appended later."""
    return [
        NewSeed(
            task.question,
            {"task": msgspec.to_builtins(task), "sample": sample},
            task.id if assignment.samples == 1 else f"{task.id}#{sample + 1}",
        )
        for task in assignment.tasks
        for sample in range(assignment.samples)
    ]


async def _results(run: Run) -> AsyncGenerator[TaskResult]:
    async for _, body in run.harvests():
        yield msgspec.json.decode(body, type=TaskResult)
