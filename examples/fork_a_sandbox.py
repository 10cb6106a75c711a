"""Follow two ideas from the same live state: `python examples/fork_a_sandbox.py`."""

import anyio

from agentflow import Sandbox

PREPARE = """
import random
chance = random.Random(7)
numbers = [chance.randint(0, 99) for _ in range(1000)]
"""

IDEAS = {
    "mean": "sum(numbers) / len(numbers)",
    "median": "numbers.sort(); numbers[len(numbers) // 2]",
}


async def main() -> None:
    """Prepare once, fork once for each idea, and see that none disturbs the others."""
    async with Sandbox() as sandbox:
        await sandbox.execute("code:run", {"code": PREPARE})

        async def follow(idea: str, code: str) -> None:
            async with await sandbox.fork() as fork:
                result = await fork.execute("code:run", {"code": code})
                print(f"{idea}: {result.data['value']}")

        async with anyio.create_task_group() as group:
            for idea, code in IDEAS.items():
                group.start_soon(follow, idea, code)

        result = await sandbox.execute("code:run", {"code": "numbers == sorted(numbers)"})
        print(f"sorted here as well: {result.data['value']}")


if __name__ == "__main__":
    anyio.run(main)
