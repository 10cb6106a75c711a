"""Tune an agent to ask, from nothing: `python examples/learning_to_ask/run.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow.trace import Task
from examples.learning_to_ask.game import make_tasks, play
from examples.learning_to_ask.teacher import teach
from examples.library import ChatPolicy, Example, chat, main

__all__ = ["EXAMPLE", "solve"]


async def solve(task: Task, policy: ChatPolicy) -> float:
    """See one patient with the SDK of OpenAI; return the reward."""
    return await play(task, chat(policy))


EXAMPLE = Example(
    folder=Path(__file__).parent,
    make_tasks=make_tasks,
    play=play,
    teach=teach,
    solve=solve,
)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
