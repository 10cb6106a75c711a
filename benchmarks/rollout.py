"""A whole rollout, from tasks to files, compared with a bare driver that makes the same model calls.

Run `python benchmarks/rollout.py [--check] [--short]`: prints a table measured in this run, and as the last line one JSON
object. With `--check` it exits with 1 if a limit is missed.

The fake endpoint runs in its own process and takes 50 ms to answer. A single agent calls a tool three times, then
answers: four sequential calls. The driver is plain aiohttp: as many concurrent chains of as many calls, and no tools, no
episodes, no disk. The endpoint measures the overhead per call: the median time from one request of a conversation
to the next, ours minus the driver's. Inspect's runner solves the same tasks at the same endpoint with its own tool.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import NamedTuple

import aiohttp
import anyio
import anyio.to_thread

from agentflow.rollouts import RolloutConfig, RolloutRun, RolloutSummary, assign
from agentflow.sandbox import register_api_tool
from agentflow.testing import fake_endpoint
from agentflow.trace import Task

DELAY_MS = 50
TURNS = 3
CALLS = TURNS + 1
"""Calls of a single agent's episode."""
SMALL, WORKERS = 32, 8
LARGE, MANY = 512, 256

LOOP = {"use_uvloop": find_spec("uvloop") is not None}
"""The event loop of both sides, chosen as `agentflow rollout` does."""

FLOORS = {
    "small_times_ideal": ("most", 1.25),
    "large_share_of_driver": ("least", 0.5),
    "team_share_of_driver": ("least", 0.5),
    "added_ms_per_call": ("most", 2.0),
}
"""Limits of `--check`."""


@register_api_tool("shelf:search", read_only=True)
async def search(query: str) -> str:
    """Search the shelf. Use it to look something up.

    :param query: what to look for
    """
    return found(query)


def found(query: str) -> str:
    return f"{query[:40]} stands on the shelf, number {len(query)}, beside the lantern of the harbour."


def tasks(count: int) -> list[Task]:
    """So many questions."""
    return [
        Task(
            index=number,
            id=f"t{number}",
            question=f"What stands on shelf number {number}?",
            references=("x",),
        )
        for number in range(count)
    ]


def config(url: str, folder: str, workers: int, **more: object) -> RolloutConfig:
    """Settings of a rollout against the endpoint."""
    given = {
        "model_name": "fake",
        "base_url": url,
        "available_tools": ["shelf:search"],
        "output_dir": folder,
        "max_workers": workers,
        "max_concurrency": 512,
        "agent": "single",
        "max_turns": 10,
        "max_retries": 0,
        **more,
    }
    return RolloutConfig.model_validate(given)


async def ours(url: str, count: int, workers: int, **more: object) -> tuple[float, RolloutSummary]:
    """Seconds of the working part of a rollout, and what it gave."""
    with tempfile.TemporaryDirectory() as folder:
        settings = config(url, folder, workers, **more)
        run = RolloutRun(settings)
        began, ended = 0.0, 0.0
        summary: RolloutSummary | None = None

        async def watch() -> None:
            nonlocal began, ended
            # Setup before the first episode (tools, journal) is not a cost of episodes.
            while not run.status().active:  # noqa: ASYNC110 - there is nobody who would tell
                await anyio.sleep(0.001)
            began = time.perf_counter()
            while (status := run.status()).done < status.seeds:  # noqa: ASYNC110 - the same
                await anyio.sleep(0.001)
            ended = time.perf_counter()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            summary = await run.run(assign(settings, tasks(count)))
    assert summary is not None
    return ended - began, summary


async def driver(url: str, chains: int, workers: int, calls: int) -> float:
    """Seconds of a plain client for as many chains of calls."""
    tools = [
        {"type": "function", "function": {"name": "shelf_search", "description": "Search.", "parameters": {
            "type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}
    ]  # fmt: skip
    room = anyio.Semaphore(workers)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def chain(number: int) -> None:
            asked = f"What stands on shelf {number}? " * 40
            body = {"model": "fake", "messages": [{"role": "user", "content": asked}], "tools": tools}
            async with room:
                for _ in range(calls):
                    async with session.post(f"{url}/chat/completions", json=body) as answer:
                        json.loads(await answer.read())

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(chains):
                group.start_soon(chain, number)
        return time.perf_counter() - began


def inspect(url: str, count: int, workers: int) -> float:
    """Seconds of Inspect's runner: the same tasks, a tool of its own, its solver that calls tools until it answers."""
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import Tool, tool

    @tool(name="shelf_search")
    def shelf() -> Tool:
        async def execute(query: str) -> str:
            """Search the shelf. Use it to look something up.

            Args:
                query: what to look for
            """
            return found(query)

        return execute

    samples = [Sample(id=task.id, input=task.question, target="x") for task in tasks(count)]
    task = inspect_ai.Task(dataset=samples, solver=[use_tools(shelf()), generate()], scorer=match())
    model = get_model("openai-api/fake/fake", base_url=url, api_key="none")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        # Its own types are not known in full.
        evaluate: Callable[..., object] = vars(inspect_ai)["eval"]
        evaluate(task, model=model, max_samples=workers, max_connections=512, log_dir=folder, display="none")
        return time.perf_counter() - began


class Round(NamedTuple):
    """One way through."""

    seconds: float
    """Elapsed seconds."""
    turn_ms: float
    """From a request of a conversation to its next one: the median."""
    summary: RolloutSummary | None = None
    """Result of the rollout."""


def quickest(rounds: int, work: Callable[[str], Awaitable[tuple[float, RolloutSummary | None]]]) -> Round:
    """The quickest of some rounds; each has a loop and an endpoint of its own."""

    async def one() -> Round:
        async with fake_endpoint(delay_ms=DELAY_MS, tool_turns=TURNS) as url:
            seconds, summary = await work(url)
            return Round(seconds, await turn_ms(url), summary)

    return min((anyio.run(one, backend_options=LOOP) for _ in range(rounds)), key=lambda each: each.seconds)


async def turn_ms(url: str) -> float:
    """Return the endpoint's counters."""
    async with aiohttp.ClientSession() as session, session.get(url.replace("/v1", "/stats")) as answer:
        return (await answer.json())["median_turn_us"] / 1000


def measure(*, short: bool) -> dict[str, float]:
    """All figures."""
    rounds = 1 if short else 3
    large, many = (128, 64) if short else (LARGE, MANY)
    figures: dict[str, float] = {}

    def rollouts(count: int, workers: int, **more: object) -> tuple[Round, RolloutSummary]:
        found = quickest(rounds, lambda url: ours(url, count, workers, **more))
        assert found.summary is not None
        return found, found.summary

    def plain(count: int, workers: int, calls: int) -> Round:
        async def work(url: str) -> tuple[float, None]:
            return await driver(url, count, workers, calls), None

        return quickest(rounds, work)

    small, summary = rollouts(SMALL, WORKERS)
    assert summary.calls_per_task == {"agent": CALLS}, summary.calls_per_task
    bare = plain(SMALL, WORKERS, CALLS)
    figures["small_seconds"] = small.seconds
    figures["small_times_ideal"] = small.seconds / (SMALL // WORKERS * CALLS * DELAY_MS / 1000)
    figures["small_driver_seconds"] = bare.seconds
    figures["turn_ms"] = small.turn_ms
    figures["driver_turn_ms"] = bare.turn_ms
    figures["added_ms_per_call"] = small.turn_ms - bare.turn_ms

    found, _ = rollouts(large, many)
    bare = plain(large, many, CALLS)
    figures["large_calls_per_second"] = large * CALLS / found.seconds
    figures["large_driver_calls_per_second"] = large * CALLS / bare.seconds
    figures["large_share_of_driver"] = bare.seconds / found.seconds

    found, summary = rollouts(large // 2, many, agent="team", max_turns=TURNS)
    calls = round(sum(summary.calls_per_task.values()))
    bare = plain(large // 2, many, calls)
    figures["team_calls_per_task"] = sum(summary.calls_per_task.values())
    figures["team_calls_per_second"] = large // 2 * calls / found.seconds
    figures["team_share_of_driver"] = bare.seconds / found.seconds
    return figures


def measure_inspect(figures: dict[str, float]) -> None:
    """Inspect's runner, as a ratio to ours."""

    async def other(url: str) -> tuple[float, None]:
        return await anyio.to_thread.run_sync(inspect, url, SMALL, WORKERS), None

    figures["inspect_seconds"] = quickest(1, other).seconds
    figures["inspect_times_ours"] = figures["inspect_seconds"] / figures["small_seconds"]


def missed(figures: dict[str, float]) -> list[str]:
    """Floors that are not held."""
    return [
        f"{name}: {figures[name]:.3g}, {side} {floor:g} is wanted"
        for name, (side, floor) in FLOORS.items()
        if (figures[name] > floor if side == "most" else figures[name] < floor)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a floor is missed")
    parser.add_argument("--short", action="store_true", help="one round of a quarter of the tasks")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    figures = measure(short=given.short)
    try:
        measure_inspect(figures)
    except ImportError as error:
        print(f"without Inspect: {error}")
    for name, figure in figures.items():
        print(f"{name:<32}{figure:>12.3f}")
    for line in missed(figures):
        print(f"missed: {line}")
    print(json.dumps(figures))
    return int(given.check and bool(missed(figures)))


if __name__ == "__main__":
    sys.exit(main())
