"""A rollout run: episodes for tasks, scores, files written from the journal."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

import msgspec
from msgspec import UNSET

from agentflow.actors import ChildSpec, Restart
from agentflow.engine import (
    BranchingEngine,
    BranchSandboxes,
    EngineContext,
    EpisodeAgent,
    EpisodeEngine,
    Guide,
    Leaf,
)
from agentflow.errors import ConfigurationError, RunStopped, StopCause, WorkPostponed, error_line
from agentflow.journal import NewSeed, Page, Run
from agentflow.models import Call, Completion, Model, Prices
from agentflow.rollouts._config import AGENT, JUDGE, RolloutConfig
from agentflow.rollouts._result import TaskResult, confidence, task_of
from agentflow.rollouts._summary import ResultLines, RolloutSummary, SummaryBuilder, write_files
from agentflow.rollouts._tasks import Assignment
from agentflow.runs import (
    GRACE_SECONDS,
    AnswerGuard,
    PauseGate,
    Phase,
    Resume,
    RoleReplies,
    RunProgress,
    RunStatus,
    SandboxPool,
    SupervisedRun,
    check_models,
    may_pass,
    open_supervised,
    prices_of,
    sandbox_settings,
    start_child,
    unused_arguments,
)
from agentflow.sandbox import Backend, Sandbox, SandboxSettings
from agentflow.scoring import Metric, Scored, ScoreGuard, majority, make_metric, needs_judge
from agentflow.settings import import_object
from agentflow.tasks import TaskVerifiers, open_task_verifiers, scored_verdict
from agentflow.team import ROLES, Team, TeamAgent, make_agent, model_tools
from agentflow.telemetry import get_logger, record_score
from agentflow.trace import Ending, Episode, Failure, Seed, Task, Turn


class RolloutStatus(RunStatus, frozen=True, kw_only=True):
    """Progress of a rollout at one moment."""

    failed: int
    """Number of tasks that this process could not answer."""
    score: float | None
    """Mean score of the tasks that this process scored; `None`: no task was scored yet."""
    unjudged: int
    """Number of answers that this process could not score."""
    trouble: str
    """Reason of the last of them."""


class RolloutProgress(RunProgress):
    """Counters of an active rollout."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._failed = 0
        self._scored = 0
        self._score = 0.0
        self._unjudged = 0
        self._trouble = ""

    def count_unjudged(self, trouble: str) -> None:
        """Count an answer that could not be scored."""
        self._unjudged += 1
        self._trouble = trouble

    def count(self, result: TaskResult) -> None:
        """Count a finished task."""
        if result.failure is not None:
            self._failed += 1
            self.failures[f"task {result.failure.kind}"] += 1
        if result.scored is not None and result.scored.failure is not None:
            self.count_unjudged(f"{result.task.id}: {result.scored.failure.message}")
        elif result.scored is not None:
            self._scored += 1
            self._score += result.score

    def status(self) -> RolloutStatus:
        """Return the current progress."""
        score = self._score / self._scored if self._scored else None
        return RolloutStatus(
            **self._status_fields(),
            failed=self._failed,
            score=score,
            unjudged=self._unjudged,
            trouble=self._trouble,
        )


MAX_AHEAD = 16
"""Maximum number of sandboxes made before they are requested."""


CRASHED = "crashed"


logger = get_logger(__name__)


T = TypeVar("T")


Solver = Callable[[Task, Page], Awaitable[Sequence[Leaf]]]
"""Works on a task; returns the end of each path. Effects recorded on the page are not repeated."""


Report = Callable[[TaskResult], Awaitable[None]]
"""Called with each finished task."""


class RolloutRun(SupervisedRun[RolloutConfig, RolloutProgress]):
    """A rollout, from its settings to its files. An instance runs once; `stop` and `pause` may be called meanwhile."""

    unit = "task"

    def __init__(
        self,
        config: RolloutConfig,
        *,
        resume: Resume = "auto",
        retry_failed: bool = False,
        in_order: Callable[[TaskResult], None] | None = None,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe it.

        :param resume: handling of an existing run.
        :param retry_failed: work again on finished tasks that failed for a reason that may pass.
        :param in_order: called at the end with every result, in the order of the files.
        :param grace_seconds: time that effects in flight get when the run is stopped.
        :param clock: monotonic seconds.
        """
        super().__init__(
            config,
            RolloutProgress(clock),
            name="rollout",
            resume=resume,
            retry_failed=retry_failed,
            grace_seconds=grace_seconds,
        )
        self.summary: RolloutSummary | None = None
        """RolloutSummary of the files, once they are written; also after a stop."""
        self._in_order = in_order
        self._with_page = config.save_summary
        self._tool_models = {name: LateModel(config.tool_role(name)) for name in config.model_tools}

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
        self._note(unused_arguments(self.chosen.tools, [task.kwargs for task in assignment.tasks]))
        metric = assignment.metric if self.config.evaluate_results else None
        run = await self._open_run(_seeds(assignment), assignment.pictures, evaluation_metric=metric)
        lines = ResultLines(self.directory.folder, self.config, run.blobs.read)
        await lines.begin(_results(run))
        if not self.nothing_to_do:
            await self._work(run, sandbox, lines, assignment)
        if self._shutdown.immediate.is_set():
            return
        self._progress.phase = Phase.WRITING
        used = await run.load_usage()
        tally = SummaryBuilder(self.config, assignment, self.chosen, used, self._progress.seconds)
        results = self._reported(_results(run))
        self.summary = await write_files(results, self.directory.folder, self.config, tally, run.blobs.read)

    async def _reported(self, results: AsyncIterator[TaskResult]) -> AsyncGenerator[TaskResult]:
        async for result in results:
            if self._in_order is not None:
                self._in_order(result)
            yield result

    async def _failed_seeds(self, run: Run) -> AsyncGenerator[tuple[Seed, Sequence[str]]]:
        async for seed, result in run.results(TaskResult):
            if _failed_in_passing(result):
                yield seed, ()
            elif result.failure is None and result.scored is not None and result.scored.failure is not None:
                # Only the score is missing.
                yield seed, ("try", f"{CRASHED}/")

    def _check(self, assignment: Assignment) -> None:
        """Check models, agent and metric before anything is begun."""
        if ":" in self.config.agent:
            import_object(self.config.agent)
        if self.config.branching is not None:
            self.config.branching.make_search()
            _guide(self.config.branching.guide)
        if self.config.offline and self.config.agent == "single":
            raise ConfigurationError("agent: a single agent needs a model; set model_name, or agent=team")
        if self.config.offline and self.config.model_tools:
            raise ConfigurationError(
                f"available_tools: {self.config.model_tools[0]} needs a model; set model_name"
            )
        if (
            self.config.offline
            and self.config.evaluate_results
            and needs_judge(assignment.metric, assignment.options)
        ):
            raise ConfigurationError(
                f"evaluation_metric: {assignment.metric} needs a judge model; set evaluator_model_name"
            )
        models = check_models(self.config, self.config.models)
        if self.config.evaluate_results:
            self._make_metric(assignment, models.get(JUDGE))

    def _make_metric(self, assignment: Assignment, judge: Model | None) -> Metric:
        options = assignment.options
        if needs_judge(assignment.metric, assignment.options):
            # A judge has a sampling temperature of its own.
            options = {"temperature": self.config.evaluator_temperature, **options}
        return make_metric(assignment.metric, options=options, judge=judge)

    def _backends(self, settings: SandboxSettings) -> Sequence[str | Backend] | None:
        names = self._tool_models
        return [*(settings.backend_names or ()), *model_tools(**names)] if names else None

    async def _work(self, run: Run, sandbox: Sandbox, lines: ResultLines, assignment: Assignment) -> None:
        models = await self._open_models(run, self.config.models)
        for late in self._tool_models.values():
            late.engine = models[late.role]
        metric = self._make_metric(assignment, models.get(JUDGE)) if self.config.evaluate_results else None
        verifiers = await self._open_verifiers(sandbox, assignment)
        agent = await self._open_agent(run, models)
        settings = self.config.episode.model_copy(update={"abstain": assignment.abstain})
        context = EngineContext(prices=self._agent_prices, gate=self._gate.run)
        if self.config.branching is None:
            engine = EpisodeEngine(agent=agent, tools=self.chosen.tools, settings=settings, context=context)
            solve = _solve_alone(engine, await self._open_sandboxes(sandbox), verifiers)
        else:
            tree = BranchingEngine(
                agents=lambda path: nullcontext(agent),
                roles=self.config.branching_roles,
                tools=self.chosen.tools,
                settings=settings,
                sandboxes=BranchSandboxes(
                    sandbox, self.chosen.tools, max_sandboxes=self.config.max_sandboxes
                ),
                search=self.config.branching.make_search,
                merge_duplicates=self.config.branching.merge_duplicates,
                guide=_guide(self.config.branching.guide),
                context=context,
            )
            solve = _solve_branching(tree, verifiers)

        async def report(result: TaskResult) -> None:
            self._progress.count(result)
            for sample in result.samples:
                await lines.add(sample)

        guard = ScoreGuard(assignment.metric)
        guard.works = metric is not None and await _was_scored(run)
        answers = self._answer_guard()
        worker = TaskWorker(run, solve, metric, self.config, report, guard, self._gate, answers)
        await self._schedule(run, worker, concurrency=self.config.workers)

    async def _open_verifiers(self, sandbox: Sandbox, assignment: Assignment) -> TaskVerifiers:
        """Open the verifiers of the tasks, which also prepare their initial states."""
        opens = partial(
            open_task_verifiers,
            assignment.verified,
            sandbox,
            self.chosen.tools,
            sandbox_settings(self.config)[0],
            max_sandboxes=self.config.max_sandboxes,
        )
        return await open_supervised(self._supervisor, "task verifiers", opens)

    async def _open_sandboxes(self, sandbox: Sandbox) -> SandboxPool:
        sandboxes = SandboxPool(
            sandbox,
            self.chosen.tools,
            most=self.config.max_sandboxes,
            ahead=min(self.config.workers, MAX_AHEAD),
            wanted=self._progress.seeds - self._progress.done,
        )
        spec = ChildSpec(id="sandboxes", start=lambda: sandboxes, restart=Restart.TRANSIENT, shutdown=30)
        await start_child(self._supervisor, spec)
        return sandboxes

    async def _open_agent(self, run: Run, models: dict[str, Model]) -> EpisodeAgent:
        """Return the agent that works on the tasks."""
        if self.config.agent == "team":
            return TeamAgent(await self._open_team(run, models))
        return make_agent(self.config.agent, models[AGENT], run.blobs)

    @property
    def _agent_prices(self) -> Mapping[str, Prices]:
        prices = prices_of(self.config.models)
        return (
            prices
            if self.config.agent == "team"
            else {role: prices[role] for role in prices.keys() & {AGENT}}
        )

    async def _open_team(self, run: Run, models: dict[str, Model]) -> Team:
        team = Team(
            {role: model for role, model in models.items() if role in ROLES},
            blobs=run.blobs,
            short_prompts=self.config.short_prompts,
            planner_format=self.config.planner_format,
            workers=max(512, self.config.workers),
        )
        for spec in team.specs():
            await start_child(self._supervisor, spec)
        return team


def _seeds(assignment: Assignment) -> Sequence[NewSeed]:
    """Return a seed for each sample of each task, task by task, so that further tasks can be appended later."""
    return [
        NewSeed(
            asked.question,
            {"task": msgspec.to_builtins(asked), "sample": sample},
            task.id if assignment.samples == 1 else f"{task.id}#{sample + 1}",
        )
        for task in assignment.tasks
        for sample in range(assignment.samples)
        for asked in [assignment.sample(task, sample)]
    ]


def _solve_alone(engine: EpisodeEngine, sandboxes: SandboxPool, verifiers: TaskVerifiers) -> Solver:
    """Return what works on a task in one episode."""

    async def solve(task: Task, page: Page) -> Sequence[Leaf]:
        async with sandboxes.fresh() as sandbox:
            episode = await verifiers.run(task, sandbox, page, engine.solve)
        return [Leaf(path=(), episode=episode, failure=episode.failure)]

    return solve


def _solve_branching(engine: BranchingEngine, verifiers: TaskVerifiers) -> Solver:
    """Return what works on a task along several paths."""

    async def solve(task: Task, page: Page) -> Sequence[Leaf]:
        return await engine.solve(task, page, prepare=verifiers.prepares(task), finish=verifiers.verify)

    return solve


def _guide(name: str | None) -> Guide | None:
    if name is None:
        return None
    if name == "verifier":
        return trust_verifier
    guide = import_object(name)
    if not callable(guide):
        raise ConfigurationError(f"branching.guide: {name} is not a function")
    return cast("Guide", guide)


async def trust_verifier(task: Task, turns: Sequence[Turn], answer: str | None) -> float:
    """Return how sure the team's verifier is that the results so far suffice."""
    return confidence(turns)


async def _results(run: Run) -> AsyncGenerator[TaskResult]:
    """Yield all results: of a branching task, those of its paths."""
    async for _, result in run.results(TaskResult):
        for sample in result.samples:
            yield sample


def chosen_path(results: Sequence[TaskResult]) -> TaskResult:
    """Return the result with the answer of a branching task: that with the best value, or else the most frequent answer."""
    answered = [result for result in results if result.failure is None and not result.is_pruned]
    if not answered:
        return results[0]
    valued = [result for result in answered if result.value is not UNSET]
    if valued:
        return max(valued, key=lambda result: (result.value, -result.sample))
    drawn = [result for result in answered for _ in range(result.drawn)]
    index = majority([result.answer or None for result in drawn])
    return answered[0] if index is None else drawn[index]


def _failed_in_passing(result: TaskResult) -> bool:
    """Return whether a task failed for a reason that may pass."""
    episode = result.episode
    if result.failure is not None or episode is None:
        return may_pass(result.failure)
    if episode.ending is Ending.TIME or (episode.verdict is not None and episode.verdict.error):
        return True
    # A role failed, and the answer is a guess.
    guess = episode.ending is Ending.FAILED
    return guess and any(may_pass(exchange.failure) for exchange in episode.exchanges)


async def _was_scored(run: Run) -> bool:
    """Return true if an earlier process has scored an answer."""
    async for result in _results(run):
        if result.failure is None and result.scored is not None and result.scored.failure is None:
            return True
    return False


class LateModel:
    """Stand-in for a model that is opened later: tools are opened before the journal, and models after it."""

    def __init__(self, role: str) -> None:
        self.engine: Model | None = None
        """The model, once it is open."""
        self.role = role
        """Role under which its usage is accounted."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.role if self.engine is None else self.engine.name

    @property
    def vision(self) -> bool:
        """The model accepts images."""
        return self.engine is not None and self.engine.vision

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        assert self.engine is not None, f"the model of the {self.role} is used before it is open"
        return await self.engine.complete(msgspec.structs.replace(call, role=self.role))


@dataclass(frozen=True)
class TaskWorker:
    """Work on the tasks of a run."""

    run: Run
    """Run in the journal."""
    solve: Solver
    """Runs the episodes of a task."""
    metric: Metric | None
    """Metric of the answers; `None`: they are not scored."""
    config: RolloutConfig
    """Settings of the run."""
    report: Report
    """Called with each finished task."""
    guard: ScoreGuard
    """Guard against a metric that fails on every answer."""
    gate: PauseGate = field(default_factory=PauseGate)
    """Gate in front of the metric, which may ask a judge."""
    answers: AnswerGuard = field(default_factory=AnswerGuard)
    """Guard against models without usable answers."""

    async def work(self, seed: Seed) -> bytes:
        """Work on a task until it is answered or all tries are used, and score the answer."""
        task, sample = task_of(seed)

        async def work(page: Page) -> tuple[TaskResult, RoleReplies]:
            return await self._result(task, sample, page)

        result = await self.answers.work(self.run, seed, work, lambda _: (), counts=True)
        await self.report(result)
        return msgspec.json.encode(result)

    async def _result(self, task: Task, sample: int, page: Page) -> tuple[TaskResult, RoleReplies]:
        """Return the result of a task with the replies of the models; answers are scored if each role has a usable one."""
        leaves, tries = await self._answered(task, page)
        replies = RoleReplies()
        for episode in (leaf.episode for leaf in leaves if leaf.episode is not None):
            for exchange in episode.exchanges:
                replies.add(exchange.role, exchange.failure)
        is_scored = self.metric is not None and replies.unanswered is None
        scores = await self._scores(leaves, task, page) if is_scored else [None] * len(leaves)
        results = [
            TaskResult(
                task=task,
                sample=sample + position,
                episode=leaf.episode,
                failure=leaf.failure,
                scored=scored,
                tries=tries,
                value=UNSET if leaf.value is None else leaf.value,
            )
            for position, (leaf, scored) in enumerate(zip(leaves, scores, strict=True))
        ]
        if self.config.branching is None:
            return results[0], replies
        chosen = chosen_path(results)
        whole = msgspec.structs.replace(
            chosen, sample=sample, episode=None, paths=tuple(results), chosen=results.index(chosen)
        )
        return whole, replies

    async def _scores(self, leaves: Sequence[Leaf], task: Task, page: Page) -> list[Scored | None]:
        """Score the answer of each path; a path that was given up has none."""
        assert self.metric is not None, "only answers are scored"
        scores: list[Scored | None] = []
        for leaf in leaves:
            scored: Scored | None = None
            if leaf.failure is not None:
                scored = Scored(0.0)
            elif leaf.episode is not None and leaf.episode.ending is not Ending.PRUNED:
                key = "/".join(["score", *map(str, leaf.path)])
                scored = await self._score(leaf.episode, task, page, key)
            if scored is not None and scored.failure is None:
                record_score(self.metric.name, scored.score)
            scores.append(scored)
        return scores

    def give_up(self, seed: Seed, error: Exception) -> bytes:
        """Return the result of a task whose work crashed outside its episodes."""
        task, sample = task_of(seed)
        scored = None if self.metric is None else Scored(0.0)
        return msgspec.json.encode(
            TaskResult(task=task, sample=sample, failure=Failure(CRASHED, error_line(error)), scored=scored)
        )

    async def _answered(self, task: Task, page: Page) -> tuple[Sequence[Leaf], int]:
        """Return the paths of the first try with an answer, else those of the last one; and the number of tries."""
        tried, leaves = 1, await self._try(task, page, 1)
        while all(leaf.failure is not None for leaf in leaves) and tried <= self.config.max_retries:
            tried += 1
            leaves = await self._try(task, page, tried)
        return leaves, tried

    async def _try(self, task: Task, page: Page, tried: int) -> Sequence[Leaf]:
        crash = page.recall(f"{CRASHED}/{tried}", Failure)
        if crash is None:
            try:
                return await self.solve(task, page.section(f"try{tried}"))
            except (RunStopped, ConfigurationError):
                raise
            except Exception as error:  # boundary: a task whose episode crashes is data
                logger.exception("episode crashed", task=task.id, tried=tried)
                crash = Failure(CRASHED, error_line(error))
                await page.record(f"{CRASHED}/{tried}", crash)
        return [Leaf(path=(), failure=crash)]

    async def _scored(self, episode: Episode, task: Task) -> Scored:
        """Return the verdict of the task's own verifier as a score, or else score the answer."""
        assert self.metric is not None, "only answers are scored"
        if episode.verdict is not None:
            return scored_verdict(episode.verdict)
        return await self.gate.run(self.metric.score, episode.answer, task)

    async def _score(self, episode: Episode, task: Task, page: Page, key: str) -> Scored:
        """Score an answer.

        :raises WorkPostponed: if no answer of the run could be scored so far.
        """
        scored = page.recall(key, Scored)
        if scored is None:
            try:
                scored = await self._scored(episode, task)
            except (RunStopped, ConfigurationError):
                raise
            except Exception as error:  # boundary: a metric that crashes is data
                logger.exception("metric crashed", task=task.id)
                scored = Scored(0.0, failure=Failure(CRASHED, error_line(error)))
            if problem := self.guard.check(scored, task.id):
                raise WorkPostponed(StopCause.SCORING, problem)
            await page.note(key, scored)
        return scored
