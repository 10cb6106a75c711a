"""Tune an agent for frozen lake, from nothing: `python examples/frozen_lake/run.py`."""

import sys
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow.trace import Task
from examples.frozen_lake.game import make_tasks, play
from examples.frozen_lake.teacher import teach
from examples.library import ChatPolicy, Example, Messages, main

__all__ = ["EXAMPLE", "solve"]


async def solve(task: Task, policy: ChatPolicy) -> float:
    """Walk once, with nothing but HTTP; return the reward."""
    headers = {"Authorization": f"Bearer {policy.api_key}"}
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as session:

        async def ask(messages: Messages) -> str:
            body = {"model": policy.model, "messages": messages, "max_tokens": 8}
            async with session.post(f"{policy.base_url}/chat/completions", json=body) as answer:
                return (await answer.json())["choices"][0]["message"]["content"] or ""

        return await play(task, ask)


EXAMPLE = Example(folder=Path(__file__).parent, make_tasks=make_tasks, play=play, teach=teach, solve=solve)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
