"""Summary of a rollout."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.to_thread
import msgspec
from msgspec import UNSET, Struct, UnsetType, field, structs

from agentflow._private_files import open_private
from agentflow._typeguards import is_object
from agentflow.rollouts._config import RolloutConfig
from agentflow.rollouts._result import TaskResult, result_record, trajectory_record, trajectory_result
from agentflow.rollouts._tasks import Assignment
from agentflow.runs import (
    AtomicFiles,
    BlobReader,
    ChosenTools,
    ExportedImages,
    cost_by_role,
    prices_as_of,
    prices_of,
    report_disk_errors,
)
from agentflow.scoring import Interval, Scored, best_of, chosen_option, majority, pass_at, summarise
from agentflow.trace import BranchPoint, Exchange, Failure, Turn, Usage

_NAMED_FAILURES = 20
_PERFECT = 0.99
_UNJUDGED = Failure("unjudged", "no sample of it could be judged")


class Spread(Struct, frozen=True):
    """Distribution of a quantity over episodes."""

    mean: float = 0.0
    """Mean."""
    p50: float = 0.0
    """Median."""
    p95: float = 0.0
    """95th percentile."""


class ToolUsage(Struct, frozen=True):
    """Use of a tool."""

    calls: int
    """Number of calls."""
    share: float
    """Share of all tool calls."""
    errors: int
    """Calls that failed, or whose program failed."""


class FailedTask(Struct, frozen=True):
    """Task without an answer."""

    task_id: str
    """Id of the task."""
    sample: int
    """Number of the sample, from 0."""
    why: str
    """Reason."""


class EpisodeCosts(Struct, frozen=True):
    """Costs of episodes."""

    sampled_tokens: int = 0
    """Tokens that models generated."""
    prompt_tokens: int = 0
    """Tokens of prompts."""
    tool_calls: int = 0
    """Tool calls."""
    cost: float = 0.0
    """Cost, of models with prices."""

    def __add__(self, other: "EpisodeCosts") -> "EpisodeCosts":
        return EpisodeCosts(*map(sum, zip(structs.astuple(self), structs.astuple(other), strict=True)))


class BranchingSummary(Struct, frozen=True):
    """Episodes that share their beginnings, next to as many independent ones."""

    paths: float
    """Paths per task, with those that were given up."""
    answers: float
    """Answers per task, equal ones counted as often as they were drawn."""
    pruned: int
    """Paths that the search gave up."""
    forks: dict[str, int]
    """Branches by how the state of their tools was copied."""
    replays: dict[str, int]
    """Reasons for replays instead of forks, with their number."""
    used: EpisodeCosts
    """Costs of the paths together: shared parts count once."""
    independent: EpisodeCosts
    """Costs of the same answers as independent episodes."""


class RolloutSummary(Struct, frozen=True, kw_only=True):
    """Summary of a rollout; only `seconds` and `wall_seconds` differ between runs of the same work."""

    benchmark: str
    """Name of the benchmark or of the file of tasks."""
    metric: str | None
    """Metric; `None`: answers were not scored."""
    agent: str
    """`team`, `single` or the name of another agent."""
    verify: Literal["separate", "merged"]
    """`separate` or `merged`, in the team."""
    max_turns: int
    """Maximum number of turns of an episode."""
    samples: int
    """Episodes per task."""
    models: dict[str, str]
    """Model name by role."""
    tools: list[str]
    """Names of the tools."""
    dropped_tools: dict[str, str]
    """Reasons of requested tools that could not be used, by name."""
    tasks: int
    """Tasks with all samples finished."""
    results: int
    """Finished samples."""
    failed: int
    """Samples without an answer; they count as wrong."""
    failures: dict[str, int]
    """Samples without an answer, by reason."""
    failed_tasks: list[FailedTask]
    """The first samples without an answer."""
    abstained: int = 0
    """Answers that were left empty; they count as wrong."""
    unjudged: int
    """Answers that could not be judged; they are excluded from the mean."""
    unjudged_tasks: list[FailedTask] = field(default_factory=list[FailedTask])
    """The first of them."""
    perfect: int
    """Answers with the maximum score."""
    score: float | None
    """Mean score of tasks; `None`: nothing was scored."""
    interval: Interval | None
    """95 % confidence interval of the mean, over tasks."""
    evidence: float | UnsetType = UNSET
    """Mean score of the documents that episodes read; left out if no task names those that it needs."""
    pass_at: dict[str, float]
    """pass@k by k; only with several samples."""
    majority: float | None
    """Mean score of the majority answer; only with several samples."""
    best_by_verifier: float | None
    """Mean score of the sample with the highest verifier confidence; only with several samples."""
    endings: dict[str, int]
    """Episodes by the reason of their end."""
    turns: Spread
    """Turns per episode."""
    seconds: Spread
    """Seconds per episode."""
    calls_per_task: dict[str, float]
    """Model calls per task, by role."""
    usage: dict[str, Usage]
    """Model usage by role of the whole run, including failed tries."""
    tokens: int
    """Prompt and completion tokens."""
    cost: dict[str, float]
    """Cost by role, of models with prices."""
    prices_as_of: str = ""
    """Date of the built-in prices, if they were used for the cost; else empty."""
    tool_calls: int
    """Tool calls."""
    tool_use: dict[str, ToolUsage]
    """Use of each tool that was called."""
    tool_error_rate: float
    """Share of tool calls that failed."""
    wall_seconds: float
    """Seconds that this process took."""
    branching: BranchingSummary | UnsetType = UNSET
    """Savings by shared beginnings of episodes; unset: episodes were independent."""

    def _repr_html_(self) -> str:
        from agentflow.rollouts.analysis import summary_card  # it shows summaries, and knows this class

        return summary_card(self)


class SummaryBuilder:
    """Builds a summary result by result, and keeps a few numbers of each."""

    def __init__(
        self,
        config: RolloutConfig,
        assignment: Assignment,
        tools: ChosenTools,
        used: Mapping[str, Usage],
        wall_seconds: float,
    ) -> None:
        """Start counting.

        :param used: model usage by role, of the whole run.
        :param wall_seconds: seconds that this process took.
        """
        self._config = config
        self._assignment = assignment
        self._tools = tools
        self._used = used
        self._wall_seconds = wall_seconds
        self._tasks: dict[str, list[_Mark]] = {}
        self._failures: Counter[str] = Counter()
        self._failed: list[FailedTask] = []
        self._unjudged: list[FailedTask] = []
        self._endings: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._tool_calls: Counter[str] = Counter()
        self._tool_errors: Counter[str] = Counter()
        self._turns: list[float] = []
        self._seconds: list[float] = []
        self._paths = BranchCounter(config) if config.branching is not None else None
        self._evidence: list[float] = []

    def add(self, result: TaskResult) -> None:
        """Count a result."""
        if self._paths is not None:
            self._paths.add(result)
            if result.is_pruned:
                return
        self._tasks.setdefault(result.task.id, []).append(_mark(result))
        if result.failure is not None:
            self._failures[result.failure.kind] += 1
            if len(self._failed) < _NAMED_FAILURES:
                self._failed.append(FailedTask(result.task.id, result.sample, result.failure.message))
        unjudged = None if result.scored is None else result.scored.failure
        if unjudged is not None and len(self._unjudged) < _NAMED_FAILURES:
            self._unjudged.append(FailedTask(result.task.id, result.sample, unjudged.message))
        if result.episode is None:
            return
        if (evidence := result.evidence) is not None:
            self._evidence.append(evidence)
        self._endings[result.episode.ending] += 1
        self._calls.update(result.episode.calls)
        self._turns.append(len(result.turns))
        self._seconds.append(result.episode.seconds)
        for turn in result.turns:
            if turn.action is not None:
                self._tool_calls[turn.action.tool] += 1
                self._tool_errors[turn.action.tool] += turn.failed

    def summary(self) -> RolloutSummary:
        """Return the summary."""
        config = self._config
        models = config.models
        marks = [mark for task in self._tasks.values() for mark in task]
        scored = summarise([_of_task(task) for task in self._tasks.values()])
        evaluated = config.evaluate_results and scored.unjudged < scored.tasks
        several = evaluated and (self._assignment.samples > 1 or self._paths is not None)
        calls, errors = sum(self._tool_calls.values()), sum(self._tool_errors.values())
        return RolloutSummary(
            benchmark=self._assignment.name,
            metric=self._assignment.metric if config.evaluate_results else None,
            agent=config.agent,
            verify=config.verify,
            max_turns=config.turns,
            samples=self._assignment.samples,
            models={role: model.name for role, model in models.items()},
            tools=[tool.name for tool in self._tools.tools],
            dropped_tools=self._tools.dropped,
            tasks=len(self._tasks),
            results=len(marks),
            failed=sum(mark.failed for mark in marks),
            failures=dict(sorted(self._failures.items())),
            failed_tasks=self._failed,
            abstained=sum(mark.answer is None and not mark.failed for mark in marks),
            unjudged=sum(mark.unjudged for mark in marks),
            unjudged_tasks=self._unjudged,
            perfect=sum(mark.right for mark in marks),
            score=scored.mean if evaluated else None,
            interval=scored.interval if evaluated else None,
            evidence=_mean(self._evidence) if self._evidence else UNSET,
            pass_at=self._pass_at() if several else {},
            majority=self._mean_of(_by_majority) if several else None,
            best_by_verifier=self._mean_of(_by_verifier) if several else None,
            endings=dict(sorted(self._endings.items())),
            turns=_spread(self._turns),
            seconds=_spread(self._seconds),
            calls_per_task={role: count / len(marks) for role, count in sorted(self._calls.items())},
            usage=dict(sorted(self._used.items())),
            tokens=sum(used.prompt_tokens + used.completion_tokens for used in self._used.values()),
            cost=cost_by_role(models, self._used),
            prices_as_of=prices_as_of(model for role, model in models.items() if role in self._used),
            tool_calls=calls,
            tool_use={
                tool: ToolUsage(count, count / calls, self._tool_errors[tool])
                for tool, count in sorted(self._tool_calls.items())
            },
            tool_error_rate=errors / calls if calls else 0.0,
            wall_seconds=self._wall_seconds,
            branching=UNSET if self._paths is None else self._paths.summary(len(self._tasks)),
        )

    def _pass_at(self) -> dict[str, float]:
        """Return pass@k of tasks with all samples. Of a branching task, all answers count, as often as they were drawn."""
        branching = self._config.branching
        samples = self._assignment.samples if branching is None else branching.leaves
        drawn = {id: sum(mark.drawn for mark in task) for id, task in self._tasks.items()}
        whole = [
            (task, drawn[id])
            for id, task in self._tasks.items()
            if branching is not None or drawn[id] == samples
        ]
        return {
            str(k): _mean(
                [
                    pass_at(
                        min(k, count), right=sum(mark.drawn for mark in task if mark.right), samples=count
                    )
                    for task, count in whole
                ]
            )
            for k in range(1, samples + 1)
            if whole
        }

    def _mean_of(self, choose: "_Choice") -> float:
        chosen = [(task, choose(task)) for task in self._tasks.values()]
        return _mean([0.0 if index is None else task[index].score for task, index in chosen])


class BranchCounter:
    """Counts what the paths of branching tasks share."""

    def __init__(self, config: RolloutConfig) -> None:
        self._prices = prices_of(config.models)
        self._used = EpisodeCosts()
        self._independent = EpisodeCosts()
        self._seen: set[tuple[str, tuple[int, ...]]] = set()
        self._paths = self._answers = self._pruned = 0
        self._forks: Counter[str] = Counter()
        self._replays: Counter[str] = Counter()

    def add(self, result: TaskResult) -> None:
        """Count a path."""
        self._paths += 1
        self._pruned += result.is_pruned
        episode = result.episode
        if episode is None or episode.branches is UNSET:
            return
        points = episode.branches
        ends = [(point.calls, point.turns) for point in points] + [
            (len(episode.exchanges), len(episode.turns))
        ]
        calls = turns = 0
        whole = EpisodeCosts()
        for depth, (calls_end, turns_end) in enumerate(ends):
            part = self._costs(episode.exchanges[calls:calls_end], episode.turns[turns:turns_end])
            whole += part
            node = (result.task.id, episode.path[:depth])
            if node not in self._seen:
                self._seen.add(node)
                self._used += part
                if depth:
                    self._count_branch(points[depth - 1])
                    for _ in range(points[depth - 1].drawn - 1):
                        # Equal continuations were sampled, too, before they were merged.
                        self._used += self._costs(episode.exchanges[calls : calls + 1], ())
            calls, turns = calls_end, turns_end
        if not result.is_pruned:
            self._answers += result.drawn
            for _ in range(result.drawn):
                self._independent += whole

    def _count_branch(self, point: BranchPoint) -> None:
        self._forks[point.isolation] += 1
        if point.reason:
            self._replays[point.reason] += 1

    def _costs(self, exchanges: Sequence[Exchange], turns: Sequence[Turn]) -> EpisodeCosts:
        return EpisodeCosts(
            sampled_tokens=sum(exchange.usage.completion_tokens for exchange in exchanges),
            prompt_tokens=sum(exchange.usage.prompt_tokens for exchange in exchanges),
            tool_calls=sum(turn.action is not None for turn in turns),
            cost=sum(
                self._prices[exchange.role].cost(exchange.usage)
                for exchange in exchanges
                if exchange.role in self._prices
            ),
        )

    def summary(self, tasks: int) -> BranchingSummary:
        """Return the summary.

        :param tasks: number of tasks.
        """
        return BranchingSummary(
            paths=self._paths / max(tasks, 1),
            answers=self._answers / max(tasks, 1),
            pruned=self._pruned,
            forks=dict(sorted(self._forks.items())),
            replays=dict(sorted(self._replays.items())),
            used=self._used,
            independent=self._independent,
        )


class _Mark(Struct, frozen=True):
    """Numbers of one result."""

    score: float
    answer: str | None
    trust: float
    failed: bool
    unjudged: bool
    weight: float
    drawn: int = 1
    value: float | None = None

    @property
    def right(self) -> bool:
        return self.score >= _PERFECT


_Choice = Callable[[Sequence[_Mark]], int | None]


def _mark(result: TaskResult) -> _Mark:
    scored = result.scored
    return _Mark(
        score=result.score,
        answer=_comparable(result) or None,
        trust=result.trust,
        failed=result.failure is not None,
        unjudged=scored is not None and scored.failure is not None,
        weight=1.0 if scored is None else scored.weight,
        drawn=result.drawn,
        value=None if result.value is UNSET else result.value,
    )


def _comparable(result: TaskResult) -> str:
    """Return the answer; that of a multiple-choice question as text, as samples may have the options in another order."""
    options = result.task.metadata.get("options")
    chosen = chosen_option(result.answer, options) if is_object(options) else None
    return chosen or result.answer


def _by_majority(task: Sequence[_Mark]) -> int | None:
    index = majority([mark.answer for mark in task for _ in range(mark.drawn)])
    return (
        None
        if index is None
        else [place for place, mark in enumerate(task) for _ in range(mark.drawn)][index]
    )


def _by_verifier(task: Sequence[_Mark]) -> int | None:
    return best_of([mark.trust if mark.answer else None for mark in task])


def _of_task(task: Sequence[_Mark]) -> Scored | None:
    """Return the score of a task: the mean of its samples, or that of the path with the best value."""
    judged = [mark for mark in task if not mark.unjudged]
    valued = [mark for mark in judged if mark.value is not None]
    if valued:
        judged = [max(valued, key=lambda mark: mark.value or 0.0)]
    if not judged:
        return Scored(0.0, failure=_UNJUDGED)
    if all(mark.failed for mark in judged):
        return None
    scores = [mark.score for mark in judged for _ in range(mark.drawn)]
    return Scored(_mean(scores), weight=_mean([mark.weight for mark in judged]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread()
    ranked = sorted(values)
    return Spread(_mean(values), ranked[ceil(0.5 * len(ranked)) - 1], ranked[ceil(0.95 * len(ranked)) - 1])


RESULTS: Final = "results.jsonl"
"""File with a result per task."""
TRAJECTORIES: Final = "trajectories.jsonl"
"""File of the episodes."""
SUMMARY: Final = "summary.json"
"""File of the summary."""
_ENCODER: Final = msgspec.json.Encoder()


class ResultLines:
    """`results.jsonl` during the run: a line for each task, in the order in which they finish."""

    def __init__(self, folder: Path, config: RolloutConfig, read_blob: BlobReader) -> None:
        """Describe it.

        :param read_blob: reads the images, which are written beside the file.
        """
        self._read_blob = read_blob
        self._images = ExportedImages(folder, read_blob)
        self._file = folder / RESULTS
        self._folder = folder
        self._config = config
        self._turn = anyio.Lock()
        self._pending: list[bytes] = []

    async def begin(self, results: AsyncIterator[TaskResult]) -> None:
        """Write the tasks that are already finished.

        :raises RunStopped: if it can't be written.
        """
        if not self._config.save_results:
            return
        async with AtomicFiles.replace(self._folder, (RESULTS,), self._read_blob) as files:
            async for result in results:
                await files.write({RESULTS: [_line(result, self._config)]})

    async def add(self, result: TaskResult) -> None:
        """Add a line.

        :raises RunStopped: if it can't be written.
        """
        if not self._config.save_results:
            return
        self._pending.append(_line(result, self._config) + b"\n")
        async with self._turn:
            # One task writes the lines of all that wait for the lock.
            lines, self._pending = self._pending, []
            if lines:
                with report_disk_errors(self._folder):
                    await self._images.write(lines)
                    await anyio.to_thread.run_sync(self._append, lines)

    def _append(self, lines: list[bytes]) -> None:
        with open_private(self._file, "ab") as file:
            file.writelines(lines)


async def write_files(
    results: AsyncIterator[TaskResult],
    folder: Path,
    config: RolloutConfig,
    tally: SummaryBuilder,
    read_blob: BlobReader,
) -> RolloutSummary:
    """Write the files from the results, in order, and return the summary. One result is in memory at a time.

    :param read_blob: reads the images, which are written beside the files.
    :raises RunStopped: if a file can't be written; the earlier files stay unchanged.
    """
    wanted = {
        RESULTS: config.save_results,
        TRAJECTORIES: config.save_trajectories,
        SUMMARY: config.save_summary,
    }
    names = [name for name, saved in wanted.items() if saved]
    async with AtomicFiles.replace(folder, names, read_blob) as files:
        async for result in results:
            tally.add(result)
            lines: dict[str, list[bytes]] = {}
            if config.save_results:
                lines[RESULTS] = [_line(result, config)]
            if config.save_trajectories:
                lines[TRAJECTORIES] = [_ENCODER.encode(trajectory_record(result))]
            await files.write(lines)
        summary = await anyio.to_thread.run_sync(tally.summary)
        if config.save_summary:
            await files.write({SUMMARY: [msgspec.json.format(_ENCODER.encode(summary), indent=2)]})
    return summary


def _line(result: TaskResult, config: RolloutConfig) -> bytes:
    return _ENCODER.encode(trajectory_result(result) if config.trajectory_only else result_record(result))
