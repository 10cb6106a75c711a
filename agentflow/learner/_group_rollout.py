"""Run the episodes of a group, and those of a validation. A failed episode is data, and the others continue."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import anyio
from msgspec import Struct, structs

from agentflow.actors import together
from agentflow.errors import (
    ConfigurationError,
    ErrorKind,
    ModelFailureKind,
    RunStopped,
    StopCause,
    WorkPostponed,
    error_line,
    unwrap_group,
)
from agentflow.learner._config import EvidenceSettings, ValidationSettings
from agentflow.learner._groups import (
    EVIDENCE,
    Batch,
    EpisodeResult,
    FailureCause,
    Group,
    Sample,
    TaskDraw,
    class_of,
    rewards_by_class,
    sample_of,
)
from agentflow.scoring import Metric, Scored, ScoreGuard, confidence_interval, evidence_score, pass_at
from agentflow.tasks import scored_verdict
from agentflow.telemetry import episode_operation, get_logger, record_score
from agentflow.trace import Ending, Episode, Failure, Task, TaskVerdict, digest, needed_documents

if TYPE_CHECKING:
    from agentflow.engine import Leaf
    from agentflow.learner._config import TrainConfig

logger = get_logger(__name__)

T = TypeVar("T")

_RIGHT = 0.99
"""Score from which an answer counts as right for pass@k."""
GRACE_SECONDS: Final = 30.0
"""Time on top of an episode's own limit, for making its sandbox and scoring its answer."""
WAITING: Final = 3.0
"""Time of episodes that wait for each other, in time limits of one."""
UNREACHABLE = frozenset(kind for kind in ModelFailureKind if kind.is_temporary)
"""Failures of model calls that are not caused by the policy."""
RETRIED = frozenset({FailureCause.CRASHED, FailureCause.MODEL})
"""Failures after which an episode is tried again."""


class PolicyRollout(Protocol):
    """Runs the episodes of a run, by groups. Sources, validation and the loop use nothing else of it."""

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        ...

    @version.setter
    def version(self, version: int) -> None: ...

    async def group(
        self, draw: TaskDraw, size: int, results: list[EpisodeResult | None] | None = None
    ) -> Group:
        """Run all episodes of a draw.

        :param results: one slot for each of them, filled as they end.
        :raises RunStopped: if the run can't continue.
        """
        ...

    def group_of(self, draw: TaskDraw, results: Sequence[EpisodeResult | None]) -> Group:
        """Return the group of a draw so far; an episode without a result was cancelled because it took too long."""
        ...

    async def one(
        self,
        task: Task,
        place: Sequence[object],
        *,
        temperature: float | None = None,
        max_turns: int | None = None,
    ) -> EpisodeResult:
        """Run one episode.

        :param place: source of its seed, beside the run's seed.
        :raises RunStopped: if the run can't continue.
        """
        ...

    async def publish(self, version: int, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish new weights, while nothing is sampled if the rollout requires it."""
        ...

    async def use(self, batch: Batch) -> None:
        """Mark the episodes of a batch as used; the batch is on disk, and its step follows."""
        ...


class EpisodeRunner(Protocol):
    """Runs one episode."""

    @property
    def metric(self) -> Metric:
        """Metric of the answers."""
        ...

    async def play(
        self, task: Task, seed: str, *, temperature: float | None = None, max_turns: int | None = None
    ) -> Episode:
        """Run an episode; the same seed gives the same episode, as far as its models are deterministic."""
        ...


class BranchingRunner(Protocol):
    """Runs the episodes of a task that share their beginnings."""

    async def __call__(self, task: Task, seed: str) -> "Sequence[Leaf]":
        """Return the end of each path; the same seed gives the same paths, as far as the models are deterministic."""
        ...


async def ready_at_once() -> None:
    """Return at once: there is no engine to wait for."""


class GroupSettings(Struct, frozen=True, kw_only=True):
    """Rules of the episodes of a run."""

    trained: tuple[str, ...]
    """Roles whose calls are trained."""
    temperature: float
    """Their sampling temperature."""
    seed: int = 0
    """Seed of everything that is sampled."""
    at_once: int = 64
    """Maximum number of concurrent episodes."""
    seconds: float = 300.0
    """Time limit of an episode."""
    tries: int = 3
    """Attempts for an episode that crashes or loses its engine."""
    evidence: EvidenceSettings | None = None
    """Reward for the documents that an episode reads; `None`: none."""

    @classmethod
    def of(cls, config: "TrainConfig") -> "GroupSettings":
        """Return the rules that the settings of a training give."""
        rules = config.episodes
        return cls(
            trained=rules.trained_roles,
            temperature=rules.temperature_in_training,
            seed=config.seed,
            at_once=rules.workers,
            seconds=rules.episode_seconds,
            tries=1 + rules.max_retries,
            evidence=config.tasks.evidence,
        )


class GroupRollout:
    """Runs the episodes of a run, with limits on concurrency and time, and retries if the engine is lost."""

    def __init__(
        self,
        runner: EpisodeRunner,
        settings: GroupSettings,
        *,
        branch: BranchingRunner | None = None,
        engine_ready: Callable[[], Awaitable[None]] = ready_at_once,
        on_result: Callable[[EpisodeResult], None] | None = None,
    ) -> None:
        """Configure it.

        :param branch: runs the episodes of a group, which share their beginnings; `None`: they are independent.
        :param engine_ready: waits until the engine answers.
        :param on_result: called with the result of each episode.
        """
        self.version = 0
        """Version of the weights that sample now."""
        self._runner = runner
        self._branch = branch
        self._settings = settings
        self._slots = anyio.Semaphore(settings.at_once)
        self._entrance = anyio.Lock()
        self._engine_ready = engine_ready
        self._on_result = on_result
        self._guard = ScoreGuard(runner.metric.name)

    async def group(
        self, draw: TaskDraw, size: int, results: list[EpisodeResult | None] | None = None
    ) -> Group:
        """Run all episodes of a draw.

        :param results: one slot for each of them, filled as they end.
        :raises RunStopped: if the run can't continue.
        """
        if self._branch is not None:
            return await self._tree(draw, size, self._branch)
        filled: list[EpisodeResult | None] = [None] * size if results is None else results

        async def member(index: int) -> None:
            filled[index] = await self.one(draw.task, (draw.number, index))

        async with anyio.create_task_group() as tasks:
            for index in range(size):
                tasks.start_soon(member, index)
        return self.group_of(draw, filled)

    async def _tree(self, draw: TaskDraw, size: int, branch: BranchingRunner) -> Group:
        """Run the episodes of a draw as one tree."""
        seed = digest([self._settings.seed, draw.number])
        results = await self._attempt(
            "tree",
            f"{draw.number}/{self.version}",
            draw.task,
            partial(self._play_tree, draw.task, seed, branch),
            lambda failure: [EpisodeResult(failure=failure)],
            lambda results: {result.failure.kind for result in results if result.failure is not None},
            size=size,
        )
        if self._on_result is not None:
            for result in results:
                self._on_result(result)
        return self.group_of(draw, results)

    async def _play_tree(self, task: Task, seed: str, branch: BranchingRunner) -> list[EpisodeResult]:
        version = self.version
        leaves = await branch(task, seed)
        return await together([partial(self._score_leaf, leaf, version) for leaf in leaves])

    async def _score_leaf(self, leaf: "Leaf", version: int) -> EpisodeResult:
        if leaf.episode is not None:
            return await self._scored(leaf.episode, version)
        assert leaf.failure is not None, "a path without an episode has a reason"
        refused = leaf.failure.kind == ErrorKind.CANNOT_FORK
        cause = FailureCause.COPY if refused else FailureCause.CRASHED
        return EpisodeResult(failure=Failure(cause, leaf.failure.message))

    def group_of(self, draw: TaskDraw, results: Sequence[EpisodeResult | None]) -> Group:
        """Return the group of a draw so far; an episode without a result was cancelled because it took too long."""
        cancelled = Failure(FailureCause.STALE, "it did not end before its weights were too old")
        samples: list[Sample] = []
        failures: list[Failure] = []
        for member, result in enumerate(results):
            if result is None or result.failure is not None or result.episode is None:
                failures.append(cancelled if result is None or result.failure is None else result.failure)
                continue
            sample = sample_of(
                result.episode,
                group=draw.group,
                member=member,
                reward=result.reward,
                trained=self._settings.trained,
                temperature=self._settings.temperature,
                version=result.version,
                details=result.score_details,
            )
            samples.append(sample)
        return Group(
            number=draw.number,
            name=draw.group,
            samples=tuple(samples),
            failures=tuple(failures),
            task_class=draw.task_class,
        )

    async def one(
        self,
        task: Task,
        place: Sequence[object],
        *,
        temperature: float | None = None,
        max_turns: int | None = None,
    ) -> EpisodeResult:
        """Run one episode; try again if it crashes or loses its engine.

        :param place: source of its seed, beside the run's seed.
        :raises RunStopped: if the run can't continue.
        """
        seed = digest([self._settings.seed, *place])
        result = await self._attempt(
            "episode",
            "/".join(map(str, (*place, self.version))),
            task,
            partial(self._play, task, seed, temperature, max_turns),
            lambda failure: EpisodeResult(failure=failure),
            lambda result: () if result.failure is None else (result.failure.kind,),
        )
        if self._on_result is not None:
            self._on_result(result)
        return result

    async def publish(self, version: int, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish new weights; episodes continue with them."""
        del version
        await publish()

    async def use(self, batch: Batch) -> None:
        """Do nothing: episodes exist only in this process."""

    async def _attempt(
        self,
        what: str,
        place: str,
        task: Task,
        work: Callable[[], Awaitable[T]],
        failed: Callable[[Failure], T],
        causes: Callable[[T], Collection[str]],
        size: int = 1,
    ) -> T:
        """Run work with the limits on concurrency and time; try again if it crashes or loses its engine.

        :param size: number of its episodes, which run concurrently.
        :param place: place in the run, for its trace.
        :param failed: makes the result of work that raised or did not end.
        :param causes: returns the causes for which a result has failed.
        :raises RunStopped: if a model is still unavailable after the last try. One that is too slow leaves the episode out.
        """
        tries = self._settings.tries
        while True:
            async with self._take(size):
                with episode_operation(f"{place}/{tries}", task.id, agent=what) as operation:
                    result, lost = await self._try(what, task, work, failed, size)
                    for cause in causes(result):
                        operation.failed(cause)
                    operation.finish()
            tries -= 1
            retried = RETRIED.intersection(causes(result))
            if FailureCause.MODEL in retried:
                await self._engine_ready()
            if not retried or not tries:
                break
        if lost is None or (isinstance(lost, WorkPostponed) and lost.kind is ModelFailureKind.TIMEOUT):
            return result
        again = "" if "same command" in lost.message else "; run the same command to resume"
        raise RunStopped(StopCause.MODEL, f"{lost.message}{again}") from lost

    @asynccontextmanager
    async def _take(self, size: int) -> AsyncGenerator[None]:
        """Take the room of so many episodes, or all there is."""
        async with AsyncExitStack() as stack:
            async with self._entrance:
                for _ in range(min(size, self._settings.at_once)):
                    await stack.enter_async_context(self._slots)
            yield

    async def _try(
        self,
        what: str,
        task: Task,
        work: Callable[[], Awaitable[T]],
        failed: Callable[[Failure], T],
        size: int,
    ) -> tuple[T, RunStopped | None]:
        """Return the result of one try, and the reason if a model was unavailable."""
        # Paths wait for each other at every decision.
        seconds = self._settings.seconds * (1 if size == 1 else WAITING) + GRACE_SECONDS
        try:
            with anyio.move_on_after(seconds):
                return await work(), None
        except Exception as error:  # boundary: a crashed episode is data, and must not end the others
            cause = unwrap_group(error)
            if isinstance(cause, RunStopped) and cause.cause is StopCause.MODEL:
                return failed(Failure(FailureCause.MODEL, cause.message)), cause
            if isinstance(cause, RunStopped | ConfigurationError):
                raise cause from error
            logger.exception(f"{what} crashed", task=task.id)
            return failed(Failure(FailureCause.CRASHED, error_line(error))), None
        return failed(Failure(FailureCause.TIME, f"it did not end in {seconds:g} seconds")), None

    async def _play(
        self, task: Task, seed: str, temperature: float | None, max_turns: int | None
    ) -> EpisodeResult:
        version = self.version
        episode = await self._runner.play(task, seed, temperature=temperature, max_turns=max_turns)
        return await self._scored(episode, version)

    async def _scored(self, episode: Episode, version: int) -> EpisodeResult:
        failure = external_failure(episode)
        reward = 0.0
        if failure is None and episode.failure is None:
            reward, failure = await self._reward(episode.answer, episode.task, episode.verdict)
        result = EpisodeResult(episode=episode, failure=failure, reward=reward, version=version)
        return rewarded_for_evidence(result, self._settings.evidence)

    async def _reward(
        self, answer: str, task: Task, verdict: TaskVerdict | None
    ) -> tuple[float, Failure | None]:
        try:
            if verdict is not None:
                scored = scored_verdict(verdict)
            else:
                scored = await self._runner.metric.score(answer, task)
        except RunStopped:
            raise
        except Exception as error:  # boundary: a reward may be user code
            scored = Scored(0.0, failure=Failure(FailureCause.REWARD, error_line(error)))
        self._guard.check(scored, task.id)
        if scored.failure is not None:
            return 0.0, Failure(FailureCause.REWARD, scored.failure.message)
        record_score(self._runner.metric.name, scored.score)
        return scored.score, None


def rewarded_for_evidence(result: EpisodeResult, settings: EvidenceSettings | None) -> EpisodeResult:
    """Return a result with the score of the documents that its episode read and, if it answered, the reward for them.

    See docs/training.md.

    :param settings: `None`: they are not rewarded.
    """
    if result.episode is None or (settings is None and not needed_documents(result.episode.task)):
        return result
    if settings is None:
        return structs.replace(result, evidence=evidence_score(result.episode))
    evidence = evidence_score(result.episode, settings.beta)
    reward = result.reward
    if evidence is not None and result.failure is None and result.episode.failure is None:
        reward = settings.reward(reward, evidence)
    return structs.replace(result, reward=reward, answer_score=result.reward, evidence=evidence)


def external_failure(episode: Episode) -> Failure | None:
    """Return the failure of an episode that the policy did not cause: a lost model, or no time left to answer.

    See docs/training.md.
    """
    if episode.ending is Ending.TIME and episode.failure is not None:
        return Failure(FailureCause.TIME, episode.failure.message)
    for exchange in episode.exchanges:
        if exchange.failure is not None and exchange.failure.kind in UNREACHABLE:
            return Failure(FailureCause.MODEL, f"{exchange.role}: {exchange.failure.message}")
    return None


class Validation:
    """Runs the same tasks with the same seeds each time, so that only the policy differs."""

    def __init__(self, rollout: PolicyRollout, tasks: Sequence[Task], settings: ValidationSettings) -> None:
        self._rollout = rollout
        self._tasks = tasks
        self._settings = settings

    async def score(self) -> dict[str, float]:
        """Return the mean score over tasks with its confidence interval, pass@k, and figures of the episodes.

        A failed episode (engine, time, reward) is counted and left out; so is a task without any other.
        """
        settings = self._settings
        keys = [(index, sample) for index in range(len(self._tasks)) for sample in range(settings.samples)]
        jobs = [
            partial(
                self._rollout.one,
                self._tasks[index],
                ("validation", index, sample),
                temperature=settings.temperature,
                max_turns=settings.max_turns,
            )
            for index, sample in keys
        ]
        return self._figures(dict(zip(keys, await together(jobs), strict=True)))

    def _figures(self, results: dict[tuple[int, int], EpisodeResult]) -> dict[str, float]:
        by_task: dict[int, list[EpisodeResult]] = {}
        for (index, _), result in results.items():
            if result.failure is None:
                by_task.setdefault(index, []).append(result)
        means = [fmean(result.score for result in group) for group in by_task.values()]
        interval = confidence_interval(means)
        finished = [result for group in by_task.values() for result in group]
        figures = {
            "validation/score": fmean(means) if means else 0.0,
            "validation/score_low": interval.low,
            "validation/score_high": interval.high,
            "validation/tasks": float(len(means)),
            "validation/lost": float(len(results) - len(finished)),
            **_episode_figures(finished),
            **rewards_by_class(
                (
                    (class_of(self._tasks[index]), fmean(result.score for result in group))
                    for index, group in by_task.items()
                ),
                "validation/class",
            ),
        }
        samples = self._settings.samples
        whole = [group for group in by_task.values() if len(group) == samples]
        counts = [sum(_is_right(result) for result in group) for group in whole]
        for k in range(2, samples + 1):
            if counts and not k & (k - 1):
                figures[f"validation/pass@{k}"] = fmean(
                    pass_at(k, right=count, samples=samples) for count in counts
                )
        return figures


def _is_right(result: EpisodeResult) -> bool:
    return result.score >= _RIGHT if result.success is None else result.success


def _episode_figures(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Return figures of validated episodes: of their turns, or those that they bring along, and of the documents read."""
    evidence = [result.evidence for result in results if result.evidence is not None]
    read = {f"validation/{EVIDENCE}": fmean(evidence)} if evidence else {}
    names = sorted({name for result in results for name in result.details} - {"version", EVIDENCE})
    if names:
        means = {name: fmean(result.details.get(name, 0.0) for result in results) for name in names}
        return {**{f"validation/{name}": value for name, value in means.items()}, **read}
    episodes = [result.episode for result in results if result.episode is not None]
    turns = [turn for episode in episodes for turn in episode.turns]
    return {
        "validation/turns": len(turns) / len(episodes) if episodes else 0.0,
        "validation/answered": fmean([episode.failure is None for episode in episodes]) if episodes else 0.0,
        "validation/tool_errors": float(sum(turn.failed for turn in turns)),
        "validation/tool_calls": float(sum(turn.action is not None for turn in turns)),
        **read,
    }
