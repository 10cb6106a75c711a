"""Scripted agent whose branches differ by their paths, and the reward of a training, for runs that are killed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import anyio

from agentflow.engine import OpenEpisode
from agentflow.models import Call, Completion, Model
from agentflow.team import ToolAgent
from agentflow.team._tool_agent import ToolWork
from agentflow.trace import BlobStore, Task, digest
from tests.agentflow.engine.test_branching import Chooser, Say

T = TypeVar("T")

HOLD_AFTER = "HOLD_AFTER"
"""Variable with the number of model calls after which all further calls wait for a kill."""
HELD = "held"
"""File that such a process writes."""
_CODE = """try: kept.append('{letter}')
except NameError: kept = [{start!r}, '{letter}']
print(''.join(kept))"""
_calls = 0


class PathModel(Chooser):
    """A model whose answer follows from the prompt and the path."""

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer, or wait for a kill."""
        global _calls
        _calls += 1
        if _calls > int(os.environ.get(HOLD_AFTER, "1000000")):
            await anyio.Path(HELD).touch()
            await anyio.sleep_forever()
        return await super().complete(call)


@dataclass(frozen=True)
class PathAgent(ToolAgent):
    """Single agent with a model for each path."""

    say: Say
    """Answers with the results so far and the position of the newest continuation."""

    def begin(self, episode: OpenEpisode) -> ToolWork:
        """Begin an episode."""
        points = cast("Any", episode)._points  # only the engine knows the path
        model = PathModel(lambda seen, _: self.say(seen, points.node.path[-1]))
        return ToolAgent(model, self.blobs).begin(episode)


def agent(model: Model, blobs: BlobStore) -> PathAgent:
    """Return the agent of a rollout that is killed."""
    return PathAgent(model, blobs, next_step)


def keeper(model: Model, blobs: BlobStore) -> PathAgent:
    """Return the agent of the picture of a branching task."""
    return PathAgent(model, blobs, read_register)


def next_step(seen: Sequence[str], position: int) -> tuple[str, str] | str:
    """Change the state of the shell and of the interpreter in turn, and answer with the last results.

    Some decisions are the same at both positions.
    """
    letter = "ab"[position] if len(seen) != 2 or "b" in seen[1] else "c"
    match len(seen):
        case 0:
            return "bash_run", "notes=7; echo $notes"
        case 1 | 3:
            return "bash_run", f"notes=${{notes}}{letter}; echo $notes"
        case 2 | 4:
            return "code_run", _CODE.format(start=seen[1].strip(), letter=letter)
        case _:
            return f"{seen[-2].strip()} {seen[-1].strip()}"


def read_register(seen: Sequence[str], position: int) -> tuple[str, str] | str:
    """Compare two years of a register; one branch first counts the lines."""
    compute = "code_run", "print(1850 - 1834)"
    match len(seen):
        case 0:
            return "bash_run", "echo 'Needle Light 1834; South Light 1850' > register; cat register"
        case 1:
            return compute if position == 0 else ("bash_run", "grep -o Light register | wc -l")
        case 2 if seen[1].strip() == "2" and position == 1:
            return compute
        case _:
            return seen[-1].strip()


def by_words(answer: str, task: Task) -> float:
    """Reward that follows from the answer alone and is never 0: without a baseline every step changes the weights."""
    return 0.5 + 0.5 * (int(digest([answer, task.id]), 16) % 2)
