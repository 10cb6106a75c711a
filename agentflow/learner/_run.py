"""One training run: everything that it stands on is opened, the loop goes, everything is closed."""

import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import numpy as np
from msgspec import Struct, structs

from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.learner._backbone import Backbone
from agentflow.learner._checkpoints import CheckpointError, Checkpoints
from agentflow.learner._config import TrainConfig
from agentflow.learner._debug import debug_rollouts
from agentflow.learner._engine import Engine, open_engine
from agentflow.learner._episode_runner import open_stage
from agentflow.learner._group_rollout import Playing
from agentflow.learner._loop import Loop, Position, in_thread
from agentflow.learner._order import Order
from agentflow.learner._progress import TrainProgress, TrainStatus
from agentflow.learner._record import Rollouts
from agentflow.learner._rows import Row
from agentflow.learner._sources import Replayed, Rounds, Source
from agentflow.learner._stream import Stream
from agentflow.learner._tree_groups import Grove, open_trees
from agentflow.learner._validation import Validation
from agentflow.learner.trackers import Trackers, open_trackers
from agentflow.rollout import Assignment, assign
from agentflow.runs import Phase, Resume, render_config, unwrap_group
from agentflow.scoring import Metric
from agentflow.trajectory import Task

__all__ = ["Outcome", "TrainRun", "make_backbone"]

SETTINGS_FILE = "settings.yaml"

Running: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


class Outcome(Struct, frozen=True, kw_only=True):
    """What a run gave."""

    steps: int
    """Steps that are made."""
    version: int
    """How many of them changed the weights."""
    figures: dict[str, float]
    """The figures of the last one."""
    output_dir: str
    """Where everything is."""
    policy: str
    """The folder of the trained model, as Hugging Face keeps it."""


class TrainRun:
    """A training run, from its settings to a trained model. It lives once."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        tasks: Sequence[Task] | None = None,
        validation: Sequence[Task] | None = None,
        metric: Metric | None = None,
        resume: Resume = "auto",
        say: Callable[[str], None] = print,
    ) -> None:
        """Describe it.

        :param tasks: these, instead of those of the settings.
        :param validation: the same, of held-out tasks.
        :param metric: what answers are worth, instead of the settings' metric.
        :param resume: whether a run that exists is gone on with.
        :param say: is given what is to be shown of rollouts, line by line, with backbone=debug.
        """
        self.config = config
        """Its settings."""
        self.position = Position()
        """Where it stands."""
        self._tasks = tasks
        self._validation = validation
        self._metric = metric
        self._resume: Resume = resume
        self._say = say
        self._progress = TrainProgress(config.schedule.steps)
        self._loop: Loop | None = None
        self._stopped = ""

    async def run(self) -> Outcome:
        """Train until all steps are made.

        :raises ConfigurationError: if something can't be used; nothing was begun.
        :raises RunStopped: if it ended early; the same again goes on.
        """
        try:
            outcome = await self._run()
        except BaseException as error:
            self._progress.phase = Phase.STOPPED
            # What happens in a task group comes out in a group; whoever started the run wants to know what it was.
            cause = unwrap_group(error) if isinstance(error, Exception) else error
            if cause is not error and isinstance(cause, AgentFlowError):
                raise cause from error
            raise
        self._progress.phase = Phase.DONE
        return outcome

    async def _run(self) -> Outcome:
        config = self.config
        if config.backbone == "debug":
            self._progress.phase = Phase.GROWING
            assignment = assign(config.rules_for("training"), self._tasks)
            figures = await debug_rollouts(config, assignment, self._metric, self._say)
            return Outcome(steps=0, version=0, figures=figures, output_dir="", policy="")
        self._check()
        assignment, held_out = self._assignments()
        checkpoints = Checkpoints(config.output / "checkpoints", keep=config.schedule.keep_checkpoints)
        self._prepare(checkpoints)
        backbone = await in_thread(make_backbone, config)
        if await in_thread(_has_followed, backbone):
            return Outcome(steps=0, version=backbone.version, figures={}, output_dir="", policy="")
        try:
            self.position = Position(await in_thread(checkpoints.load, backbone))
            self._progress.step = self.position.step
            with closing(open_trackers(config.trackers, config.output, self.position.step or -1)) as trackers:
                self._progress.phase = Phase.GROWING
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
            self._progress.made(step, figures)
            trackers.log(step, figures)

        make = partial(
            Loop,
            backbone=backbone,
            loss=config.loss,
            schedule=config.schedule,
            checkpoints=checkpoints,
            position=self.position,
            report=report,
            validate_every=config.validation.every,
            validates_first=config.validation.first,
        )
        if config.schedule.replay is None:
            await self._play(make, backbone, assignment, held_out)
        else:
            stored = Replayed(Rollouts(config.schedule.replay))
            await self._go(make(source=stored, rollouts=Rollouts(config.output / "rollouts")))

    def status(self) -> TrainStatus:
        """How far it is."""
        return self._progress.status()

    def stop(self, why: str = "it was asked to stop") -> None:
        """End after the step that is being made; everything is kept."""
        self._stopped = self._stopped or why
        if self._loop is not None:
            self._loop.stop(why)

    def stop_now(self) -> None:
        """A step that is being made is made in any case; there is nothing else to wait for."""

    async def _play(
        self, make: Callable[..., Loop], backbone: Backbone, assignment: Assignment, held_out: Sequence[Task]
    ) -> None:
        """Make steps from episodes that are played now."""
        config, schedule, rules = self.config, self.config.schedule, self.config.episodes
        async with _engine_of(config, backbone) as engine:
            models = engine.models(rules.models)
            async with (
                open_stage(config, assignment, models, self._metric) as stage,
                open_trees(config, stage) as trees,
            ):
                playing = (Playing if trees is None else partial(Grove, trees))(
                    stage,
                    trained=rules.trained_roles,
                    temperature=rules.temperature_in_training,
                    seed=config.seed,
                    at_once=rules.workers,
                    seconds=rules.episode_seconds,
                    tries=1 + rules.max_retries,
                    engine_ready=engine.ready,
                    saw=self._progress.played,
                )
                order = Order(assignment.tasks, seed=config.seed, epochs=schedule.epochs)
                source, running = _source(config, playing, order)
                validation = Validation(playing, held_out, config.validation) if held_out else None
                loop = make(
                    source=source,
                    rollouts=Rollouts(config.output / "rollouts"),
                    publish=partial(_publish, config, backbone, engine),
                    validate=None if validation is None else validation.score,
                    running=running,
                )
                await self._go(loop)

    async def _go(self, loop: Loop) -> None:
        self._loop = loop
        if self._stopped:
            loop.stop(self._stopped)
        await loop.run()

    async def _finish(self, backbone: Backbone) -> Outcome:
        folder = self.config.output / "policy"
        try:
            await in_thread(backbone.export, folder)
        except CheckpointError as error:
            raise RunStopped(StopCause.JOURNAL, f"{error}, then run the same again") from None
        shutil.rmtree(self.config.output / "weights", ignore_errors=True)
        return Outcome(
            steps=self.position.step,
            version=backbone.version,
            figures=self._loop.last if self._loop is not None else {},
            output_dir=str(self.config.output),
            policy=str(folder),
        )

    def _check(self) -> None:
        config = self.config
        if config.policy is None:
            raise ConfigurationError("policy.model is missing; name the folder of the model that is trained")
        if config.schedule.replay is not None and (self._validation or config.validation.data_path):
            raise ConfigurationError(
                "schedule.replay: nothing is played, so there is no validation; leave out its data_path"
            )

    def _assignments(self) -> tuple[Assignment, list[Task]]:
        """The tasks that are learned from, and those that are held out."""
        config = self.config
        if config.schedule.replay is not None:
            return Assignment(tasks=[], name="replay", metric=""), []
        assignment = assign(config.rules_for("training"), self._tasks)
        if self._validation is None and config.validation.data_path is None:
            return assignment, []
        held_out = assign(config.rules_for("validation"), self._validation)
        known = {task.question for task in assignment.tasks}
        if same := next((task.id for task in held_out.tasks if task.question in known), None):
            raise ConfigurationError(
                f"validation.data_path: {same} is learned from, too; hold out tasks that are not in tasks.data_path"
            )
        pictures = {**assignment.pictures, **held_out.pictures}
        return structs.replace(assignment, pictures=pictures), held_out.tasks

    def _prepare(self, checkpoints: Checkpoints) -> None:
        """Make the folder, and put the settings there."""
        output = self.config.output
        there = bool(checkpoints.all())
        if there and self._resume == "never":
            raise ConfigurationError(
                f"resume: there is a run in {output} already; name another output_dir, or leave out resume=never"
            )
        if not there and self._resume == "always":
            raise ConfigurationError(f"resume: there is no run in {output} to go on with; check output_dir")
        try:
            output.mkdir(parents=True, exist_ok=True)
            (output / SETTINGS_FILE).write_text(render_config(self.config), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"output_dir: {output} can't be written: {error.strerror}; name another"
            ) from None


def make_backbone(config: TrainConfig) -> Backbone:
    """What makes the steps. It takes long: the model is loaded.

    :raises ConfigurationError: if it can't be loaded, or something that it needs is not installed.
    """
    assert config.policy is not None, "checked before"
    if config.backbone == "verl":
        from agentflow.learner.verl import VerlBackbone

        return VerlBackbone(config.policy, config.optimiser, config.verl)
    try:
        from agentflow.learner.local import LocalBackbone
    except ImportError as error:
        raise ConfigurationError(
            f"backbone: local needs {error.name}; pip install 'agentflow[train]'"
        ) from None
    return LocalBackbone(config.policy, config.optimiser)


def _has_followed(backbone: Backbone) -> bool:
    """Whether this is a process of torchrun's that does what the first one says; it has done all of it then."""
    from agentflow.learner.local import LocalBackbone

    if not isinstance(backbone, LocalBackbone) or backbone.leads:
        return False
    backbone.follow()
    return True


@asynccontextmanager
async def _engine_of(config: TrainConfig, backbone: Backbone) -> AsyncGenerator[Engine]:
    """An engine that has the weights as they are."""
    assert config.policy is not None, "checked before"
    folder = _weights(config, backbone.version)
    await _export(backbone, folder)
    async with open_engine(config, folder, config.policy.model) as engine:
        if config.engine.base_url:
            await engine.publish(folder, backbone.version, partial(_score, backbone))
        yield engine


async def _publish(config: TrainConfig, backbone: Backbone, engine: Engine, version: int) -> None:
    """Have the engine sample with the weights as they are; those before them are not needed any more."""
    folder = _weights(config, version)
    if folder.exists():
        # A step that changed nothing.
        return
    await _export(backbone, folder)
    await engine.publish(folder, version, partial(_score, backbone))
    for older in folder.parent.iterdir():
        if older != folder:
            await in_thread(partial(shutil.rmtree, older, ignore_errors=True))


async def _export(backbone: Backbone, folder: Path) -> None:
    try:
        await in_thread(backbone.export, folder)
    except CheckpointError as error:
        raise RunStopped(StopCause.JOURNAL, f"{error}, then run the same again") from None


async def _score(backbone: Backbone, tokens: tuple[int, ...]) -> list[float]:
    """What the trainer makes of a text."""
    count = len(tokens) - 1
    row = Row(
        ids=np.array(tokens, np.int32),
        trained=np.arange(len(tokens)) > 0,
        behaviour=np.zeros(count, np.float32),
        advantages=np.zeros(count, np.float32),
        weights=np.zeros(count, np.float64),
        units=np.zeros(count, np.int32),
    )
    return (await in_thread(backbone.log_probs, [row]))[0].tolist()


def _weights(config: TrainConfig, version: int) -> Path:
    """Where the weights of a version lie while an engine reads them."""
    return config.output.absolute() / "weights" / f"v{version:06d}"


def _source(config: TrainConfig, playing: Playing, order: Order) -> tuple[Source, Running]:
    schedule = config.schedule
    tasks, size, replace_equal = schedule.tasks_per_step, schedule.episodes_per_task, schedule.replace_equal
    if schedule.mode == "sync":
        return Rounds(playing, order, tasks=tasks, size=size, replace_equal=replace_equal), nullcontext
    stream = Stream(
        playing,
        order,
        tasks=tasks,
        size=size,
        bound=schedule.staleness,
        stale=schedule.stale,
        replace_equal=replace_equal,
    )
    return stream, stream.running
