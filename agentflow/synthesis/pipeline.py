"""A synthesis as an object, made from settings: trees grown from seeds, questions about them, files from the journal."""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from os import PathLike
from pathlib import Path

import msgspec
from msgspec.structs import replace

from agentflow.actors import ChildSpec, Restart
from agentflow.engine import (
    BranchSandboxes,
    EngineContext,
    EpisodeEngine,
    EpisodeSettings,
    Grower,
    PlannerPort,
    with_observations,
    without_observations,
)
from agentflow.errors import ConfigurationError, ErrorKind, error_line
from agentflow.journal import NewSeed, Page, Run
from agentflow.models import Model, ModelSettings
from agentflow.runs import (
    CONTROL_FILE,
    GRACE_SECONDS,
    AnswerGuard,
    Phase,
    Resume,
    RoleReplies,
    SandboxPool,
    SupervisedRun,
    check_models,
    open_supervised,
    run_sync,
    start_child,
    unused_arguments,
)
from agentflow.sandbox import Sandbox
from agentflow.synthesis._attempts import AttemptMaker
from agentflow.synthesis._config import SynthesisConfig, load_config
from agentflow.synthesis._control import ControlServer, StatusOutput
from agentflow.synthesis._display import render_report, render_result, show_while, status_table
from agentflow.synthesis._files import write_files
from agentflow.synthesis._questions import (
    DraftSource,
    PageSearch,
    TreeCalls,
    keys_to_keep,
    replies_on,
    search_tool,
    write_questions,
)
from agentflow.synthesis._report import Report, SynthesisProgress, SynthesisStatus
from agentflow.synthesis._seed_result import SeedResult
from agentflow.synthesis._seeds import Seeds, new_seeds, seeds_for
from agentflow.synthesis._task_pairs import with_paths
from agentflow.synthesis._tasks import derive_tasks, solution_kind, task_kind
from agentflow.tasks import TaskKind, TaskVerifiers
from agentflow.team import ROLES, ObservationLimits, Team, ToolAgent
from agentflow.telemetry import record_score
from agentflow.trace import Seed, Tree

__all__ = [
    "CONTROL_FILE",
    "Phase",
    "Resume",
    "Seeds",
    "StatusOutput",
    "SynthesisPipeline",
    "SynthesisRun",
    "SynthesisStatus",
    "asynthesize",
    "new_seeds",
    "render_report",
    "seeds_for",
    "status_table",
    "synthesize",
]

# Plain: its line is readable in programs that configure no logging.
_logger = logging.getLogger(__name__)


class SynthesisPipeline:
    """Grow trees from seeds and turn them into question-answer pairs.

    Example::

        SynthesisPipeline(config=load_config("config.json"), output_dir="my_output").run(["Explore the harbour"])
    """

    def __init__(self, config: SynthesisConfig, output_dir: str | PathLike[str] | None = None) -> None:
        """:param output_dir: output directory, instead of that of the settings."""
        self._config = config
        self._output_dir = None if output_dir is None else Path(output_dir)

    def run(self, seeds: Seeds | None = None, *, progress: bool = True) -> None:
        """Work on all unfinished seeds and write the files.

        It also works inside a running event loop, as in a notebook.

        :param seeds: seeds to grow; `None`: those of the settings.
        :param progress: show progress and some pairs, if there is a terminal or a notebook.
        :raises ConfigurationError: one line, if something can't be used; nothing was begun.
        :raises RunStopped: if it ended early; the same call resumes it.
        """
        run_sync(self.arun, seeds, progress=progress)

    async def arun(self, seeds: Seeds | None = None, *, progress: bool = True) -> Report:
        """Work on all unfinished seeds, write the files and return the report on them. See `run`."""
        from agentflow.runs import open_screen  # loads rich

        chosen = seeds_for(self._config) if seeds is None else new_seeds(seeds)[: self._config.number_of_seed]
        run = SynthesisRun(self._config, self._output_dir)
        work = partial(run.run, chosen, further=seeds is not None)
        with open_screen() if progress else nullcontext() as screen:
            if screen is None:
                report = await work()
            else:
                report = await show_while(work, screen, run.status, run.notes)
                screen.keep(render_result(report, run.directory.folder))
        if report.why_empty and screen is None:
            _logger.warning("nothing was written to %s: %s", run.directory.folder, report.why_empty)
        return report


def synthesize(
    *,
    config_path: str | PathLike[str] | None = None,
    seeds: Seeds | None = None,
    overrides: Iterable[str] = (),
    progress: bool = True,
) -> None:
    """Grow trees from seeds and write question-answer pairs. The same call resumes a run that ended early.

    It also works inside a running event loop, as in a notebook. In a terminal or a notebook it shows its progress with the
    newest pairs, and at the end the counts and some pairs, or the reason that there are none; elsewhere it prints nothing.

    :param config_path: settings file, JSON or YAML.
    :param seeds: a file of seeds, one seed, or a list of them; `None`: those of the settings.
    :param overrides: `key=value` settings that override the file.
    :param progress: false shows nothing in any case.
    :raises ConfigurationError: one line, if something can't be used; nothing was begun.
    :raises RunStopped: if it ended early; the same call resumes it.

    Example::

        synthesize(seeds=["Explore the harbour"], overrides=["output_dir=my_output"])
    """
    run_sync(asynthesize, config_path=config_path, seeds=seeds, overrides=overrides, progress=progress)


async def asynthesize(
    *,
    config_path: str | PathLike[str] | None = None,
    seeds: Seeds | None = None,
    overrides: Iterable[str] = (),
    progress: bool = True,
) -> Report:
    """Grow trees from seeds, write question-answer pairs and return the report on them. See `synthesize`.

    Example::

        report = await asynthesize(config_path="config.yaml")
    """
    return await SynthesisPipeline(load_config(config_path, overrides)).arun(seeds, progress=progress)


_OUTAGES = frozenset({ErrorKind.UNAVAILABLE, ErrorKind.BUSY, ErrorKind.TIMEOUT})
"""Reasons of failed actions that may pass."""
STATELESS_CONCURRENCY = 64
"""Trees that grow at once if no tool has state."""


_OFFLINE_NOTE = "the offline engine understands only the sentence patterns of the bundled corpus; set model_name to write questions about other documents"


class SynthesisRun(SupervisedRun[SynthesisConfig, SynthesisProgress]):
    """A synthesis, from its settings to its files. An instance runs once; `stop` and `pause` may be called meanwhile."""

    def __init__(
        self,
        config: SynthesisConfig,
        output_dir: Path | None = None,
        *,
        resume: Resume = "auto",
        retry_failed: bool = False,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param output_dir: output directory, instead of that of the settings.
        :param resume: handling of an existing run.
        :param retry_failed: work again on finished seeds that gave nothing, for a reason that may pass.
        :param grace_seconds: time that effects in flight get when the run is stopped.
        :param clock: monotonic seconds.
        :raises ConfigurationError: if the settings have a `learner`: rounds of syntheses and trainings run as a command.
        """
        if config.learner is not None:
            raise ConfigurationError(
                "learner: such settings run in rounds with a training; run agentflow synth, or remove it"
            )
        super().__init__(
            config,
            SynthesisProgress(clock),
            name="synthesis",
            output_dir=output_dir,
            resume=resume,
            retry_failed=retry_failed,
            grace_seconds=grace_seconds,
        )
        self.report: Report | None = None
        """Report on the files, once they are written; also after a stop."""
        self._short_prompts = False

    async def run(self, seeds: Sequence[NewSeed], *, further: bool = False) -> Report:
        """Grow every unfinished seed, write the files and return the report on them.

        :param further: add seeds of another list than before, instead of refusing it.
        :raises ConfigurationError: if something can't be used; nothing was begun.
        :raises RunStopped: if it ended early. The files hold the finished seeds; running it again resumes.
        """
        await self._supervise(partial(self._execute, seeds, further))
        assert self.report is not None, "a run that was not stopped has written its files"
        return self.report

    def status(self) -> SynthesisStatus:
        """Return the current progress."""
        return self._progress.status()

    async def _execute(self, seeds: Sequence[NewSeed], further: bool) -> None:
        check_models(self.config, self._models)
        sandbox = await self._open_tools()
        if self.config.offline and self.config.names_resources and self.config.task_kind is None:
            self._note(_OFFLINE_NOTE)
        self._note(unused_arguments(self.chosen.tools, [seed.kwargs for seed in seeds]))
        run = await self._open_run(seeds, further=further)
        if not self.nothing_to_do:
            await self._grow(run, sandbox)
        if self._shutdown.immediate.is_set():
            return
        self._progress.phase = Phase.WRITING
        await self._write_files(run)

    async def _write_files(self, run: Run) -> None:
        folder, dropped = self.directory.folder, self.chosen.dropped
        self.report = await write_files(
            results_of(run), folder, self.config, dropped_tools=dropped, read_blob=run.blobs.read
        )

    @property
    def _worker_type(self) -> type["TreeWorker"]:
        """Type of the worker of a seed."""
        return TreeWorker

    def _planner(self, team: Team) -> PlannerPort:
        """Return the planner of the trees."""
        return team.planner

    async def _failed_seeds(self, run: Run) -> AsyncGenerator[tuple[Seed, Sequence[str]]]:
        async for seed, result in results_of(run):
            if result.failure:
                yield seed, ()
            elif not (result.pairs or result.triaged or result.tasks or result.triaged_tasks):
                replies = replies_on(await run.read_page(seed))
                nodes = () if result.tree is None else result.tree.nodes
                if any(node.failure is not None and node.failure.kind in _OUTAGES for node in nodes):
                    yield seed, ()
                elif replies.failed:
                    yield seed, keys_to_keep(replies)

    @property
    def _models(self) -> dict[str, ModelSettings]:
        """Models of the roles that use one."""
        roles = ["planner", "generator", "reader"]
        if self.config.closed_book_samples:
            roles.append("learner")
        if self.config.verifier == "model":
            roles.append("verifier")
        if self.config.difficulty.attempts:
            roles.append("agent")
        return {role: self.config.model_for(role) for role in roles}

    async def _grow(self, run: Run, sandbox: Sandbox) -> None:
        models = await self._open_models(run, self._models)
        team = Team(
            {role: model for role, model in models.items() if role in ROLES},
            blobs=run.blobs,
            verify=self.config.verifier,
            short_prompts=self._short_prompts,
            observations=ObservationLimits(
                each=self.config.max_observation_chars, total=self.config.max_evidence_chars
            ),
            gate=self._gate.run,
        )
        for spec in team.specs():
            await start_child(self._supervisor, spec)
        if self.config.control is not False:
            control = partial(
                ControlServer,
                self,
                self.directory.control,
                port=int(self.config.control is not True and self.config.control),
            )
            spec = ChildSpec(id="control", start=control, restart=Restart.TEMPORARY)
            await start_child(self._supervisor, spec)
        worker = await self._seed_worker(
            run, sandbox, team, await self._open_agent(run, sandbox, models.get("agent"))
        )
        await self._schedule(run, worker, concurrency=self.config.max_open_trees or worker.concurrency)

    async def _open_agent(self, run: Run, sandbox: Sandbox, model: Model | None) -> AttemptMaker | None:
        """Return the agent that tries the questions, if there is one."""
        if model is None:
            return None
        pool = SandboxPool(
            sandbox, self.chosen.tools, most=max(1, self.config.max_sandboxes // 2), ahead=0, wanted=0
        )
        spec = ChildSpec(id="sandboxes", start=lambda: pool, restart=Restart.TRANSIENT, shutdown=30)
        await start_child(self._supervisor, spec)
        engine = EpisodeEngine(
            agent=ToolAgent(model, run.blobs),
            tools=self.chosen.tools,
            settings=EpisodeSettings(max_turns=self.config.difficulty.max_turns),
            context=EngineContext(gate=self._gate.run),
        )
        return AttemptMaker(engine=engine, fresh=pool.fresh)

    async def _seed_worker(
        self, run: Run, sandbox: Sandbox, team: Team, agent: AttemptMaker | None
    ) -> "TreeWorker":
        sandboxes = BranchSandboxes(sandbox, self.chosen.tools, max_sandboxes=self.config.max_sandboxes)
        grower = Grower(
            replace(self.config.growth, inputs=self.chosen.inputs),
            run=run.key,
            planner=self._planner(team),
            executor=team.executor,
            verifier=team.verifier,
            sandboxes=sandboxes,
            observer=self._progress.count_node,
        )
        search = search_tool(self.chosen.tools) if self.config.search_alternatives else None
        kind = None
        if self.config.task_kind is not None:
            opens = solution_kind(self.config, sandboxes, team)
            if opens is None:
                kind = await task_kind(self.config, sandbox, sandboxes, team, run)
            else:
                kind = await open_supervised(self._supervisor, "tasks", opens)
        return self._worker_type(
            run=run,
            grower=grower,
            team=team,
            config=self.config,
            progress=self._progress,
            sandboxes=sandboxes,
            kind=kind,
            search_tool=search,
            agent=agent,
            guard=self._answer_guard(),
        )


@dataclass(frozen=True, kw_only=True)
class TreeWorker:
    """Grows the tree of a seed and writes questions about it."""

    run: Run
    grower: Grower
    team: Team
    config: SynthesisConfig
    progress: SynthesisProgress
    sandboxes: BranchSandboxes
    kind: TaskKind | None
    search_tool: str | None
    agent: AttemptMaker | None
    guard: AnswerGuard

    @property
    def concurrency(self) -> int:
        """Number of trees whose branches all fit into `max_sandboxes`."""
        if not self.sandboxes.stateful:
            return STATELESS_CONCURRENCY
        return max(1, self.config.max_sandboxes // self.grower.settings.width)

    async def work(self, seed: Seed) -> bytes:
        """Grow its tree, and write questions about it or derive tasks from it."""

        async def work(page: Page) -> tuple[SeedResult, RoleReplies]:
            tree = await self.grower.grow(seed, page)
            write = self._write if self.kind is None else partial(self._derive, self.kind)
            result = await write(tree, page)
            return replace(result, tree=without_observations(tree)), replies_on(page)

        result = await self.guard.work(self.run, seed, work, keys_to_keep)
        self._count(result)
        return msgspec.json.encode(result)

    async def _derive(self, kind: TaskKind, tree: Tree, page: Page) -> SeedResult:
        """Derive tasks from a tree."""
        tries = (
            None
            if self.agent is None
            else replace_fields(self.agent, verifiers=TaskVerifiers({kind.name: kind}))
        )
        derived = await derive_tasks(tree, kind, page, self.config.difficulty, tries)
        return with_paths(derived, tree, self.config)

    async def _write(self, tree: Tree, page: Page) -> SeedResult:
        """Write questions about a tree, or check those of `drafts`."""
        executor, search = self.team.executor, None
        if self.search_tool is not None:
            search = PageSearch(self.sandboxes.base, executor, self.search_tool, page)
        return await write_questions(
            tree,
            self.config,
            self.team,
            page,
            search=search,
            repeated=TreeCalls(self.sandboxes, executor, tree, page),
            agent=None if self.agent is None else replace_fields(self.agent, kwargs=tree.seed.kwargs),
            drafts=self.drafts(tree),
        )

    def drafts(self, tree: Tree) -> DraftSource | None:
        """Return the source of the drafts about a tree; `None`: a model writes them."""
        return None

    def _count(self, result: SeedResult) -> None:
        """Count what was derived from a tree, and show it."""
        if self.kind is not None:
            self.progress.tasks += len(result.tasks)
            self.progress.rejected += len(result.rejected_tasks)
            _record_verdicts("task", len(result.tasks), len(result.rejected_tasks))
            for task in result.tasks:
                self.progress.preview(task.instruction, task.answer)
            return
        self.progress.questions += len(result.pairs)
        self.progress.rejected += len(result.rejected)
        for trajectory in result.trajectories:
            record_score("trajectory", trajectory.score.total)
        _record_verdicts("question", len(result.pairs), len(result.rejected))
        for pair in result.pairs:
            self.progress.preview(pair.question, pair.answer)

    def give_up(self, seed: Seed, error: Exception) -> bytes:
        """Return the result of a seed whose work crashed repeatedly."""
        return msgspec.json.encode(SeedResult(failure=error_line(error)))


def _record_verdicts(name: str, accepted: int, rejected: int) -> None:
    """Add the verdicts on what was derived from a tree to the trace of its seed."""
    for _ in range(accepted):
        record_score(name, 1.0, "accepted")
    for _ in range(rejected):
        record_score(name, 0.0, "rejected")


async def results_of(run: Run) -> AsyncGenerator[tuple[Seed, SeedResult]]:
    """Yield the results of finished seeds, their trees with the observations of the journal.

    Earlier versions stored whole trees; those are read the same way.
    """
    async for seed, result in run.results(SeedResult):
        if result.tree is not None:
            page = await run.read_page(seed, "act/")
            result = replace(result, tree=with_observations(result.tree, seed, page))
        yield seed, result
