"""Tool calls, compared with the MCP SDK's.

Run `python benchmarks/tools.py [--check]`: prints a table of ratios measured in this run, and as the last line one JSON
object. With `--check` it exits with 1 if a limit is missed.

The two sides of a ratio alternate in many short rounds, and the result is the median of the rounds' ratios, so that noise
meets both. In-process figures are CPU time; over HTTP they are elapsed time, with each server in its own process.
"""

import argparse
import asyncio
import json
import logging
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer

from agentflow.sandbox import Backend, Sandbox, tool

ROUNDS = 15
CALLS_HERE = 300
CALLS_HTTP = 40
CLIENTS = 20
AT_ONCE = 500
CALLS_EACH = 4
BUSY_SECONDS = 3.0
BUSY_ROUNDS = 5
TOKEN = "benchmark"
HERE = Path(__file__).resolve()

Call = Callable[[], Awaitable[object]]

FLOORS = {
    "in_process_ratio": 0.5,
    "http_ratio": 1.4,
    "http_sandbox_ratio": 1.4,
    "concurrent_p95_ratio": 3.0,
    "busy_neighbour_p95_ratio": 1.2,
}
"""The most that each ratio may be."""


class EmptyBackend(Backend):
    """A tool that does nothing."""

    name = "empty"
    description = "Does nothing."

    @tool(read_only=True)
    async def nothing(self) -> dict[str, object]:
        """Do nothing. Use it to measure."""
        return {}


def bare_server() -> MCPServer:
    """The same tool, served by the SDK alone."""
    server = MCPServer("bare")

    async def nothing() -> dict[str, object]:
        """Do nothing. Use it to measure."""
        return {}

    server.add_tool(nothing, name="empty_nothing")
    return server


@dataclass
class Ratio:
    """One side's time through the other's."""

    name: str
    """Name of the measure."""
    ours: float
    """Our figure, in the unit of `theirs`."""
    theirs: float
    """Name of the baseline."""
    ratio: float
    """The median of the rounds' ratios."""
    floor: float
    """The most that it may be."""


async def measure(call: Call, times: int, clock: Callable[[], float]) -> float:
    """Seconds for a call."""
    begin = clock()
    for _ in range(times):
        await call()
    return (clock() - begin) / times


async def compare(name: str, ours: Call, theirs: Call, times: int, clock: Callable[[], float]) -> Ratio:
    """Both sides by turns."""
    await measure(ours, times, clock)
    await measure(theirs, times, clock)
    rounds: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        # The order alternates, so that neither side always runs after the other's garbage.
        if number % 2:
            mine, other = await measure(ours, times, clock), await measure(theirs, times, clock)
        else:
            other, mine = await measure(theirs, times, clock), await measure(ours, times, clock)
        rounds.append((mine, other))
    mine, other = (statistics.median(side) for side in zip(*rounds, strict=True))
    return Ratio(name, mine, other, statistics.median(a / b for a, b in rounds), FLOORS[name])


def calls_through(sandbox: Sandbox, name: str = "empty:nothing") -> Call:
    """An empty call through a sandbox, checked."""

    async def call() -> None:
        assert (await sandbox.execute(name)).ok

    return call


def calls_by(client: Client) -> Call:
    """The empty call through the SDK's client, checked."""

    async def call() -> None:
        assert not (await client.call_tool("empty_nothing", {})).is_error

    return call


async def in_process() -> Ratio:
    """Our table against the SDK's in-process client."""
    async with Sandbox(backends=[EmptyBackend()]) as sandbox, Client(bare_server()) as client:
        ours, theirs = calls_through(sandbox), calls_by(client)
        return await compare("in_process_ratio", ours, theirs, CALLS_HERE, time.process_time)


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Client]:
    """The SDK's client, with the token."""
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=120) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def over_http(ours: str, bare: str) -> list[Ratio]:
    """Our server against the SDK's, with the same client; and our sandbox as the client."""
    async with connected(ours) as one, connected(bare) as other, Sandbox(ours, token=TOKEN) as sandbox:
        theirs, clock = calls_by(other), time.perf_counter
        return [
            await compare("http_ratio", calls_by(one), theirs, CALLS_HTTP, clock),
            await compare("http_sandbox_ratio", calls_through(sandbox), theirs, CALLS_HTTP, clock),
        ]


def p95(values: Sequence[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


async def concurrently(url: str) -> Ratio:
    """Return the slowest client's p95 in 500 concurrent calls of several clients, relative to the mean service time.

    The mean service time is that of this very load: elapsed time divided by calls.
    """
    latencies: dict[int, list[float]] = {number: [] for number in range(CLIENTS)}

    async def caller(number: int, call: Call) -> None:
        for _ in range(CALLS_EACH):
            begin = time.perf_counter()
            await call()
            latencies[number].append(time.perf_counter() - begin)

    async with AsyncExitStack() as stack:
        sandboxes = [await stack.enter_async_context(Sandbox(url, token=TOKEN)) for _ in range(CLIENTS)]
        begin = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(AT_ONCE):
                client = number % CLIENTS
                group.start_soon(caller, client, calls_through(sandboxes[client]))
        elapsed = time.perf_counter() - begin
    share = AT_ONCE * elapsed / (AT_ONCE * CALLS_EACH)
    worst = max(map(p95, latencies.values()))
    return Ratio("concurrent_p95_ratio", worst, share, worst / share, FLOORS["concurrent_p95_ratio"])


async def p95_until(call: Call, over: Callable[[], bool]) -> float:
    """The p95 of calls made one after the other until it is over."""
    latencies: list[float] = []
    while not over():
        begin = time.perf_counter()
        await call()
        latencies.append(time.perf_counter() - begin)
    return p95(latencies)


async def beside_a_busy_one(url: str) -> Ratio:
    """Measure the others' p95 while one session computes for three seconds, and while none does, alternately."""
    code = f"import time\nend = time.process_time() + {BUSY_SECONDS}\nwhile time.process_time() < end: pass"

    async def beside_nobody() -> float:
        end = time.perf_counter() + BUSY_SECONDS
        return await p95_until(call, lambda: time.perf_counter() > end)

    async def beside_one() -> float:
        over = asyncio.Event()

        async def compute() -> None:
            assert (await one.execute("code:run", {"code": code}, timeout=300)).ok
            over.set()

        measured = 0.0
        async with anyio.create_task_group() as group:
            group.start_soon(compute)
            measured = await p95_until(call, over.is_set)
        return measured

    async with Sandbox(url, token=TOKEN) as one, Sandbox(url, token=TOKEN) as other:
        assert (await one.execute("code:run", {"code": "1"})).ok
        call = calls_through(other)
        await measure(call, CALLS_HTTP, time.perf_counter)
        rounds = [(await beside_one(), await beside_nobody()) for _ in range(BUSY_ROUNDS)]
    busy, quiet = (statistics.median(side) for side in zip(*rounds, strict=True))
    name = "busy_neighbour_p95_ratio"
    return Ratio(name, busy, quiet, statistics.median(a / b for a, b in rounds), FLOORS[name])


@contextmanager
def served(*command: str) -> Generator[str]:
    """A server in a process of its own; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    paths = os.pathsep.join([str(HERE.parent), str(HERE.parent.parent)])
    words = [word.replace("PORT", str(port)) for word in command]
    process = subprocess.Popen([sys.executable, *words], env={**os.environ, "PYTHONPATH": paths})
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


async def measure_all(ours: str, bare: str) -> list[Ratio]:
    """Everything, one after the other."""
    results = [await in_process(), *await over_http(ours, bare)]
    return [*results, await concurrently(ours), await beside_a_busy_one(ours)]


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    parser.add_argument(
        "--serve-bare", type=int, metavar="PORT", help="serve the SDK's side, and nothing else"
    )
    options = parser.parse_args()
    # The SDK's logging of every request, in colours, is not part of the comparison.
    logging.disable(logging.INFO)
    if options.serve_bare is not None:
        bare_server().run("streamable-http", host="127.0.0.1", port=options.serve_bare)
        return 0

    our_command = ["-m", "mcp_servers", "tools:EmptyBackend", "code", "--http", "127.0.0.1:PORT"]
    with (
        served(*our_command, "--token", TOKEN, "--log-level", "warning") as ours,
        served(str(HERE), "--serve-bare", "PORT") as bare,
    ):
        results = anyio.run(measure_all, ours, bare)
    print(f"{'':<28}{'ours':>12}{'beside':>12}{'ratio':>8}{'at most':>9}")
    for one in results:
        times = f"{one.ours * 1000:>9.3f} ms{one.theirs * 1000:>9.3f} ms"
        print(f"{one.name:<28}{times}{one.ratio:>8.2f}{one.floor:>9.2f}")
    missed = [one.name for one in results if one.ratio > one.floor]
    for name in missed:
        print(f"missed: {name}")
    figures = {one.name: round(one.ratio, 3) for one in results}
    milliseconds = {f"{one.name.removesuffix('_ratio')}_ms": round(one.ours * 1000, 4) for one in results}
    print(json.dumps({**figures, **milliseconds}))
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
