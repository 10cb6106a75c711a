# pyright: basic, reportMissingImports=false
"""`openenv_client.py URL TOKEN COMMAND`: play a task with OpenEnv's own client."""

import asyncio
import json
import sys

from openenv import GenericEnvClient


async def main(url: str, token: str, command: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with GenericEnvClient(base_url=url, headers=headers) as environment:
        first = await environment.reset(task="sort")
        refused = await environment.step({"tool": "bash_run", "arguments": {}})
        await environment.step({"tool": "bash_run", "arguments": {"command": command}})
        last = await environment.step({"answer": "done"})
        state = await environment.state()
        try:
            await environment.step({"answer": "again"})
            error = False
        except RuntimeError:
            error = True
    found = {
        "tools": [tool["function"]["name"] for tool in first.observation["tools"]],
        "failed": refused.observation["failed"],
        "reward": last.reward,
        "done": last.done,
        "steps": state["step_count"],
        "error": error,
    }
    print(json.dumps(found))  # noqa: T201


asyncio.run(main(*sys.argv[1:]))
