"""Tune a coding agent in a terminal, from nothing: `python examples/terminal/run.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow import Sandbox
from agentflow.trace import Task
from examples.library import Ask, ChatPolicy, Example, chat, main
from examples.terminal.game import SimulatedShell, make_tasks, play
from examples.terminal.teacher import teach

__all__ = ["EXAMPLE", "solve"]


async def solve(task: Task, policy: ChatPolicy, sandbox: Sandbox) -> float:
    """Repair one file in the episode's sandbox, which is tested while it is still open; return the reward."""

    async def run(command: str) -> str:
        done = await sandbox.execute("bash:run", {"command": command, "timeout": 10})
        if done.error is not None:
            return f"error: {done.error.kind}"
        return f"{done.data['stdout']}{done.data['stderr']}"

    return await play(task, chat(policy, longest=32), run)


async def practise(task: Task, ask: Ask) -> float:
    """Let the teacher repair a file in a simulated terminal."""
    return await play(task, ask, SimulatedShell(task).run)


EXAMPLE = Example(
    folder=Path(__file__).parent,
    make_tasks=make_tasks,
    play=practise,
    teach=teach,
    solve=solve,
    backends=["bash"],
)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
