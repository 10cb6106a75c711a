"""Actor kernel, compared with asyncio and anyio.

Run `python benchmarks/actors.py [--check]`: prints a table of ratios measured in this run, and as the last line one JSON
object. With `--check` it exits with 1 if a limit is missed.

On a busy machine elapsed time misleads, so time is this process's CPU time (every side keeps one core busy and waits for
nothing else). Both sides of a ratio alternate in many short rounds; the result is the median of the rounds' ratios.
The elapsed time of restarts is printed, too.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from agentflow.actors import (
    Actor,
    Channel,
    ChildSpec,
    ChildStarted,
    DynamicSupervisor,
    Supervisor,
    SupervisorEvent,
)
from agentflow.testing import Fault, FaultyActor

ROUNDS = 11
MESSAGES = 50_000
QUESTIONS = 5_000
ACTORS = 10_000
RESTARTS = 3_000
CAPACITY = 1024

Measure = Callable[[], Awaitable[float]]


async def channel() -> float:
    """One-way messages per second through a channel."""
    pipe: Channel[int] = Channel(CAPACITY)

    async def produce() -> None:
        with pipe.sender() as sender:
            for number in range(MESSAGES):
                await sender.send(number)

    received = 0
    start = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        with pipe.receiver() as receiver:
            async for _ in receiver:
                received += 1
    assert received == MESSAGES
    return MESSAGES / (time.process_time() - start)


async def asyncio_queue() -> float:
    """Return the same through `asyncio.Queue`."""
    queue: asyncio.Queue[int] = asyncio.Queue(CAPACITY)

    async def produce() -> None:
        for number in range(MESSAGES):
            await queue.put(number)

    start = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        for _ in range(MESSAGES):
            await queue.get()
    return MESSAGES / (time.process_time() - start)


async def anyio_stream() -> float:
    """Return the same through anyio's memory stream; fewer messages, as it is slow."""
    messages = MESSAGES // 10
    sender, receiver = anyio.create_memory_object_stream[int](CAPACITY)

    async def produce() -> None:
        with sender:
            for number in range(messages):
                await sender.send(number)

    start = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        with receiver:
            for _ in range(messages):
                await receiver.receive()
    return messages / (time.process_time() - start)


class Echo(Actor[int, int]):
    """Answers with the question."""

    async def receive(self, message: int) -> int:
        """Answer."""
        return message


async def ask() -> float:
    """Questions answered per second, each with a deadline, one after the other."""
    async with Supervisor([ChildSpec(id="echo", start=Echo)]) as supervisor:
        echo = supervisor.child("echo", Echo)
        start = time.process_time()
        for number in range(QUESTIONS):
            await echo.ask(number)
        return QUESTIONS / (time.process_time() - start)


async def ping_pong() -> float:
    """Round trips per second over two `asyncio.Queue`s, without a deadline."""
    there: asyncio.Queue[int] = asyncio.Queue(CAPACITY)
    back: asyncio.Queue[int] = asyncio.Queue(CAPACITY)

    async def answer() -> None:
        for _ in range(QUESTIONS):
            await back.put(await there.get())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer())
        start = time.process_time()
        for number in range(QUESTIONS):
            await there.put(number)
            await back.get()
        return QUESTIONS / (time.process_time() - start)


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


async def idle_actors() -> tuple[float, float]:
    """Megabytes that idle actors cost, and how many start per second."""
    gc.collect()
    before = resident_bytes()
    async with DynamicSupervisor(ChildSpec(id="echo", start=Echo)) as supervisor:
        start = time.process_time()
        for _ in range(ACTORS):
            await supervisor.start_child()
        seconds = time.process_time() - start
        gc.collect()
        return (resident_bytes() - before) / 1e6, ACTORS / seconds


async def restarts() -> list[tuple[float, float]]:
    """Milliseconds, of CPU time and elapsed, from a crash to the restarted child being ready, of many restarts."""
    started = asyncio.Event()

    def watch(event: SupervisorEvent) -> None:
        if isinstance(event, ChildStarted):
            started.set()

    took: list[tuple[float, float]] = []
    spec = ChildSpec(id="faulty", start=FaultyActor)
    async with Supervisor([spec], intensity=RESTARTS + 1, period=3600, observer=watch) as supervisor:
        for _ in range(RESTARTS):
            started.clear()
            start, cpu_start = time.perf_counter(), time.process_time()
            await supervisor.child("faulty", FaultyActor).tell(Fault.CRASH)
            await started.wait()
            took.append(((time.process_time() - cpu_start) * 1e3, (time.perf_counter() - start) * 1e3))
    return took


def take_turns(measures: dict[str, Measure]) -> dict[str, list[float]]:
    """Each measure in each round, the measures by turns."""
    taken: dict[str, list[float]] = {name: [] for name in measures}

    async def once(measure: Measure) -> float:
        return await measure()

    for _ in range(ROUNDS):
        for name, measure in measures.items():
            taken[name].append(asyncio.run(once(measure)))
    return taken


def ratio(over: list[float], under: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return sorted(values)[int(len(values) * 0.99)]


def main() -> int:
    """Measure, print, check."""
    parser = argparse.ArgumentParser(description="Measure the kernel.")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a floor is missed")
    check = parser.parse_args().check

    megabytes, starts = asyncio.run(idle_actors())
    speeds = take_turns(
        {
            "channel": channel,
            "asyncio.Queue": asyncio_queue,
            "anyio stream": anyio_stream,
            "ask": ask,
            "ping-pong": ping_pong,
        }
    )
    took = asyncio.run(restarts())
    restart_p99, restart_elapsed_p99 = p99([cpu for cpu, _ in took]), p99([elapsed for _, elapsed in took])
    rows: list[tuple[str, float, str, float, bool]] = [
        ("channel / anyio send+receive", ratio(speeds["channel"], speeds["anyio stream"]), ">=", 10.0, True),
        ("channel / asyncio.Queue(1024)", ratio(speeds["channel"], speeds["asyncio.Queue"]), ">=", 1.4, True),
        ("ask / ping-pong over asyncio.Queue", ratio(speeds["ask"], speeds["ping-pong"]), ">=", 1.0, True),
        ("10,000 idle actors, MB", megabytes, "<", 100.0, False),
        ("restart of a crashed child, p99 CPU ms", restart_p99, "<", 1.0, False),
    ]
    met = True
    for name, figure, sign, floor, at_least in rows:
        good = figure >= floor if at_least else figure < floor
        met = met and good
        print(f"{name:<38} {figure:9.2f}   {sign} {floor:g}   {'ok' if good else 'MISSED'}")
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, speed in medians.items():
        print(f"{name + ', per second':<38} {speed:9,.0f}")
    print(f"{'starts of actors, per second':<38} {starts:9,.0f}")
    print(f"{'restart, p99 ms elapsed':<38} {restart_elapsed_p99:9.2f}")
    figures = {name: round(figure, 3) for name, figure, *_ in rows}
    figures["restart of a crashed child, p99 ms elapsed"] = round(restart_elapsed_p99, 3)
    figures |= {f"{name} per second": round(speed) for name, speed in medians.items()}
    print(json.dumps({"benchmark": "actors", "met": met, **figures, "starts per second": round(starts)}))
    return 1 if check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
