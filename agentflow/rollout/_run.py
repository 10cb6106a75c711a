"""One rollout: the supervision tree, and what happens in it."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial

import msgspec

from agentflow.actors import ChildSpec, Restart, Supervisor
from agentflow.errors import ConfigurationError, RunStopped, StopCause, ToolFailure
from agentflow.journal import NewSeed, Run, open_journal, this_process
from agentflow.models import Accounts, OpenModel, make_model
from agentflow.rollout._config import AGENT, JUDGE, TOOL, RolloutConfig
from agentflow.rollout._files import ResultLines, write_files
from agentflow.rollout._later import LaterModel
from agentflow.rollout._progress import Progress, RolloutStanding
from agentflow.rollout._result import Result
from agentflow.rollout._sandboxes import Sandboxes
from agentflow.rollout._summary import Summary, Tally
from agentflow.rollout._tasks import Assignment
from agentflow.rollout._worker import Crew, TaskWorker
from agentflow.runs import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    ChosenTools,
    Ending,
    Field,
    Gate,
    Phase,
    Place,
    Resume,
    choose_tools,
    hold,
    open_accounts,
    open_models,
    prices_of,
    sandbox_settings,
    seldom_collected,
    start,
)
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.scoring import Metric, make_metric, needs_judge
from agentflow.team import Team, model_tools

__all__ = ["RolloutRun"]

MOST_AHEAD = 16
"""Sandboxes that are made before somebody asks, at most."""


class RolloutRun:
    """A rollout, from its settings to its files. It lives once: `run` does it, everything else is for those who watch."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        resume: Resume = "auto",
        in_order: Callable[[Result], None] | None = None,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe it.

        :param resume: whether a run that exists is gone on with.
        :param in_order: is given every result in the end, in the order of the files.
        :param grace_seconds: how long what is in flight may take when the run is to end early.
        :param clock: seconds that only grow.
        """
        self.config = config
        """Its settings."""
        self.place = Place(config, config.output, resume)
        """Where it lies on disk."""
        self.summary: Summary | None = None
        """What it gave, once its files are written; also if it was stopped."""
        self.found_nothing_to_do = False
        """Every task was finished already."""
        self._in_order = in_order
        self._inside = LaterModel(TOOL)
        self._grace_seconds = grace_seconds
        self._progress = Progress(clock)
        self._gate = Gate()
        self._ending = Ending()
        self._house = Supervisor(name="rollout", intensity=3, period=60)
        self._field: Field | None = None
        self._run: Run | None = None

    async def run(self, assignment: Assignment) -> Summary:
        """Work on every task that is not finished, write the files; what they hold, in short.

        :raises ConfigurationError: if something can't be used; nothing was begun.
        :raises RunStopped: if it ended early. The files hold what is finished; the same again goes on.
        """
        try:
            with seldom_collected():
                async with self._house:
                    await self._do(assignment)
        except RunStopped as stopped:
            self._ending.stop(stopped)
        if self._ending.stopped is not None:
            self._progress.phase = Phase.STOPPED
            raise self._ending.stopped
        self._progress.phase = Phase.DONE
        assert self.summary is not None, "a run that was not stopped has written its files"
        return self.summary

    def standing(self) -> RolloutStanding:
        """How far it is."""
        return self._progress.standing()

    def stop(self, why: str = "it was asked to stop") -> None:
        """End early: what is in flight may end, everything is kept. Once all is done there is nothing to stop."""
        if self._progress.phase in (Phase.WRITING, Phase.DONE):
            return
        self._ending.stop(RunStopped(StopCause.INTERRUPTED, f"stopped: {why}; run the same again to go on"))

    def hurry(self) -> None:
        """Do not wait for what is in flight."""
        self._ending.hurry.set()

    async def _do(self, assignment: Assignment) -> None:
        self._check(assignment)
        settings, broken = sandbox_settings(self.config)
        sandbox = await self._open_sandbox(settings)
        tools = await choose_tools(sandbox, self.config, broken)
        run = self._run = await self._open_run(assignment, tools)
        counts = await run.counts()
        self._progress.seeds, self._progress.done = sum(counts), counts.done
        lines = ResultLines(self.place.folder, self.config)
        await lines.begin(_results(run))
        self.found_nothing_to_do = not (counts.waiting or counts.leased)
        if not self.found_nothing_to_do:
            await self._work(run, sandbox, tools, lines, assignment, sum(counts) - counts.done)
        if self._ending.hurry.is_set():
            return
        self._progress.phase = Phase.WRITING
        used = await run.load_usage()
        tally = Tally(self.config, assignment, tools, used, self._progress.seconds)
        self.summary = await write_files(self._told(_results(run)), self.place.folder, self.config, tally)

    async def _told(self, results: AsyncIterator[Result]) -> AsyncGenerator[Result]:
        async for result in results:
            if self._in_order is not None:
                self._in_order(result)
            yield result

    def _check(self, assignment: Assignment) -> None:
        """Before anything is begun: a key that is missing, a metric that there is not, what can't be done offline."""
        if self.config.offline and self.config.agent == "single":
            raise ConfigurationError("agent: a single agent needs a model; set model_name, or agent=team")
        if self.config.offline and self.config.model_tools:
            raise ConfigurationError(
                f"available_tools: {self.config.model_tools[0]} needs a model; set model_name"
            )
        if self.config.offline and self.config.evaluate_results and needs_judge(assignment.metric):
            raise ConfigurationError(
                f"evaluation_metric: {assignment.metric} needs a model that judges; set evaluator_model_name"
            )
        accounts = Accounts(max_cost=self.config.max_cost)
        judge: OpenModel | None = None
        for role, settings in self.config.models.items():
            model = make_model(settings, accounts)
            judge = model if role == JUDGE else judge
        if self.config.evaluate_results:
            self._make_metric(assignment, judge)

    def _make_metric(self, assignment: Assignment, judge: OpenModel | None) -> Metric:
        options = assignment.options
        if needs_judge(assignment.metric):
            # A judge says itself how it samples.
            options = {"temperature": self.config.evaluator_temperature, **options}
        return make_metric(assignment.metric, options=options, judge=judge)

    async def _open_sandbox(self, settings: SandboxSettings) -> Sandbox:
        names = dict.fromkeys(self.config.model_tools, self._inside)
        backends = [*(settings.backend_names or ()), *model_tools(**names)] if names else None
        try:
            return await hold(self._house, "servers", partial(Sandbox, settings, backends=backends))
        except ToolFailure as failure:
            raise ConfigurationError(f"sandbox: {failure.message}") from None

    async def _open_run(self, assignment: Assignment, tools: ChosenTools) -> Run:
        self.place.prepare()
        journal = await hold(self._house, "journal", partial(open_journal, self.place.journal, hosted=False))
        await start(self._house, journal.writer_spec())
        identity = {
            **self.config.identity(),
            "evaluation_metric": assignment.metric if self.config.evaluate_results else None,
            "tools": [tool.name for tool in tools.tools],
        }
        run = await journal.open_run(self.config.run_name, identity, lease_seconds=LEASE_SECONDS)
        self.place.check(sum(await run.counts()) > 0)
        for picture, data in assignment.pictures.items():
            await run.put_blob(data, picture.mime)
        await run.add_seeds(_seeds(assignment))
        self.place.describe()
        return run

    async def _work(
        self,
        run: Run,
        sandbox: Sandbox,
        tools: ChosenTools,
        lines: ResultLines,
        assignment: Assignment,
        left: int,
    ) -> None:
        accounts = self._progress.accounts = await open_accounts(run, self.config, self.config.models)
        models = await open_models(self._house, self.config.models, accounts)
        self._progress.models = list(dict.fromkeys(models.values()))
        self._inside.engine = models.get(TOOL)
        metric = self._make_metric(assignment, models.get(JUDGE)) if self.config.evaluate_results else None
        crew = await self._open_crew(run, tools, models)
        sandboxes = Sandboxes(
            sandbox,
            tools.tools,
            most=self.config.max_sandboxes,
            ahead=min(self.config.workers, MOST_AHEAD),
            wanted=left,
        )
        spec = ChildSpec(id="sandboxes", start=lambda: sandboxes, restart=Restart.TRANSIENT, shutdown=30)
        await start(self._house, spec)

        async def report(result: Result) -> None:
            self._progress.saw(result)
            await lines.add(result)

        worker = TaskWorker(run, crew.solve, sandboxes, metric, self.config, report)
        make = partial(self._make_field, run, worker, accounts)
        self._progress.phase = Phase.GROWING
        await start(self._house, ChildSpec(id="field", start=make, restart=Restart.TRANSIENT))
        await self._ending.ended.wait()

    async def _open_crew(self, run: Run, tools: ChosenTools, models: dict[str, OpenModel]) -> Crew:
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
                await start(self._house, spec)
        return Crew(
            run=run,
            gate=self._gate,
            tools=tools.tools,
            settings=self.config.episode,
            prices=prices_of(self.config.models),
            team=team,
            agent=models.get(AGENT),
        )

    def _make_field(self, run: Run, worker: TaskWorker, accounts: Accounts) -> Field:
        async def keep_books() -> None:
            await run.save_usage(accounts.by_role)

        self._field = Field(
            run,
            worker.work,
            worker.give_up,
            owner=this_process(),
            at_once=self.config.workers,
            gate=self._gate,
            ending=self._ending,
            progress=self._progress,
            renew_seconds=LEASE_SECONDS / 3,
            grace_seconds=self._grace_seconds,
            keep_books=keep_books,
        )
        return self._field


def _seeds(assignment: Assignment) -> Sequence[NewSeed]:
    """A seed for each sample of each task, so that more tasks may follow at the end."""
    return [
        NewSeed(
            task.question,
            {"task": msgspec.to_builtins(task), "sample": sample},
            task.id if assignment.samples == 1 else f"{task.id}#{sample + 1}",
        )
        for task in assignment.tasks
        for sample in range(assignment.samples)
    ]


async def _results(run: Run) -> AsyncGenerator[Result]:
    async for _, body in run.harvests():
        yield msgspec.json.decode(body, type=Result)
