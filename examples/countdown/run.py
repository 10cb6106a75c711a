"""Tune an agent for countdown, from nothing: `python examples/countdown/run.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow.trace import Task
from examples.countdown.game import LARGEST, make_tasks, play
from examples.countdown.teacher import teach
from examples.library import ChatPolicy, Example, chat, main

__all__ = ["EXAMPLE", "solve"]


async def solve(task: Task, policy: ChatPolicy) -> float:
    """Play one puzzle with the SDK of OpenAI; return the reward."""
    return await play(task, chat(policy))


EXAMPLE = Example(
    folder=Path(__file__).parent,
    make_tasks=make_tasks,
    play=play,
    teach=teach,
    solve=solve,
    words=[str(number) for number in range(LARGEST + 1)],
)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
