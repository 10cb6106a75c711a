"""Entry points of a training, and the run: it opens all resources, runs the loop and closes them."""

import os
import shutil
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
from msgspec import structs

from agentflow._private_files import make_private_folder, write_private
from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause, unwrap_group
from agentflow.extras import extra_of, missing_extra
from agentflow.learner._backbone import Backbone, Figures
from agentflow.learner._checkpoints import CheckpointError, Checkpoints, RolloutStore
from agentflow.learner._config import TrainConfig, load_train_config, with_engine_key
from agentflow.learner._engine import (
    PolicyEngine,
    figures_of,
    keep_published,
    open_engine,
    policy_of,
    probe_of,
    wait_for_engine,
    writable_output,
)
from agentflow.learner._group_rollout import PolicyRollout, Validation
from agentflow.learner._loop import Loop, LoopHooks, LoopPosition, ProbeRows, in_thread
from agentflow.learner._policy import find_model
from agentflow.learner._progress import TrainOutcome, TrainProgress, TrainStatus
from agentflow.learner._sources import AsyncSource, BatchSource, ReplaySource, SyncSource, TaskOrder
from agentflow.learner._team_rollouts import RolloutContext, RolloutFactory, TeamRollouts
from agentflow.learner.trackers import Trackers, open_trackers
from agentflow.models import Accounts, ModelSettings
from agentflow.readers import aprepare_tasks, with_own_scorers
from agentflow.rollouts import Assignment, RolloutConfig, assign
from agentflow.runs import (
    Phase,
    Resume,
    check_output,
    lock_output,
    render_config,
    run_in_place,
    traced_run,
    write_report_page,
)
from agentflow.scoring import Metric, OwnMetric
from agentflow.trace import Task, digest, needed_documents

Tasks: TypeAlias = str | PathLike[str] | Sequence[Task] | Mapping[str, Any]
"""A file of tasks, tasks, or that section of the settings."""
Reward: TypeAlias = Callable[[str, Task], object]
"""Reward of an answer to a task: a number from 0 to 1 or a `Scored`, or an awaitable of one."""


def train(
    config_path: str | PathLike[str] | None = None,
    tasks: Tasks | None = None,
    *,
    validation: Tasks | None = None,
    reward: Reward | None = None,
    resume: Resume = "auto",
    overrides: Iterable[str] = (),
    **settings: Any,  # noqa: ANN401 - any section of the settings, by its name
) -> dict[str, Any]:
    """Train a policy. Run the same command to resume; a finished run does nothing.

    It also works inside a running event loop, as in a notebook. See docs/training.md.

    :param config_path: settings file, JSON or YAML.
    :param tasks: file of tasks, tasks, or that section of the settings; `None`: as in the file.
    :param validation: held-out tasks, likewise.
    :param reward: reward function, instead of a named metric.
    :param resume: continue an existing run: `auto`, `always` or `never`.
    :param overrides: `key=value` settings that override the file.
    :param settings: sections or single settings that override all others: `policy={"model": "…"}`, `seed=1`.
    :return: `steps`, `version`, `figures` of the last step, `output_dir`, and `policy`, the folder of the trained model.
    :raises ConfigurationError: if a setting can't be used; nothing was started.
    :raises RunStopped: if it ended early; the same command resumes.
    """
    work = partial(
        atrain,
        config_path,
        tasks,
        validation=validation,
        reward=reward,
        resume=resume,
        overrides=overrides,
        **settings,
    )
    return run_in_place(work)


async def atrain(
    config_path: str | PathLike[str] | None = None,
    tasks: Tasks | None = None,
    *,
    validation: Tasks | None = None,
    reward: Reward | None = None,
    resume: Resume = "auto",
    overrides: Iterable[str] = (),
    **settings: Any,  # noqa: ANN401 - any section of the settings, by its name
) -> dict[str, Any]:
    """Train a policy; the asynchronous form of `train`. See docs/training.md."""
    sections = {**settings, **_section("tasks", tasks), **_section("validation", validation)}
    config = load_train_config(None if config_path is None else fspath(config_path), overrides, sections)
    run = TrainRun(
        config,
        tasks=_task_list(tasks),
        validation=_task_list(validation),
        metric=None if reward is None else OwnMetric(_name_of(reward), reward),
        resume=resume,
    )
    return (await run.run()).record()


def _section(name: str, tasks: Tasks | None) -> dict[str, object]:
    if isinstance(tasks, Mapping):
        return {name: tasks}
    return {name: {"data_path": fspath(tasks)}} if isinstance(tasks, str | PathLike) else {}


def _task_list(tasks: Tasks | None) -> Sequence[Task] | None:
    return None if isinstance(tasks, str | PathLike | Mapping) else tasks


def _name_of(reward: Reward) -> str:
    return str(getattr(reward, "__name__", "reward"))


async def read_tasks_of(
    config: TrainConfig, kind: Literal["training", "validation"], tasks: Sequence[Task] | None
) -> Sequence[Task] | None:
    """Return the given tasks, or those of a reader; `None`: they are in a file, or the run replays stored rollouts.

    :raises ConfigurationError: one line with the place, if they can't be read.
    """
    reader = config.reader_for(kind)
    if tasks is not None or reader is None or config.schedule.replay is not None:
        return tasks
    return (await aprepare_tasks(reader)).tasks


def rules_for_tasks(
    config: TrainConfig, kind: Literal["training", "validation"], tasks: Sequence[Task] | None
) -> RolloutConfig:
    """Return the settings of a rollout; tasks with scorers of their own are scored by these."""
    return with_own_scorers(config.rules_for(kind), tasks or ())


SETTINGS_FILE = "settings.yaml"


class TrainRun:
    """A training run, from its settings to a trained model. It can be run once."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        tasks: Sequence[Task] | None = None,
        validation: Sequence[Task] | None = None,
        metric: Metric | None = None,
        resume: Resume = "auto",
        say: Callable[[str], None] = print,
        rollouts: RolloutFactory | None = None,
    ) -> None:
        """Configure it.

        :param tasks: training tasks, instead of those of the settings.
        :param validation: held-out tasks, instead of those of the settings.
        :param metric: metric of the answers, instead of that of the settings.
        :param resume: continue an existing run: `auto`, `always` or `never`.
        :param say: receives the output of backbone=debug, line by line.
        :param rollouts: opens the rollouts; `None`: episodes of the team or a single agent, scored by `metric`.
        """
        self.config = config
        """Settings of the run."""
        self.position = LoopPosition()
        """Current position."""
        self._tasks = tasks
        self._validation = validation
        self.rollouts = TeamRollouts(metric) if rollouts is None else rollouts
        """Opens the rollouts."""
        self._resume: Resume = resume
        self._say = say
        self._progress = TrainProgress(config.schedule.steps, overlaps=config.schedule.mode == "async")
        self._loop: Loop | None = None
        self._stopped = ""

    async def run(self) -> TrainOutcome:
        """Train until all steps are made.

        :raises ConfigurationError: if a setting can't be used; nothing was started.
        :raises RunStopped: if it ended early; the same command resumes.
        """
        try:
            async with traced_run("training", self.config.output, self.config.episodes.tracing):
                outcome = await self._run()
        except BaseException as error:
            self._progress.phase = Phase.STOPPED
            cause = unwrap_group(error) if isinstance(error, Exception) else error  # the caller gets it
            if cause is not error and isinstance(cause, AgentFlowError):
                raise cause from error
            raise
        self._progress.phase = Phase.DONE
        return outcome

    async def _run(self) -> TrainOutcome:
        config = self.config
        if config.backbone == "debug":
            self._progress.phase = Phase.GROWING
            await self._read_tasks()
            assignment = self._training_tasks()
            figures = await self.rollouts.debug(config, assignment, self._say)
            return TrainOutcome(steps=0, version=0, figures=figures, output_dir="", policy="")
        assignment, held_out = await self.prepare()
        config = self.config
        checkpoints = Checkpoints(config.output / "checkpoints", keep=config.schedule.save_total_limit)
        self._create(checkpoints)
        # The processes of torchrun share the directory; the first one writes.
        leads = int(os.environ.get("RANK", "0")) == 0 or os.environ.get("WORLD_SIZE", "1") == "1"
        try:
            with lock_output(config.output) if leads else nullcontext():
                return await self._work(checkpoints, assignment, held_out)
        finally:
            if leads and self.position.step:
                await write_report_page(config.output)

    async def prepare(self) -> tuple[Assignment, list[Task]]:
        """Check settings, tasks and engine before anything heavy is loaded; return the training and the held-out tasks.

        :raises ConfigurationError: if a setting can't be used.
        :raises RunStopped: if the engine of the settings does not answer.
        """
        config = self.config
        await self._read_tasks()
        self._check()
        assigned = self._assignments()
        check_output(config.output)
        if config.engine.base_url and not config.engine.has_replicas and config.schedule.replay is None:
            self._progress.phase = Phase.ENGINE
            await wait_for_engine(config)
            # An engine that was started meanwhile has written its key.
            self.config = with_engine_key(config)
        return assigned

    async def _read_tasks(self) -> None:
        self._tasks = await read_tasks_of(self.config, "training", self._tasks)
        self._validation = await read_tasks_of(self.config, "validation", self._validation)

    async def _work(
        self, checkpoints: Checkpoints, assignment: Assignment, held_out: Sequence[Task]
    ) -> TrainOutcome:
        """Train in the locked directory."""
        config = self.config
        self._write_settings()
        with self._progress.during(Phase.LOADING):
            backbone = await in_thread(make_backbone, config)
        if await in_thread(_follow_if_not_first, backbone):
            return TrainOutcome(steps=0, version=backbone.version, figures={}, output_dir="", policy="")
        try:
            self.position = msgspec.convert(await in_thread(checkpoints.load, backbone) or {}, LoopPosition)
            self._progress.done = self.position.step
            with closing(open_trackers(config.trackers, config.output, self.position.step or -1)) as trackers:
                await self._train(backbone, checkpoints, trackers, assignment, held_out)
            self._progress.phase = Phase.WRITING
            return await self._finish(backbone)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(backbone.close)

    async def _train(
        self,
        backbone: Backbone,
        checkpoints: Checkpoints,
        trackers: Trackers,
        assignment: Assignment,
        held_out: Sequence[Task],
    ) -> None:
        config = self.config

        def report(step: int, figures: Mapping[str, float]) -> None:
            self._progress.add_step(step, figures)
            trackers.log(step, {**figures, **self._progress.take_usage()})

        make = partial(
            Loop,
            config,
            backbone=backbone,
            rollouts=RolloutStore(config.output / "rollouts"),
            checkpoints=checkpoints,
            position=self.position,
            progress=self._progress,
        )
        hooks = LoopHooks(report=report, validation_episodes=len(held_out) * config.validation.samples)
        if config.schedule.replay is None:
            await self._roll_out(make, hooks, backbone, assignment, held_out)
        else:
            stored = ReplaySource(RolloutStore(config.schedule.replay))
            await self._run_loop(make(source=stored, hooks=hooks))

    def status(self) -> TrainStatus:
        """Return the progress so far."""
        return self._progress.status()

    def stop(self, why: str = "stop was requested") -> None:
        """Stop after the current step; everything is kept."""
        self._stopped = self._stopped or why
        if self._loop is not None:
            self._loop.stop(why)

    def stop_now(self) -> None:
        """Do nothing: the current step is always completed."""

    async def _roll_out(
        self,
        make: Callable[..., Loop],
        hooks: LoopHooks,
        backbone: Backbone,
        assignment: Assignment,
        held_out: Sequence[Task],
    ) -> None:
        """Make steps from new rollouts."""
        config, rules = self.config, self.config.episodes
        accounts = Accounts(max_tokens=rules.max_total_tokens, max_cost=rules.max_cost)
        self._progress.accounts = accounts
        wanted = self.rollouts.models(config)
        self._progress.phase = Phase.ENGINE
        async with _engine_of(config, backbone, wanted) as engine:
            context = RolloutContext(
                config=config,
                assignment=assignment,
                models=engine.models(wanted),
                engine_ready=engine.ready,
                on_result=self._progress.add_result,
                accounts=accounts,
                version=backbone.version,
            )
            async with self.rollouts.open(context) as rollout:
                order = TaskOrder(assignment.tasks, seed=config.seed, epochs=config.schedule.epochs)
                hooks = replace(
                    hooks,
                    publish=partial(_publish, config, backbone, engine, rollout),
                    use=rollout.use,
                    validate=Validation(rollout, held_out, config.validation).score if held_out else None,
                )
                await self._run_loop(make(source=_source(config, rollout, order), hooks=hooks))

    async def _run_loop(self, loop: Loop) -> None:
        self._loop = loop
        if self._stopped:
            loop.stop(self._stopped)
        self._progress.phase = Phase.GROWING
        await loop.run()

    async def _finish(self, backbone: Backbone) -> TrainOutcome:
        folder = self.config.output / "policy"
        await _export(backbone, folder)
        await keep_published(self.config, _weights(self.config, backbone.version), folder.absolute())
        shutil.rmtree(self.config.output / "weights", ignore_errors=True)
        return TrainOutcome(
            steps=self.position.step,
            version=backbone.version,
            figures=self._loop.last if self._loop is not None else {},
            output_dir=str(self.config.output),
            policy=str(folder),
        )

    def _check(self) -> None:
        config = self.config
        policy_of(config)
        if config.schedule.replay is not None and (self._validation or config.validation.data_path):
            raise ConfigurationError(
                "schedule.replay: nothing is sampled, so validation is not possible; leave out its data_path"
            )

    def _training_tasks(self) -> Assignment:
        """Return the training tasks.

        :raises ConfigurationError: if they can't be used.
        """
        config = self.config
        assignment = assign(rules_for_tasks(config, "training", self._tasks), self._tasks)
        if config.tasks.evidence is not None:
            check_evidence(assignment.tasks)
        return assignment

    def _assignments(self) -> tuple[Assignment, list[Task]]:
        """Return the training tasks and the held-out tasks."""
        config = self.config
        if config.schedule.replay is not None:
            return Assignment(tasks=[], name="replay", metric=""), []
        assignment = self._training_tasks()
        if self._validation is None and config.validation.data_path is None:
            return assignment, []
        held_out = assign(rules_for_tasks(config, "validation", self._validation), self._validation)
        if same := _shared_task(assignment.tasks, held_out.tasks):
            raise ConfigurationError(
                f"validation.data_path: {same} is also a training task; hold out tasks that are not in tasks.data_path"
            )
        pictures = {**assignment.pictures, **held_out.pictures}
        verified = assignment.verified | held_out.verified
        return structs.replace(assignment, pictures=pictures, verified=verified), held_out.tasks

    def _create(self, checkpoints: Checkpoints) -> None:
        """Create the output folder."""
        output = self.config.output
        there = bool(checkpoints.all())
        if there and self._resume == "never":
            raise ConfigurationError(
                f"resume: {output} already contains a run; name another output_dir, or leave out resume=never"
            )
        if not there and self._resume == "always":
            raise ConfigurationError(f"resume: {output} contains no run to resume; check output_dir")
        with writable_output(self.config.output):
            make_private_folder(output)

    def _write_settings(self) -> None:
        with writable_output(self.config.output):
            write_private(self.config.output / SETTINGS_FILE, render_config(self.config).encode())


def check_evidence(tasks: Sequence[Task]) -> None:
    """Check that tasks name the documents that they need. See docs/training.md.

    :raises ConfigurationError: one line, if none does, or one does it in another form.
    """
    named = False
    for task in tasks:
        try:
            named = bool(needed_documents(task, strict=True)) or named
        except ValueError as error:
            raise ConfigurationError(f"tasks: task {task.id}: {error}, or leave out tasks.evidence") from None
    if not named:
        raise ConfigurationError(
            "tasks.evidence: no task names the documents that it needs; add a field `documents` with their ids, as the "
            "pairs of a synthesis have it, or leave it out"
        )


def _shared_task(tasks: Sequence[Task], held_out: Sequence[Task]) -> str:
    """Return the id of a held-out task that is also a training task; empty if there is none."""
    questions = {task.question for task in tasks}
    # Tasks of one question, such as a game, differ in their other fields.
    by_question = len(questions) > len(tasks) // 2

    def content(task: Task) -> str:
        return task.question if by_question else digest([task.question, task.kwargs, task.metadata])

    trained = {content(task) for task in tasks}
    return next((task.id for task in held_out if content(task) in trained), "")


def make_backbone(config: TrainConfig) -> Backbone:
    """Load the model and return the backbone, which takes long.

    :raises ConfigurationError: if the model can't be loaded, or a dependency is missing.
    """
    try:
        return _make_backbone(config)
    except ImportError as error:
        if not extra_of(error.name or ""):
            raise
        raise ConfigurationError(missing_extra(f"backbone: {config.backbone}", "train")) from None


def _make_backbone(config: TrainConfig) -> Backbone:
    assert config.policy is not None, "checked before"
    wanted, started = config.policy.processes, int(os.environ.get("WORLD_SIZE", "1"))
    if config.backbone == "local" and wanted not in (1, started):
        raise ConfigurationError(
            f"policy.processes: {wanted} are set and {started} started; start the training with agentflow train"
        )
    # verl and Trinity start from a folder.
    policy = config.policy.model_copy(update={"model": str(find_model(config.policy))})
    if config.backbone == "verl":
        from agentflow.learner.verl import VerlBackbone

        return VerlBackbone(policy, config.optimizer, config.verl)
    if config.backbone == "trinity":
        from agentflow.learner.trinity import TrinityBackbone

        return TrinityBackbone(policy, config.optimizer, config.trinity)
    from agentflow.learner.local import LocalBackbone

    return LocalBackbone(policy, config.optimizer)


def _follow_if_not_first(backbone: Backbone) -> bool:
    """Follow the first process of torchrun until it ends, if this is another one; return true in that case."""
    from agentflow.learner.local import LocalBackbone

    if not isinstance(backbone, LocalBackbone) or backbone.leads:
        return False
    backbone.follow()
    return True


@asynccontextmanager
async def _engine_of(
    config: TrainConfig, backbone: Backbone, wanted: Mapping[str, ModelSettings]
) -> AsyncGenerator[PolicyEngine]:
    """Open an engine with the current weights, and a frozen copy if a role uses one."""
    assert config.policy is not None, "checked before"
    folder = _weights(config, backbone.version)
    await _export(backbone, folder)
    async with open_engine(config, folder, config.policy.model, wanted) as engine:
        if config.engine.base_url:
            await engine.publish(folder, backbone.version)
        # A killed process may have left weights that its engine never took.
        await _remove_other_weights(folder)
        yield engine


async def _publish(
    config: TrainConfig,
    backbone: Backbone,
    engine: PolicyEngine,
    rollout: PolicyRollout,
    version: int,
    probed: ProbeRows | None,
) -> Figures:
    """Publish the current weights to the engine and delete older ones; return figures.

    :param probed: rows on which engine and trainer are compared.
    """
    folder = _weights(config, version)
    if folder.exists():
        # The step changed nothing.
        return {}
    await _export(backbone, folder, durable=False)
    probe = None
    # Trinity's trainer has no log-probabilities.
    if probed is not None and config.backbone != "trinity":
        probe = probe_of(probed, await in_thread(backbone.log_probs, probed.rows), folder)
    figures: Figures = {}

    async def publish() -> None:
        figures.update(figures_of(await engine.publish(folder, version, probe)))

    await rollout.publish(version, publish)
    await _remove_other_weights(folder)
    return figures


async def _remove_other_weights(folder: Path) -> None:
    """Delete the weights of all other versions."""
    for other in folder.parent.iterdir():
        if other != folder:
            await in_thread(partial(shutil.rmtree, other, ignore_errors=True))


async def _export(backbone: Backbone, folder: Path, *, durable: bool = True) -> None:
    try:
        await in_thread(partial(backbone.export, folder, durable=durable))
    except CheckpointError as error:
        raise RunStopped(StopCause.JOURNAL, f"{error}, then run the same command to resume") from None


def _weights(config: TrainConfig, version: int) -> Path:
    """Return the folder from which the engine reads the weights of a version."""
    return config.output.absolute() / "weights" / f"v{version:06d}"


def _source(config: TrainConfig, rollout: PolicyRollout, order: TaskOrder) -> BatchSource:
    schedule = config.schedule
    tasks, size, replace_equal = schedule.tasks_per_step, schedule.episodes_per_task, schedule.replace_equal
    if schedule.mode == "sync":
        return SyncSource(rollout, order, tasks=tasks, size=size, replace_equal=replace_equal)
    return AsyncSource(
        rollout,
        order,
        tasks=tasks,
        size=size,
        bound=schedule.max_staleness,
        stale=schedule.stale,
        replace_equal=replace_equal,
    )
