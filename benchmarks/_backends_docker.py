"""Containers: sessions from the pool and cold ones, compared with `docker run` of the same image in the same run.

Starts its own engine, as the tests do. Figures are medians of elapsed time: on a busy machine use the ratios.
"""

import statistics
import time

import anyio

from benchmarks._rows import Row
from runtimes import InstanceSpec
from runtimes.docker import ContainerOptions, DockerRuntime
from runtimes.docker._plan import Tier
from tests._dockerd import Dockerd, dockerd

POOL = 4
ROUNDS = 10
FORKS = 3
STOCK = InstanceSpec(warm=frozenset({"bash", "python"}))


def since(begin: float) -> float:
    """Milliseconds since then."""
    return (time.perf_counter() - begin) * 1000


def plain_run(engine: Dockerd, image: str) -> float:
    """Return the milliseconds of a plain `docker run` with similar restrictions."""
    begin = time.perf_counter()
    engine.docker(
        *("run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--memory", "2g"),
        *("--pids-limit", "256", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--volume", "/usr:/usr:ro", image, "/usr/bin/true"),
    )
    return since(begin)


async def from_stock(options: ContainerOptions) -> list[float]:
    """Measure sessions from the pool, to the first answer of a shell and of an interpreter."""
    found: list[float] = []
    async with DockerRuntime(options, pool_spec=STOCK) as runtime:
        for _ in range(ROUNDS):
            await runtime.warmup()
            begin = time.perf_counter()
            instance = await runtime.start(STOCK)
            await instance.run("bash", "true")
            await instance.run("python", "1")
            found.append(since(begin))
            await instance.stop()
    return found


async def cold(options: ContainerOptions, tier: Tier) -> tuple[list[float], list[float], list[float]]:
    """Measure cold sessions, single commands and forks."""
    opened: list[float] = []
    commands: list[float] = []
    forks: list[float] = []
    async with DockerRuntime(options, tier=tier) as runtime:
        for number in range(ROUNDS):
            begin = time.perf_counter()
            instance = await runtime.start()
            await instance.run("bash", "true")
            opened.append(since(begin))
            for _ in range(5):
                begin = time.perf_counter()
                await instance.exec(["true"])
                commands.append(since(begin))
            if number < FORKS:
                begin = time.perf_counter()
                fork = (await instance.fork()).instance
                forks.append(since(begin))
                await fork.stop()
            await instance.stop()
    return opened, commands, forks


async def measure() -> list[Row]:
    """The figures."""
    with dockerd() as engine:
        options = ContainerOptions(socket=engine.socket)
        opened, commands, forks = await cold(options, "docker")
        image = (
            await anyio.to_thread.run_sync(engine.docker, "images", "--format", "{{.Repository}}:{{.Tag}}")
        ).split()[0]
        plain = [await anyio.to_thread.run_sync(plain_run, engine, image) for _ in range(ROUNDS)]
        stocked = await from_stock(options.model_copy(update={"pool": POOL}))
    without, _, _ = await cold(ContainerOptions(), "runc")
    beside = statistics.median(plain)
    return [
        Row("docker_session_from_pool_ms", statistics.median(stocked), beside, "docker run --rm", floor=15.0),
        Row("docker_session_cold_ms", statistics.median(opened), beside, "docker run --rm", floor=350.0),
        Row("docker_command_ms", statistics.median(commands), beside, "docker run --rm"),
        Row("docker_fork_ms", statistics.median(forks), beside, "docker run --rm"),
        Row("runc_session_cold_ms", statistics.median(without), beside, "docker run --rm"),
    ]


if __name__ == "__main__":
    for row in anyio.run(measure):
        print(row)
