"""Groups: the episodes of one task, which are compared with each other."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct, field

from agentflow.learner._samples import Sample
from agentflow.tokens import calls_of
from agentflow.trajectory import Episode, Failure

__all__ = ["Batch", "FailureCause", "Group", "Played", "sample_of"]


class FailureCause(StrEnum):
    """Why an episode is left out of its group: nothing is learned from it, for or against. The set is closed."""

    CRASHED = "crashed"
    """Something in it raised."""
    TIME = "time"
    """It did not end in its time."""
    MODEL = "model"
    """A model that it needs could not be had."""
    REWARD = "reward"
    """What it is worth could not be said."""
    STALE = "stale"
    """It began too long ago: the weights have changed too often since."""


class Played(Struct, frozen=True, kw_only=True):
    """What came of one episode."""

    episode: Episode | None = None
    """The episode; `None`: it did not come to its end."""
    reward: float = 0.0
    """What it is worth."""
    failure: Failure | None = None
    """Why it is left out."""
    version: int = 0
    """The weights that it began with."""


class Group(Struct, frozen=True, kw_only=True):
    """What came of the episodes of one draw."""

    number: int
    """The draw."""
    name: str
    """What its samples call their task."""
    samples: tuple[Sample, ...] = ()
    """The episodes that count."""
    failures: tuple[Failure, ...] = ()
    """Why others don't."""

    @property
    def is_flat(self) -> bool:
        """All its episodes are worth the same, so none is better than expected."""
        return len({sample.reward for sample in self.samples}) < 2


class Batch(Struct, frozen=True, kw_only=True):
    """What one step learns from."""

    step: int
    """The step, from 1."""
    version: int
    """The weights that it begins with."""
    taken: int
    """How many draws are made by its end."""
    pending: tuple[int, ...] = ()
    """Those of them that no step has used yet."""
    groups: tuple[Group, ...] = ()
    """The groups, in the order of their draws."""
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    """What was made for it and left out, by why: groups whose rewards were equal, episodes that were too old."""

    @property
    def samples(self) -> list[Sample]:
        """All episodes that count."""
        return [sample for group in self.groups for sample in group.samples]

    @property
    def failures(self) -> Counter[str]:
        """How many episodes are left out of its groups, by why."""
        return Counter(str(failure.kind) for group in self.groups for failure in group.failures)


def sample_of(
    episode: Episode,
    *,
    group: str,
    member: int,
    reward: float,
    trained: Iterable[str],
    temperature: float,
    version: int = 0,
) -> Sample:
    """An episode as the learner sees it: the calls of the trained roles, exactly.

    :param version: the weights that it began with; where the engine says which weights drew a token, that counts.
    """
    calls = tuple(call.tokens for call in calls_of(episode, name=group, roles=frozenset(trained)))
    turns = episode.turns
    oldest = min((int(call.version) for call in calls if call.version.isdigit()), default=version)
    return Sample(
        task=group,
        id=f"{group}/{member}",
        reward=reward,
        calls=calls,
        temperature=temperature,
        details={
            "turns": float(len(turns)),
            "tool_calls": float(sum(turn.action is not None for turn in turns)),
            "tool_errors": float(sum(turn.failure is not None or bool(turn.trouble) for turn in turns)),
            "answered": float(episode.failure is None),
            "version": float(max(oldest, version)),
            "sampled_tokens": float(sum(len(call.sampled) for call in calls)),
        },
    )
