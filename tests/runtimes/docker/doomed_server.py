"""Server to be killed: containers with busy sessions. Run as a program with the tier and the engine's socket."""

import sys
from pathlib import Path
from typing import cast

import anyio

from runtimes import Instance, InstanceSpec, Language
from runtimes.docker import ContainerOptions, DockerRuntime
from runtimes.docker._plan import Tier

BUSY: list[tuple[Language, str]] = [
    ("python", "while True: pass"),
    ("python", "import subprocess\nsubprocess.run(['sleep', '47110'], start_new_session=True)"),
    ("bash", "trap '' TERM HUP INT; setsid sleep 47110 & disown; sleep 47110"),
]


async def main(tier: Tier, socket: str) -> None:
    """Start everything, print the names, and never end."""
    options = ContainerOptions(socket=Path(socket) if socket else None, pool=1)
    async with DockerRuntime(options, tier=tier) as runtime, anyio.create_task_group() as tasks:
        instances: list[Instance] = []
        for language, source in BUSY:
            instance = await runtime.start(InstanceSpec())
            instances.append(instance)
            await instance.run(language, "x=1")
            tasks.start_soon(instance.run, language, source)
        for instance in instances:
            while not (await instance.usage()).processes:
                await anyio.lowlevel.checkpoint()
        await runtime.warmup()
        sys.stdout.write(" ".join(instance.id for instance in instances) + "\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, cast("Tier", sys.argv[1]), sys.argv[2])
