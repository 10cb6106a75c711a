"""Trial of a training: one episode, one step that is not kept, one publication, in a temporary folder."""

import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from msgspec import Struct, structs

from agentflow.errors import AgentFlowError, RunStopped
from agentflow.learner._config import TrainConfig
from agentflow.learner._group_rollout import PolicyRollout
from agentflow.learner._groups import Batch, EpisodeResult, Group, TaskDraw
from agentflow.learner._run import TrainRun
from agentflow.learner._team_rollouts import RolloutContext, RolloutFactory
from agentflow.learner.trackers import TrackerSettings
from agentflow.models import ModelSettings
from agentflow.rollouts import Assignment
from agentflow.runs import Phase
from agentflow.trace import Task

MAX_TOKENS: Final = 64
"""Maximum number of tokens of a call of our own roles; other agents have their own limit."""
POLL_SECONDS: Final = 0.1

_ENGINE: Final = b"vllm.entrypoints"
"""Part of the command line of an engine's first process; those below it have other names."""
_KIB: Final = 1024

C = TypeVar("C", bound=TrainConfig)


class TrialResult(Struct, kw_only=True):
    """Measurements of a trial."""

    seconds: dict[str, float] = {}
    """Seconds of each phase that succeeded, by its name."""
    episodes: int = 0
    """Number of samples of the group: 1, or the leaves of a tree."""
    reward: float | None = None
    """Their mean reward."""
    sampled: int = 0
    """Number of sampled tokens."""
    tasks: int = 0
    """Number of training tasks of the run."""
    held_out: int = 0
    """Number of held-out tasks."""
    trainer_bytes: int = 0
    """Peak memory of this process."""
    engine_bytes: int = 0
    """Peak memory of the processes of the engine that was started; 0: unknown."""
    gpu_bytes: int = 0
    """Peak GPU memory of the trainer; 0: no GPU."""

    def estimate(self, config: TrainConfig) -> tuple[int, float, float] | None:
        """Return the number of steps of the whole run, and its seconds at least and at most; `None`: unknown.

        At least: episodes run as fast side by side as one alone. At most: one after the other.

        :param config: settings of the run, not those of the trial.
        """
        schedule = config.schedule
        by_epochs = None
        if schedule.epochs is not None and self.tasks:
            by_epochs = ceil(schedule.epochs * self.tasks / schedule.tasks_per_step)
        steps = min(filter(None, (schedule.steps, by_epochs)), default=None)
        if steps is None or Phase.ROLLOUTS.value not in self.seconds:
            return None
        spent = self.seconds.get
        episodes = schedule.tasks_per_step * schedule.episodes_per_task
        validations = 0
        if self.held_out:
            validations = config.validation.eval_on_start + ceil(steps / config.validation.eval_steps)
        rollout = spent(Phase.ROLLOUTS.value, 0.0)
        sampled = steps * episodes + validations * self.held_out * config.validation.samples
        other = (
            spent(Phase.LOADING.value, 0.0)
            + spent(Phase.ENGINE.value, 0.0)
            + steps * episodes / max(1, self.episodes) * spent(Phase.STEP.value, 0.0)
            + steps * spent(Phase.PUBLICATION.value, 0.0)
            + ceil(steps / schedule.save_steps) * spent(Phase.WRITING.value, 0.0)
        )
        waves = ceil(sampled / min(episodes, config.episodes.workers))
        return steps, waves * rollout + other, sampled * rollout + other


async def try_training(
    config: C, make: Callable[[C], TrainRun], report: Callable[[str, TrialResult], None]
) -> TrialResult:
    """Run a training with one small episode and one step; nothing of it is kept. See docs/training.md.

    An engine that the run starts gets changed weights, which show whether it takes them. At a running one the learning rate is
    0, so that it ends with the weights that it would have at the start of the run.

    :param make: returns the run of the changed settings.
    :param report: called with the name of each phase as it ends, and the measurements so far.
    :raises AgentFlowError: one line with the phase, if it fails; a log of the engine is kept and named.
    """
    result = TrialResult()
    with _folder_beside(config.output) as folder, _kept_log() as log:
        run = make(_small(config, folder, log))
        run.rollouts = _TrialRollouts(run.rollouts, result)
        reported: set[str] = set()

        def tell() -> None:
            result.seconds = run.status().durations
            for phase in _REPORTED:
                if phase.value in result.seconds and phase.value not in reported:
                    reported.add(phase.value)
                    report(phase.value, result)

        async def watch() -> None:
            while True:
                await anyio.sleep(POLL_SECONDS)
                tell()

        failed: AgentFlowError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            try:
                await run.run()
            except AgentFlowError as error:
                # Raised below: a task group would wrap it.
                failed = error
            tasks.cancel_scope.cancel()
        tell()
        if failed is not None:
            raise failed
        result.trainer_bytes, result.gpu_bytes = _own_peaks()
    return result


_REPORTED: Final = (
    *(Phase.LOADING, Phase.ENGINE, Phase.ROLLOUTS, Phase.STEP),
    *(Phase.PUBLICATION, Phase.VALIDATION, Phase.WRITING),
)


@contextmanager
def _folder_beside(output: Path) -> Generator[Path]:
    """Yield a temporary folder on the disk of the output, which has room for checkpoints; a system's one may not."""
    parent = next(folder for folder in output.absolute().parents if folder.is_dir())
    if not os.access(parent, os.W_OK):
        parent = None
    with tempfile.TemporaryDirectory(prefix=".agentflow-check-", dir=parent) as folder:
        yield Path(folder)


@contextmanager
def _kept_log() -> Generator[Path]:
    """Yield a log file; it stays after an error, which names it."""
    handle, name = tempfile.mkstemp(prefix="agentflow-engine-", suffix=".log")
    os.close(handle)
    log = Path(name)
    try:
        yield log
    except AgentFlowError as error:
        if name in str(error):
            raise
        if not log.stat().st_size:
            log.unlink()
            raise
        message = f"{error}; the engine's log is {name}"
        if isinstance(error, RunStopped):
            raise RunStopped(error.cause, message) from error
        raise AgentFlowError(message) from error
    except BaseException:
        log.unlink(missing_ok=True)
        raise
    log.unlink(missing_ok=True)


def _small(config: C, folder: Path, log: Path) -> C:
    """Return the settings of the trial: one task, one episode, one step, no trackers, nothing outside of a folder."""
    rules = config.episodes
    limits: dict[str, Any] = {}
    for role in rules.trained_roles:
        model = rules.role_models.get(role)
        if model is not None and (name := f"{role}_model") in type(rules).model_fields:
            limits[name] = model.model_copy(
                update={"max_tokens": _at_most(model.max_tokens or rules.max_tokens)}
            )
        else:
            limits["max_tokens"] = _at_most(rules.max_tokens)
    schedule = {"steps": 1, "epochs": None, "tasks_per_step": 1, "episodes_per_task": 1, "save_steps": 1}
    alone: dict[str, Any] = {"mode": "sync", "replace_equal": 0.0, "steps_per_batch": 1}
    # An episode alone has an advantage only without a baseline.
    loss: dict[str, Any] = {
        "baseline": "none",
        "divide_by_std": False,
        "filter_groups": False,
        "train_cut": True,
    }
    server = config.engine.server.model_copy(update={"log": log})
    sections: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "episodes": rules.model_copy(update={**limits, "max_turns": min(1, rules.max_turns or 1)}),
        "schedule": config.schedule.model_copy(update={**schedule, **alone}),
        "validation": config.validation.model_copy(update={"eval_on_start": False, "samples": 1}),
        "optimizer": config.optimizer.model_copy(
            update={"warmup_steps": 0, **({"learning_rate": 0.0} if config.engine.base_url else {})}
        ),
        "loss": config.loss.model_copy(update=loss),
        "engine": config.engine.model_copy(update={"server": server}),
        "policy": None if config.policy is None else config.policy.model_copy(update={"processes": 1}),
        "trackers": TrackerSettings(use=()),
    }
    return config.model_copy(update=sections)


def _at_most(limit: int | None) -> int:
    return min(limit or MAX_TOKENS, MAX_TOKENS)


class _TrialRollouts:
    """Opens the rollouts of a trial. Implements `RolloutFactory`."""

    def __init__(self, rollouts: RolloutFactory, result: TrialResult) -> None:
        self._rollouts = rollouts
        self._result = result

    def models(self, config: TrainConfig) -> Mapping[str, ModelSettings]:
        return self._rollouts.models(config)

    @asynccontextmanager
    async def open(self, context: RolloutContext) -> AsyncGenerator[PolicyRollout]:
        self._result.tasks = len(context.assignment.tasks)
        async with self._rollouts.open(context) as rollout:
            yield _TrialRollout(rollout, self._result)
            # While the engine still runs.
            self._result.engine_bytes = _engine_peak()

    async def debug(
        self, config: TrainConfig, assignment: Assignment, say: Callable[[str], None]
    ) -> dict[str, float]:
        return await self._rollouts.debug(config, assignment, say)


class _TrialRollout:
    """Rollout whose episodes all have reward 1, so that there is a gradient; a validation runs its first episode only."""

    def __init__(self, rollout: PolicyRollout, result: TrialResult) -> None:
        self._rollout = rollout
        self._result = result
        self._validated: EpisodeResult | None = None
        self._lock = anyio.Lock()

    @property
    def version(self) -> int:
        return self._rollout.version

    @version.setter
    def version(self, version: int) -> None:
        self._rollout.version = version

    async def group(
        self, draw: TaskDraw, size: int, results: list[EpisodeResult | None] | None = None
    ) -> Group:
        return self._rewarded(await self._rollout.group(draw, size, results))

    def group_of(self, draw: TaskDraw, results: Sequence[EpisodeResult | None]) -> Group:
        return self._rewarded(self._rollout.group_of(draw, results))

    def _rewarded(self, group: Group) -> Group:
        result, samples = self._result, group.samples
        if samples:
            result.episodes = len(samples)
            result.reward = sum(sample.reward for sample in samples) / len(samples)
            result.sampled = sum(len(call.sampled) for sample in samples for call in sample.calls)
        rewarded = tuple(structs.replace(sample, reward=1.0, turn_rewards=()) for sample in samples)
        return structs.replace(group, samples=rewarded)

    async def one(
        self,
        task: Task,
        place: Sequence[object],
        *,
        temperature: float | None = None,
        max_turns: int | None = None,
    ) -> EpisodeResult:
        self._result.held_out += 1
        async with self._lock:
            if self._validated is None:
                self._validated = await self._rollout.one(
                    task, place, temperature=temperature, max_turns=max_turns
                )
        return self._validated

    async def publish(self, version: int, publish: Callable[[], Awaitable[None]]) -> None:
        await self._rollout.publish(version, publish)

    async def use(self, batch: Batch) -> None:
        await self._rollout.use(batch)


def _own_peaks() -> tuple[int, int]:
    """Return the peak memory of this process, and that on its GPU."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    host = peak if sys.platform == "darwin" else peak * _KIB
    torch: Any = sys.modules.get("torch")
    return host, torch.cuda.max_memory_allocated() if torch is not None and torch.cuda.is_available() else 0


def _engine_peak() -> int:
    """Return the peak memory of all processes of engines below this one; 0 where the system does not tell."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    below = list(_below(os.getpid(), parents))
    engines = [process for process in below if _ENGINE in _read(process, "cmdline")]
    return sum(
        _peak_of(process)
        for process in {process_below for top in engines for process_below in (top, *_below(top, parents))}
    )


def _below(process: int, parents: Mapping[int, list[int]]) -> Iterable[int]:
    for child in parents.get(process, ()):
        yield child
        yield from _below(child, parents)


def _read(process: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/{name}").read_bytes()
    return b""


def _peak_of(process: int) -> int:
    for line in _read(process, "status").splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * _KIB
    return 0
