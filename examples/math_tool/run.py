"""Tune an agent that computes with Python, from nothing: `python examples/math_tool/run.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow import Sandbox
from agentflow.trace import Task
from examples.library import Ask, ChatPolicy, Example, chat, main
from examples.math_tool.game import LARGEST, make_tasks, play, value_of
from examples.math_tool.teacher import teach

__all__ = ["EXAMPLE", "solve"]


async def solve(task: Task, policy: ChatPolicy, sandbox: Sandbox) -> float:
    """Solve one problem with Python in the episode's sandbox; return the reward."""

    async def run(expression: str) -> str:
        done = await sandbox.execute("code:run", {"code": f"print({expression})"})
        return "error" if done.error or done.data["error"] else str(done.data["stdout"]).strip()[:12]

    return await play(task, chat(policy), run)


async def practise(task: Task, ask: Ask) -> float:
    """Let the teacher solve a problem; all that it writes is arithmetic."""

    async def run(expression: str) -> str:
        return value_of(expression)

    return await play(task, ask, run)


EXAMPLE = Example(
    folder=Path(__file__).parent,
    make_tasks=make_tasks,
    play=practise,
    teach=teach,
    solve=solve,
    words=[str(number) for number in range(LARGEST + 1)],
    backends=["code"],
)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
