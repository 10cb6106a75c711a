"""Overhead of the world tools over the environment alone.

Figures are CPU time of this process, alternating, medians of rounds. The environments are the household and one of
BabyAI's rooms; ours are whole calls through a sandbox.
"""

import statistics
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from itertools import cycle

import gymnasium

from agentflow.sandbox import Sandbox, SandboxSettings
from benchmarks._rows import Row
from mcp_servers.world.household import register

HOUSEHOLD = "agentflow/household-v0"
ROOM = "BabyAI-GoToLocal-v0"
STEPS = 60
ROUNDS = 7
TURNS = (0, 1)


async def measure() -> list[Row]:
    """The figures."""
    register()
    # Importing it registers its environments.
    import_module("minigrid")
    async with Sandbox(SandboxSettings(backends={"world": {"environments": [HOUSEHOLD, ROOM]}})) as sandbox:
        rows = [await step("household", sandbox, HOUSEHOLD), await step("babyai", sandbox, ROOM)]
        return [*rows, await fork(sandbox)]


async def step(name: str, sandbox: Sandbox, env: str) -> Row:
    """A step through a sandbox, and alone."""
    alone = gymnasium.make(env, disable_env_checker=True)
    words = env == HOUSEHOLD

    async def theirs() -> None:
        _, told = alone.reset(seed=1)
        for turn, _ in zip(cycle(TURNS), range(STEPS), strict=False):
            _, _, over, cut, told = alone.step(told["actions"][turn] if words else turn)
            if over or cut:
                _, told = alone.reset(seed=1)

    async def ours() -> None:
        await sandbox.execute("world:reset", {"env": env, "seed": 1})
        for turn, _ in zip(cycle(TURNS), range(STEPS), strict=False):
            seen = await sandbox.execute("world:act", {"action": turn})
            if seen.data["done"]:
                await sandbox.execute("world:reset", {"env": env, "seed": 1})

    pairs = [(await spent(ours), await spent(theirs)) for _ in range(ROUNDS)]
    mine, others = (statistics.median(side) / STEPS for side in zip(*pairs, strict=True))
    alone.close()
    return Row(f"world_{name}_step_ms", mine, others, "gymnasium alone", floor=2.0, added=True)


async def fork(sandbox: Sandbox) -> Row:
    """A fork of a session with a household."""
    await sandbox.execute("world:reset", {"env": HOUSEHOLD, "seed": 1})

    async def forked() -> None:
        for _ in range(STEPS):
            await (await sandbox.fork()).close()

    times = [await spent(forked) / STEPS for _ in range(ROUNDS)]
    return Row("world_household_fork_ms", statistics.median(times))


async def spent(work: Callable[[], Awaitable[None]]) -> float:
    """Milliseconds of CPU time."""
    begin = time.process_time()
    await work()
    return (time.process_time() - begin) * 1000
