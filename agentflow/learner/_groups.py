"""Samples, the groups of a drawn task, the batch of a step, and the figures of both.

Among the figures is the signal of a step: the share of groups that give none, and rewards by class of task.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from statistics import fmean, pstdev
from typing import Final, NamedTuple, Self

from msgspec import UNSET, Struct, UnsetType, field, structs

from agentflow.trace import Episode, Failure, Task, Tokens, tokens_of

ANSWER_SCORE: Final = "answer_score"
"""Detail of a sample: the score of its answer, if its reward has other parts."""
EVIDENCE: Final = "evidence"
"""Detail of a sample: the score of the documents that it read."""
MAX_CLASSES: Final = 20
"""Maximum number of classes with figures of their own."""
_KEYS: Final = ("class", "source")
_TREE: Final = 0
"""Number of the tree of a group: it has one."""
_NAME_CHARS: Final = 40


class Sample(Struct, frozen=True, kw_only=True):
    """An episode as the learner sees it: the calls of the trained roles, and the reward of the whole episode.

    The samples of one task form a group; their rewards are compared.
    """

    task: str
    """Name of the group."""
    id: str
    """Id of the episode."""
    reward: float
    """Reward of the episode, shared by all its calls."""
    calls: tuple[Tokens, ...]
    """Trained calls, in order, exactly as they were read and sampled."""
    temperature: float = 1.0
    """Sampling temperature; log-probabilities are those of the distribution at this temperature."""
    multiplicity: int = 1
    """Number of identical draws that this sample stands for; its weight is multiplied by it."""
    turn_rewards: tuple[float, ...] = ()
    """Additional reward of each call, in order; empty: none. See docs/losses.md."""
    nodes: tuple[str, ...] | UnsetType = UNSET
    """Node of each call in a tree of episodes, as a path of positions from the group: `0`, `0-1`, `0-1-0`; the first one is
    the tree. A call shared by several samples has the same node in each. Unset: no call is shared. See docs/losses.md."""
    details: dict[str, float] = field(default_factory=dict[str, float])
    """Figures of the episode: turns, tool errors, …"""


class TaskDraw(Struct, frozen=True):
    """A task drawn for a group of episodes."""

    number: int
    """Number of the draw, from 0. It determines the task and the randomness of its episodes."""
    task: Task
    """The task."""

    @property
    def group(self) -> str:
        """Name of its group: a task drawn again has another group."""
        return f"{self.task.id}@{self.number}"

    @property
    def task_class(self) -> str:
        """Class of its task; empty if it has none."""
        return class_of(self.task)


class FailureCause(StrEnum):
    """Reason for leaving an episode out of its group. It gives no signal for or against the policy. The set is closed."""

    CRASHED = "crashed"
    """It raised an exception."""
    TIME = "time"
    """It exceeded its time limit."""
    MODEL = "model"
    """A model was unavailable."""
    REWARD = "reward"
    """The reward could not be computed."""
    STALE = "stale"
    """Its weights are too old."""
    COPY = "copy"
    """The state of its tools could not be copied; another episode stands for it."""


class EpisodeResult(Struct, frozen=True, kw_only=True):
    """An episode with its reward, or the reason for leaving it out."""

    episode: Episode | None = None
    """The episode; `None`: it did not end."""
    reward: float = 0.0
    """Its reward."""
    failure: Failure | None = None
    """Reason for leaving it out."""
    version: int = 0
    """Version of the weights at its beginning."""
    success: bool | None = None
    """The task was solved; `None`: judged by the reward."""
    samples: tuple[Sample, ...] = ()
    """Its samples, if the rollout made them: one for each trained agent."""
    details: dict[str, float] = field(default_factory=dict[str, float])
    """Figures of an episode without a record of turns."""
    answer_score: float | None = None
    """Score of its answer alone; `None`: the reward."""
    evidence: float | None = None
    """Score of the documents that it read; `None`: unknown, or its task names none that it needs."""

    @property
    def score(self) -> float:
        """Score of its answer."""
        return self.reward if self.answer_score is None else self.answer_score

    @property
    def score_details(self) -> dict[str, float]:
        """Parts of its reward that are known apart."""
        parts = {ANSWER_SCORE: self.answer_score, EVIDENCE: self.evidence}
        return {name: value for name, value in parts.items() if value is not None}

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens sampled by its calls whose tokens are known, without those that an earlier path made, and with those of
        equal continuations that were merged.
        """
        if self.episode is None:
            return int(sum(sample.details.get("sampled_tokens", 0.0) for sample in self.samples))
        return _own_tokens(self.episode)


def _own_tokens(episode: Episode) -> int:
    counts = [sum(len(tokens.sampled) for tokens in tokens_of(exchange)) for exchange in episode.exchanges]
    first = episode.own_calls
    merged = sum(
        (point.drawn - 1) * counts[point.calls] for point in episode.branches or () if point.calls >= first
    )
    return sum(counts[first:]) + merged


class Group(Struct, frozen=True, kw_only=True):
    """The episodes of one draw of a task."""

    number: int
    """Number of the draw."""
    name: str
    """`task` of its samples."""
    samples: tuple[Sample, ...] = ()
    """Episodes that count."""
    failures: tuple[Failure, ...] = ()
    """Reasons for leaving the others out."""
    task_class: str = ""
    """Class of its task; empty if it has none."""

    @property
    def is_flat(self) -> bool:
        """True if all rewards compared with each other are equal: there is no advantage to learn from."""
        compared: dict[tuple[str, bool], set[float]] = {}
        for sample in self.samples:
            compared.setdefault((sample.task, False), set()).add(sample.reward)
            compared.setdefault((sample.task, True), set()).update(sample.turn_rewards or (0.0,))
        return all(len(rewards) < 2 for rewards in compared.values())


class ReplacedGroup(Struct, frozen=True):
    """A group that another one replaced, because its rewards are all equal."""

    task_class: str
    """Class of its task; empty if it has none."""
    reward: float
    """Mean reward."""

    @classmethod
    def of(cls, group: Group) -> Self:
        """Return what is kept of a group."""
        return cls(
            group.task_class, fmean(sample.reward for sample in group.samples) if group.samples else 0.0
        )


class Batch(Struct, frozen=True, kw_only=True):
    """The training data of one step."""

    step: int
    """Number of the step, from 1."""
    version: int
    """Version of the weights at its beginning."""
    taken: int
    """Number of draws made so far."""
    pending: tuple[int, ...] = ()
    """Draws that no step has used yet."""
    groups: tuple[Group, ...] = ()
    """Groups, in the order of their draws."""
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    """Number of groups with equal rewards, and of episodes that were too old, left out of this batch."""
    replaced: tuple[ReplacedGroup, ...] = ()
    """The groups with equal rewards that were left out."""

    @property
    def samples(self) -> list[Sample]:
        """All samples."""
        return [sample for group in self.groups for sample in group.samples]

    @property
    def failures(self) -> Counter[str]:
        """Number of episodes left out of its groups, by reason."""
        return Counter(str(failure.kind) for group in self.groups for failure in group.failures)


def class_of(task: Task) -> str:
    """Return the class of a task: its field `class`, else `source`; empty if it has none."""
    values = (task.metadata.get(key) for key in _KEYS)
    name = next((str(value) for value in values if isinstance(value, str | int) and str(value)), "")
    return re.sub(r"[^\w.-]+", "_", name)[:_NAME_CHARS]


def sample_of(
    episode: Episode,
    *,
    group: str,
    member: int,
    reward: float,
    trained: Collection[str],
    temperature: float,
    version: int = 0,
    details: Mapping[str, float] | None = None,
) -> Sample:
    """Return an episode as a sample, with the exact calls of the trained roles; an unusable answer precedes its retry.

    Of an episode that shares its beginning with others, each call has its node in their tree. A call of several episodes is in the
    sample of each: its gradient is the sum over them.

    :param version: weights at its beginning; a version reported by the engine for a call takes precedence.
    :param details: further figures.
    """
    calls: list[Tokens] = []
    nodes: list[str] = []
    points = episode.branches or ()
    for position, exchange in enumerate(episode.exchanges):
        if exchange.role in trained:
            depth = sum(point.calls <= position for point in points)
            sampled = tokens_of(exchange)
            calls += sampled
            nodes += ["-".join(map(str, (_TREE, *episode.path[:depth])))] * len(sampled)
    turns = episode.turns
    sample = sample_of_calls(
        calls,
        group=group,
        id=f"{group}/{member}",
        reward=reward,
        temperature=temperature,
        version=version,
        nodes=nodes if points else (),
        details={
            "turns": float(len(turns)),
            "tool_calls": float(sum(turn.action is not None for turn in turns)),
            "tool_errors": float(sum(turn.failed for turn in turns)),
            "answered": float(episode.failure is None),
            **(details or {}),
        },
    )
    if points:
        # So that the means of steps are of what was sampled, and shared calls count once.
        own = {"sampled_tokens": float(_own_tokens(episode))}
        sample = structs.replace(sample, details=sample.details | own, multiplicity=episode.drawn)
    return sample


def sample_of_calls(
    calls: Sequence[Tokens],
    *,
    group: str,
    id: str,
    reward: float,
    temperature: float,
    version: int = 0,
    turn_rewards: Sequence[float] = (),
    nodes: Sequence[str] = (),
    details: Mapping[str, float] | None = None,
) -> Sample:
    """Return the calls of an agent as a sample, with its version and its number of sampled tokens. See docs/tuner.md.

    :param version: weights at its beginning; a version reported by the engine for a call takes precedence.
    :param nodes: node of each call in a tree of episodes; empty: no call is shared.
    :param details: further figures.
    """
    return Sample(
        task=group,
        id=id,
        reward=reward,
        calls=tuple(calls),
        temperature=temperature,
        turn_rewards=tuple(turn_rewards),
        nodes=tuple(nodes) or UNSET,
        details={
            **(details or {}),
            "version": _version(calls, version),
            "sampled_tokens": float(sum(len(call.sampled) for call in calls)),
        },
    )


def optimizer_parts(batch: Batch, count: int) -> list[list[int]]:
    """Return the samples of each optimizer step of a batch as positions in `Batch.samples`; groups stay whole.

    :param count: maximum number of optimizer steps.
    """
    positions = iter(range(len(batch.samples)))
    groups = [list(islice(positions, len(group.samples))) for group in batch.groups]
    count = min(count, len(groups))
    return [[position for group in groups[part::count] for position in group] for part in range(count)]


def batch_figures(batch: Batch) -> dict[str, float]:
    """Return figures of the episodes of a step."""
    samples = batch.samples
    figures = {
        "groups/played": float(len(batch.groups)),
        "groups/flat_share": fmean([group.is_flat for group in batch.groups]) if batch.groups else 0.0,
        "reward/std": pstdev([sample.reward for sample in samples]) if samples else 0.0,
    }
    names = sorted({name for sample in samples for name in sample.details} - {"version", EVIDENCE})
    for name in names:
        figures[f"episodes/{name}"] = fmean([sample.details.get(name, 0.0) for sample in samples])
    # Some tasks of a mixture need no documents.
    if evidence := [sample.details[EVIDENCE] for sample in samples if EVIDENCE in sample.details]:
        figures[f"episodes/{EVIDENCE}"] = fmean(evidence)
    ages = [batch.version - sample.details.get("version", batch.version) for sample in samples]
    figures["staleness/mean"] = fmean(ages) if ages else 0.0
    figures["staleness/max"] = max(ages, default=0.0)
    for kind, count in sorted(batch.failures.items()):
        figures[f"episodes/failed_{kind}"] = float(count)
    for kind, count in sorted(batch.dropped.items()):
        figures[f"dropped/{kind}"] = float(count)
    return figures


def rewards_by_class(rewards: Iterable[tuple[str, float]], prefix: str) -> dict[str, float]:
    """Return the mean reward of each class as figures; none if there is a single class, or too many.

    :param rewards: class and reward of each group or task.
    """
    by_class: dict[str, list[float]] = {}
    for name, reward in rewards:
        by_class.setdefault(name, []).append(reward)
    if not 2 <= len(by_class) <= MAX_CLASSES:
        return {}
    return {f"{prefix}/{name or 'none'}": fmean(values) for name, values in sorted(by_class.items())}


def signal_figures(batch: Batch) -> dict[str, float]:
    """Return the share of all sampled groups whose rewards are equal, and the mean reward of each class."""
    outcomes = group_outcomes(batch)
    if not outcomes:
        return {}
    return {
        "groups/no_signal": fmean(outcome.is_flat for outcome in outcomes),
        **rewards_by_class(((outcome.task_class, outcome.reward) for outcome in outcomes), "reward/class"),
    }


def _version(calls: Collection[Tokens], version: int) -> float:
    """Return the oldest version that sampled a call, at least the given one."""
    oldest = min((int(call.version) for call in calls if call.version.isdigit()), default=version)
    return float(max(oldest, version))


class GroupOutcome(NamedTuple):
    """Outcome of a sampled group."""

    task_class: str
    reward: float
    is_flat: bool


def group_outcomes(batch: Batch) -> list[GroupOutcome]:
    """Return the outcomes of all sampled groups that have one, replaced ones last."""
    kept = [
        GroupOutcome(group.task_class, fmean(sample.reward for sample in group.samples), group.is_flat)
        for group in batch.groups
        if group.samples
    ]
    return [*kept, *(GroupOutcome(group.task_class, group.reward, True) for group in batch.replaced)]
