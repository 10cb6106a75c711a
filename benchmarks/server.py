"""A tool server under load: slow calls, blocked backends, several workers.

Run `python benchmarks/server.py [--check]`: prints a table of figures measured in this run, each with its baseline, and as
the last line one JSON object. With `--check` it exits with 1 if a limit is missed. The gain of several workers depends on the
machine, since front, workers and clients need a core each, so that figure has no limit.
"""

import argparse
import json
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import anyio
import psutil
from pydantic import Field

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentflow.sandbox import Backend, Sandbox, tool
from benchmarks._rows import Row
from benchmarks.tools import TOKEN, calls_through, p95, served

SLOW_SECONDS = 0.5
"""Seconds of a slow call."""
AT_ONCE = 8
BLOCKED = 40
"""Number of hanging calls of the blocked backend."""
CALLS = 100
ROUNDS = 3
CLIENTS = 8
CALLS_EACH = 40
HERE = Path(__file__).resolve()
SLOW = f"{HERE.stem}:SlowBackend"


class SlowBackend(Backend):
    """Waits."""

    name = "slow"
    description = "Waits."

    @tool(read_only=True)
    async def wait(self, seconds: Annotated[float, Field(description="How long.")]) -> dict[str, object]:
        """Wait. Use it to measure."""
        await anyio.sleep(seconds)
        return {}


def waits(sandbox: Sandbox, seconds: float) -> Callable[[], Coroutine[None, None, None]]:
    """A slow call, checked."""

    async def call() -> None:
        assert (await sandbox.execute("slow:wait", {"seconds": seconds})).ok

    return call


async def elapsed(*calls: Callable[[], Coroutine[None, None, None]]) -> float:
    """Seconds that calls take when they are made at once."""
    begin = time.perf_counter()
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call)
    return time.perf_counter() - begin


async def slow_calls(url: str) -> Row:
    """Eight slow calls beside one, by turns."""
    async with Sandbox(url, token=TOKEN) as sandbox:
        call = waits(sandbox, SLOW_SECONDS)
        rounds = [(await elapsed(*[call] * AT_ONCE), await elapsed(call)) for _ in range(ROUNDS)]
    eight, one = (statistics.median(side) for side in zip(*rounds, strict=True))
    return Row("eight_slow_calls_ratio", eight / one, 1.0, "one slow call", 1.2)


async def latencies(call: Callable[[], Awaitable[object]]) -> list[float]:
    """Of calls made one after the other."""
    found: list[float] = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        await call()
        found.append(time.perf_counter() - begin)
    return found


async def beside_a_blocked_one(url: str) -> Row:
    """Measure a backend's p95 while all calls of another backend hang, and while none does, alternately."""

    async def beside() -> float:
        found = 0.0
        async with anyio.create_task_group() as group:
            for _ in range(BLOCKED):
                group.start_soon(waits(blocked, 3600))
            await latencies(call)  # wait until they hang: their arrival is not measured
            found = p95(await latencies(call))
            group.cancel_scope.cancel()
        return found

    async with Sandbox(url, token=TOKEN) as blocked, Sandbox(url, token=TOKEN) as other:
        call = calls_through(other)
        await latencies(call)
        rounds = [(await beside(), p95(await latencies(call))) for _ in range(ROUNDS)]
    ratio = statistics.median(hung / free for hung, free in rounds)
    return Row("p95_beside_a_blocked_backend_ratio", ratio, 1.0, "nothing blocked", 1.2)


async def calls_a_second(url: str) -> float:
    """Empty calls of several clients at once."""

    async def client(call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(CALLS_EACH):
            await call()

    async with AsyncExitStack() as stack:
        sandboxes = [await stack.enter_async_context(Sandbox(url, token=TOKEN)) for _ in range(CLIENTS)]
        calls = [calls_through(one) for one in sandboxes]
        for call in calls:
            await call()
        begin = time.perf_counter()
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(client, call)
        return CLIENTS * CALLS_EACH / (time.perf_counter() - begin)


async def two_workers(one: str, two: str) -> Row:
    """Calls a second of two workers beside one process, by turns."""
    rounds = [(await calls_a_second(two), await calls_a_second(one)) for _ in range(ROUNDS)]
    many, single = (statistics.median(side) for side in zip(*rounds, strict=True))
    return Row("calls_a_second_of_two_workers", many, single, "one process")


async def cpu_of_a_call(url: str) -> float:
    """Milliseconds of CPU for a call in the process that has the port."""
    process = psutil.Process(pid_of(url))
    before = sum(process.cpu_times()[:2])
    for _ in range(ROUNDS):
        await calls_a_second(url)
    return (sum(process.cpu_times()[:2]) - before) / (ROUNDS * CLIENTS * (CALLS_EACH + 1)) * 1000


async def front(one: str, two: str) -> Row:
    """Measure the front's CPU per call against a single process's: the ratio bounds the gain of workers."""
    return Row("front_cpu_of_a_call_ms", await cpu_of_a_call(two), await cpu_of_a_call(one), "one process")


async def measure_all(one: str, two: str) -> list[Row]:
    """Everything, one after the other."""
    alone = [await slow_calls(one), await beside_a_blocked_one(one)]
    return [*alone, await two_workers(one, two), await front(one, two)]


def pid_of(url: str) -> int:
    """The process that listens at an address."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    children = psutil.Process().children()
    return next(
        child.pid for child in children if any(one.laddr.port == port for one in child.net_connections("tcp"))
    )


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    command = ["-m", "mcp_servers", "tools:EmptyBackend", SLOW, "--http", "127.0.0.1:PORT"]
    rest = ["--token", TOKEN, "--log-level", "warning"]
    with served(*command, *rest) as one, served(*command, *rest, "--workers", "2") as two:
        rows = anyio.run(measure_all, one, two)
    print(f"{'':<38}{'ours':>10}{'beside':>10}{'at most':>9}")
    for row in rows:
        floor = f"{row.floor:>9.2f}" if row.floor else ""
        print(f"{row.name:<38}{row.ours:>10.3f}{row.theirs or 0:>10.3f}{floor:>9}  {row.beside}")
    missed = [row.name for row in rows if not row.held]
    for name in missed:
        print(f"missed: {name}")
    print(json.dumps({row.name: round(row.ours, 3) for row in rows}))
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
