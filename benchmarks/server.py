"""A tool server under load: slow calls, blocked backends, several workers.

Run `python benchmarks/server.py [--check]`: prints a table of figures measured in this run, each with its baseline, and as
the last line one JSON object. With `--check` it exits with 1 if a limit is missed. Clients and proxy share one core, and the servers
another one, so that each figure is that of a server with a core of its own: calls are made in the sessions of one worker at a time.
"""

import argparse
import logging
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import httpx2
import psutil
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from pydantic import Field

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentflow.sandbox import Backend, Sandbox, Session, tool
from benchmarks._rows import Row, report
from benchmarks.tools import TOKEN, Call, calls_through, p95, served
from mcp_servers.serving._client import ErrorResponseTransport
from mcp_servers.serving._server_names import server_of

SLOW_SECONDS = 0.5
"""Seconds of a slow call."""
AT_ONCE = 8
BLOCKED = 40
"""Number of hanging calls of the blocked backend."""
CALLS = 100
ROUNDS = 3
CLIENTS = 8
CALLS_EACH = 150
CORES = sorted(os.sched_getaffinity(0))
WORKER = "mcp_servers.serving._worker"
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

    @tool(read_only=True)
    async def visit(self, session: Session) -> dict[str, object]:
        """Do nothing in a session. Use it to measure."""
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


class Load(NamedTuple):
    """Empty calls of several clients at once, and of one client."""

    front_ms: float
    """CPU of the process that has the port, for each call."""
    workers_ms: float
    """CPU of its workers, for each call."""
    p50_ms: float
    """Time of a call of one client."""


async def load(url: str) -> list[Load]:
    """Calls in the sessions of each worker, one worker after the other; of a server without workers in all sessions."""
    front = psutil.Process(pid_of(url))
    workers = workers_of(front)
    for process in workers or [front]:
        run_on(-1, process)
    run_on(0, psutil.Process(), *([front] if workers else []))

    async def client(call: Call) -> None:
        for _ in range(CALLS_EACH):
            await call()

    async with AsyncExitStack() as stack:
        number = CLIENTS * (2 if workers else 1)
        sandboxes = [await stack.enter_async_context(Sandbox(url, token=TOKEN)) for _ in range(number)]
        found: list[Load] = []
        for calls in await calls_by_worker(sandboxes):
            before = cpu([front]), cpu(workers)
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(client, call)
            spent = [now - then for now, then in zip((cpu([front]), cpu(workers)), before, strict=True)]
            count = len(calls) * CALLS_EACH
            alone = statistics.median(await latencies(calls[0]))
            in_front, in_workers = (1000 * seconds / count for seconds in spent)
            found.append(Load(in_front, in_workers, 1000 * alone))
        return found


async def calls_by_worker(sandboxes: Iterable[Sandbox]) -> list[list[Call]]:
    """Calls in the sandboxes' sessions, of each worker those of its sessions."""
    placed: list[tuple[str, Call]] = []
    for sandbox in sandboxes:
        call = calls_through(sandbox, "slow:visit")
        await call()
        (session,) = await sandbox.list_sessions()
        placed.append((server_of(session.session) or "", call))
    placed.sort(key=lambda one: one[0])
    return [[call for _, call in group] for _, group in groupby(placed, key=lambda one: one[0])]


def workers_of(front: psutil.Process) -> list[psutil.Process]:
    """Return the worker processes of a server, without those that keep watch over them."""
    children = front.children(recursive=True)
    return [child for child in children if child.cmdline()[-3:-1] == ["-m", WORKER]]


def run_on(place: int, *processes: psutil.Process) -> None:
    """Let processes run on one core, if there are several."""
    for process in processes:
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {CORES[place]})


def cpu(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds of processes."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def forwarding(url: str) -> float:
    """CPU that a call costs more, in milliseconds, if it reaches the wrong worker, which then calls the right one."""
    workers = workers_of(psutil.Process(pid_of(url)))
    paths = [str(one.laddr) for worker in workers for one in worker.net_connections("unix")]
    sockets = {Path(path).stem: path for path in paths if path.endswith(".sock")}
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(Sandbox(url, token=TOKEN))
        await calls_through(sandbox, "slow:visit")()
        (session,) = await sandbox.list_sessions()
        owner = server_of(session.session)
        spent: dict[bool, float] = {}
        for name, path in sockets.items():
            http = await stack.enter_async_context(
                httpx2.AsyncClient(
                    transport=ErrorResponseTransport(path),
                    headers={"authorization": f"Bearer {TOKEN}"},
                    timeout=60,
                )
            )
            client = await stack.enter_async_context(Client(streamable_http_client(url, http_client=http)))
            call = partial(client.call_tool, "slow_visit", {"session": session.session})
            await latencies(call)
            before = cpu(workers)
            await latencies(call)
            spent[name == owner] = 1000 * (cpu(workers) - before) / CALLS
        return spent[False] - spent[True]


async def rate(url: str) -> float:
    """Return the calls a second of several clients at once, on all cores."""
    async with AsyncExitStack() as stack:
        sandboxes = [await stack.enter_async_context(Sandbox(url, token=TOKEN)) for _ in range(CLIENTS)]
        calls = [call for group in await calls_by_worker(sandboxes) for call in group]
        begin = time.perf_counter()
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(latencies, call)
        return len(calls) * CALLS / (time.perf_counter() - begin)


async def two_workers(one: str, two: str) -> list[Row]:
    """Two workers beside one process, by turns."""
    rates = [(await rate(two), await rate(one)) for _ in range(ROUNDS)]
    many, single = (statistics.median(side) for side in zip(*rates, strict=True))
    # Each round gives one load of the single process, and one of each worker.
    rounds = [(await load(two), await load(one)) for _ in range(ROUNDS)]
    proxied, direct = (
        Load(*map(statistics.median, zip(*(each for loads in side for each in loads), strict=True)))
        for side in zip(*rounds, strict=True)
    )
    forwarded = statistics.median([await forwarding(two) for _ in range(ROUNDS)])
    return [
        Row("calls_a_second_of_two_workers", many, single, "one process"),
        Row("proxy_cpu_of_a_call_ms", proxied.front_ms, 0.0, "nothing", 0.15),
        Row("proxy_cpu_of_a_call_ratio", proxied.front_ms / forwarded, 1.0, "forwarded by a worker", 0.25),
        # The inverse of the calls for each second of CPU, so that less is better.
        Row(
            "cpu_of_a_call_in_workers_ratio",
            proxied.workers_ms / direct.front_ms,
            1.0,
            "one process",
            1 / 0.9,
        ),
        Row("p50_of_a_call_ms", proxied.p50_ms, direct.p50_ms, "one process", 0.3, added=True),
    ]


async def measure_all(one: str, two: str) -> list[Row]:
    """Everything, one after the other."""
    alone = [await slow_calls(one), await beside_a_blocked_one(one)]
    return [*alone, *await two_workers(one, two)]


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
    held = report(rows, "ours", digits=3)
    return 0 if held or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
