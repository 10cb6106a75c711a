"""Definition of an example: its tasks, its agent, and its teacher."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias
from zlib import crc32

from agentflow.gateway import EpisodeOutcome
from agentflow.trace import Task

__all__ = ["Ask", "Example", "Messages", "Part", "part_of", "reward_of"]

Part: TypeAlias = Literal["train", "held_out"]
"""Part of the tasks."""
Messages: TypeAlias = Sequence[dict[str, str]]
"""Conversation, as messages of a chat template."""
Ask: TypeAlias = Callable[[Messages], Awaitable[str]]
"""Asks a model; returns its answer."""


class Example(NamedTuple):
    """An example. See docs/examples.md."""

    folder: Path
    """Its folder, with `settings.yaml`."""
    make_tasks: Callable[[Part, int, int], list[Task]]
    """Makes tasks of a part: that many, from a seed."""
    play: Callable[[Task, Ask], Awaitable[float]]
    """Plays a task with the teacher; returns the reward."""
    teach: Callable[[Messages, Random], str]
    """Scripted teacher: the next answer in a conversation."""
    solve: Callable[..., Awaitable[float | EpisodeOutcome]]
    """The agent as `tune` takes it: `solve(task, policy)`, or `solve(task, policy, sandbox)`."""
    words: Sequence[str] = ()
    """Words that are one token each, such as the numbers of a game."""
    backends: Sequence[str] = ()
    """Backends of its sandbox; empty: it needs none."""
    trained: Sequence[str] = ()
    """Names of trained agents; empty: there is one agent."""
    frozen: Sequence[str] = ()
    """Names of agents that keep the fine-tuned weights."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name


def part_of(name: str) -> Part:
    """Return the part that something belongs to: 80% train, 20% are held out. It depends only on the name."""
    return "train" if crc32(name.encode()) % 100 < 80 else "held_out"


def reward_of(outcome: float | EpisodeOutcome, trained: Sequence[str]) -> float:
    """Return the reward of the trained agents.

    :param trained: their names; empty: there is one agent.
    """
    reward = outcome.reward if isinstance(outcome, EpisodeOutcome) else outcome
    if isinstance(reward, dict):
        return fmean(reward[name] for name in trained)
    return reward or 0.0
