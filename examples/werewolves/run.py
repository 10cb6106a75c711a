"""Tune wolves against frozen villagers, from nothing: `python examples/werewolves/run.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow.gateway import EpisodeOutcome
from agentflow.trace import Task
from examples.library import AgentPolicy, Ask, Example, Messages, chat, main
from examples.werewolves.game import make_tasks, play
from examples.werewolves.teacher import teach

__all__ = ["EXAMPLE", "solve"]


async def solve(task: Task, policy: AgentPolicy) -> EpisodeOutcome:
    """Play one game; each side has its own key, and its own reward."""
    players = {role: chat(policy.agent(role)) for role in ("wolf", "villager")}

    async def ask(role: str, messages: Messages) -> str:
        return await players[role](messages)

    won = await play(task, ask)
    return EpisodeOutcome(reward={"wolf": float(won), "villager": float(not won)}, success=won)


async def practise(task: Task, ask: Ask) -> float:
    """Let the teacher play all sides."""

    async def player(_role: str, messages: Messages) -> str:
        return await ask(messages)

    return float(await play(task, player))


EXAMPLE = Example(
    folder=Path(__file__).parent,
    make_tasks=make_tasks,
    play=practise,
    teach=teach,
    solve=solve,
    trained=["wolf"],
    frozen=["villager"],
)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
