"""A whole run, from seeds to files, compared with a bare driver that makes the same model calls.

Run `python benchmarks/growth.py [--check] [--seeds N]`: prints a table measured in this run, and as the last line one JSON
object. With `--check` it exits with 1 if a limit is missed.

The fake endpoint runs in its own process. The driver is plain aiohttp: the same number of calls with the same depth
of dependency, and no tools, no tree, no disk. `--seeds` sets the size of the run whose memory is measured.
"""

import argparse
import cProfile
import json
import logging
import pstats
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import aiohttp
import anyio
import msgspec

from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisPipeline
from agentflow.testing import fake_endpoint

LEVELS = (1, 2, 4, 8, 8)
"""Planner calls of a tree: depth 5, branching 2, threshold 3."""
SEEDS = 32
"""Of the job that is timed, with searches and with code."""
PAIRS = 3
"""Paths a seed; each costs a question and an answer without the path."""
ACTIONS = 30
"""Actions a seed."""
DOCUMENTS = 2_000
"""Of the corpus that is searched."""
CORPUS: list[Path] = []
"""Its folder, once written."""
LONGEST_PATH: list[int] = []
"""Of each run, the model calls that had to wait for each other."""

LOOP = {"use_uvloop": find_spec("uvloop") is not None}
"""The event loop of both sides, chosen as `agentflow synth` does."""

Place = tuple[str, int, str]
"""A function, in a profile: its file, line and name."""

FLOORS = {
    "rag_times_driver": ("most", 3.0),
    "code_actions_per_second": ("least", 150.0),
    "share_of_bound": ("least", 0.9),
    "memory_mb": ("most", 500.0),
    "seed_time_growth": ("most", 1.3),
}
"""Limits of `--check`."""

PARTS = {
    "model call": ("/agentflow/models/", "/aiohttp/", "/yarl/", "/multidict/"),
    "tool": ("/agentflow/sandbox/", "/mcp_servers/", "/runtimes/", "/pydantic", "/tantivy/"),
    "journal": ("/agentflow/journal/", "/sqlalchemy/", "/sqlite3/"),
    "growth": ("/agentflow/growth/", "/agentflow/team/", "/agentflow/trajectory/", "/agentflow/actors/", "/rapidfuzz/"),
    "questions and files": ("/agentflow/synthesis/", "/agentflow/runs/", "/agentflow/text/"),
}  # fmt: skip
"""Parts of the CPU profile, by source folder."""


def config(url: str, folder: Path, **more: object) -> SynthesisConfig:
    """Settings of a run against the endpoint."""
    given = {
        "model_name": "fake",
        "base_url": url,
        "available_tools": ["rag_search"],
        "output_dir": str(folder),
        "max_concurrency": 512,
        "control": False,
        "resource_init_configs": {"rag": {"index_path": str(CORPUS[0])}},
        **more,
    }
    return SynthesisConfig.model_validate(given)


def vocabulary() -> list[str]:
    """Words that nobody has used yet."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    starts = [one.capitalize() for one in syllables[::4]]
    return [one + two + three for one in starts for two in syllables for three in syllables[::9]]


def seeds(count: int, first: int = 0) -> list[str]:
    """Different corners of the corpus."""
    words = vocabulary()
    chosen = [random.Random(number).sample(words, 30) for number in range(first, first + count)]
    return [f"Explore {' '.join(corner)} ." for corner in chosen]


def write_corpus(folder: Path) -> Path:
    """Documents enough that every search finds something new."""
    words, rng = vocabulary(), random.Random(1)
    path = folder / "corpus.jsonl"
    with path.open("w", encoding="utf-8") as lines:
        for number in range(DOCUMENTS):
            sentences = [
                f"{a} {b.lower()}s {rng.randrange(2, 900)} {c.lower()} by {d}, {e.lower()} {rng.randrange(900, 1900)}."
                for a, b, c, d, e in (rng.sample(words, 5) for _ in range(6))
            ]
            document = {"id": f"d{number}", "title": rng.choice(words), "text": " ".join(sentences)}
            lines.write(json.dumps(document) + "\n")
    return path


async def run(url: str, count: int, first: int = 0, **more: object) -> float:
    """Seconds of a whole run."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = SynthesisPipeline(config(url, Path(folder), **more))
        begin = time.perf_counter()
        report = await pipeline.arun(seeds(count, first))
        seconds = time.perf_counter() - begin
        LONGEST_PATH.append(longest_path(Path(folder) / "journal.db"))
    if report.nodes < 0.97 * count * ACTIONS:
        print(f"only {report.nodes} of {count * ACTIONS} actions: the trees did not grow to their shape")
    return seconds


def longest_path(journal: Path) -> int:
    """Model calls of a run that had to wait for each other, along its longest chain.

    A level is as long as the node of it that was asked most often; a path's drafts and checks come one after the other.
    """
    with closing(sqlite3.connect(journal)) as database:
        keys = database.execute("SELECT seed, key FROM agentflow_entries").fetchall()
    asks: dict[tuple[int, int], int] = defaultdict(int)
    tries: dict[tuple[int, str], int] = defaultdict(int)
    for seed, key in keys:
        kind, place, *number = key.split("/")
        if kind == "plan":
            level = 0 if place == "root" else place.count("-") + 1
            asks[seed, level] = max(asks[seed, level], int(number[0]) + 1)
        elif kind in {"write", "answer"}:
            tries[seed, place] += 1
    chains: dict[int, int] = defaultdict(int)
    for (seed, _), count in asks.items():
        chains[seed] += count
    for seed in chains:
        chains[seed] += max((count for (of, _), count in tries.items() if of == seed), default=0)
    return max(chains.values())


async def calls_made(url: str) -> int:
    """Requests that the endpoint has answered."""
    async with aiohttp.ClientSession() as session, session.get(url.replace("/v1", "/stats")) as answer:
        return cast("int", (await answer.json())["calls"])


async def drive(url: str, count: int, calls: int) -> float:
    """Seconds of the bare driver for so many seeds and calls in all."""
    levels = [*LEVELS, PAIRS, PAIRS]
    extra = iter(range(calls - count * sum(levels)))
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    story = " ".join(f"Island number {number} has a lighthouse and a keeper." for number in range(75))

    async with aiohttp.ClientSession(connector=connector) as session:

        async def call(name: str) -> None:
            body = msgspec.json.encode(
                {"model": "fake", "messages": [{"role": "user", "content": f"{name} {story}"}]}
            )
            async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
                msgspec.json.decode(await response.read())

        async def seed(number: int) -> None:
            for level, width in enumerate(levels):
                # Calls of ours beyond the nominal ones (duplicates asked for again) are shared out, one per node.
                more = sum(1 for _ in zip(range(width), extra, strict=False))
                async with anyio.create_task_group() as tasks:
                    for place in range(width + more):
                        tasks.start_soon(call, f"{number} {level} {place}")

        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(seed, number)
        return time.perf_counter() - begin


async def rag_job(figures: dict[str, float], rounds: int = 3) -> None:
    """32 seeds with real searches, beside the driver; the best of a few rounds that take turns."""
    async with fake_endpoint(delay_ms=50) as url:
        await run(url, 4, first=900)
        ours: list[float] = []
        driver: list[float] = []
        made = 0
        for number in range(rounds):
            before = await calls_made(url)
            ours.append(await run(url, SEEDS, first=100 * number))
            made = await calls_made(url) - before
            driver.append(await drive(url, SEEDS, made))
        figures["rag_calls"] = made
        figures["rag_seconds"] = min(ours)
        figures["driver_seconds"] = min(driver)
        figures["rag_times_driver"] = min(ours) / min(driver)
        figures["calls_per_second"] = made / min(ours)
        await cpu_by_part(url, figures)


async def cpu_by_part(url: str, figures: dict[str, float]) -> None:
    """CPU of a node, split by where the code lies; the split from a profile, the sum from a run without one."""
    begin = time.process_time()
    await run(url, 16, first=600)
    whole = (time.process_time() - begin) / (16 * ACTIONS) * 1000
    profile = cProfile.Profile()
    threads_begin, begin = time.process_time(), time.thread_time()
    profile.enable()
    await run(url, 16, first=700)
    profile.disable()
    here = time.thread_time() - begin
    others = time.process_time() - threads_begin - here
    shares: defaultdict[str, float] = defaultdict(float, {"journal": others})
    stats: dict[Place, tuple[int, int, float, float, dict[Place, tuple[int, int, float, float]]]]
    stats = vars(pstats.Stats(profile))["stats"]
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if not file.startswith("~"):
            shares[part_of(file)] += own
            continue
        # Attribute a built-in to its caller.
        for (caller, _, _), times in callers.items():
            shares[part_of(caller)] += times[2]
    shares.pop("waiting", None)
    total = sum(shares.values())
    for part in (*PARTS, "event loop and the rest"):
        figures[f"cpu_ms_per_node {part}"] = whole * shares[part] / total
    figures["cpu_ms_per_node"] = whole


def part_of(file: str) -> str:
    """The part that this file belongs to."""
    if file.endswith("selectors.py"):
        return "waiting"
    found = (part for part, places in PARTS.items() if any(place in file for place in places))
    return next(found, "event loop and the rest")


async def code_job(figures: dict[str, float]) -> None:
    """Python sessions: every branch in its own fork."""
    async with fake_endpoint(delay_ms=50) as url:
        await run(url, 1, first=900, available_tools=["code_run"])
        seconds = await run(url, SEEDS, available_tools=["code_run"])
        figures["code_actions_per_second"] = SEEDS * ACTIONS / seconds


async def slow_job(figures: dict[str, float]) -> None:
    """500 ms a call: how near the run comes to what its dependencies allow."""
    async with fake_endpoint(delay_ms=500) as url:
        seconds = await run(url, 8)
    bound = LONGEST_PATH[-1] * 0.5
    figures["slow_seconds"] = seconds
    figures["slow_bound_seconds"] = bound
    figures["share_of_bound"] = bound / seconds


def many_job(figures: dict[str, float], count: int) -> None:
    """Many seeds, in a process of its own: memory, and whether later seeds cost more."""
    out = subprocess.run(
        [sys.executable, __file__, "--many", str(count)], capture_output=True, text=True, check=True
    ).stdout
    figures.update(json.loads(out.splitlines()[-1]))


async def many(count: int) -> dict[str, float]:
    """The part of `many_job` that runs in the other process."""
    async with fake_endpoint(delay_ms=50) as url:
        await run(url, 4, first=9000)
        small = await run(url, count // 10)
        large = await run(url, count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "many_seeds": count,
        "memory_mb": peak,
        "ms_per_seed": large / count * 1000,
        "seed_time_growth": (large / count) / (small / (count // 10)),
    }


def show(figures: dict[str, float]) -> None:
    """The table."""
    print(f"{SEEDS} seeds, 50 ms a call, real searches, journal on")
    print(
        f"  ours          {figures['rag_seconds']:7.2f} s   {figures['calls_per_second']:6.0f} model calls/s"
    )
    print(f"  bare driver   {figures['driver_seconds']:7.2f} s   {figures['rag_times_driver']:6.2f} x")
    print(f"  CPU of a node {figures['cpu_ms_per_node']:7.2f} ms")
    for part in (*PARTS, "event loop and the rest"):
        print(f"    {part:<26}{figures[f'cpu_ms_per_node {part}']:6.2f} ms")
    print(
        f"{SEEDS} seeds, Python sessions, a fork for every branch: {figures['code_actions_per_second']:.0f} actions/s"
    )
    print(
        f"8 seeds, 500 ms a call: {figures['slow_seconds']:.2f} s, {figures['share_of_bound']:.0%} of the bound"
    )
    print(
        f"{figures['many_seeds']:.0f} seeds: {figures['memory_mb']:.0f} MB at most, {figures['ms_per_seed']:.0f} ms a "
        f"seed, {figures['seed_time_growth']:.2f} x that of a tenth of them"
    )


def missed(figures: dict[str, float]) -> Sequence[str]:
    """The floors that are missed."""
    return [
        f"{name}: {figures[name]:.2f}, at {kind} {floor}"
        for name, (kind, floor) in FLOORS.items()
        if (figures[name] > floor if kind == "most" else figures[name] < floor)
    ]


async def measure(figures: dict[str, float]) -> None:
    """All that happens in this process."""
    await rag_job(figures)
    await code_job(figures)
    await slow_job(figures)


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    parser.add_argument("--seeds", type=int, default=1000, help="seeds of the run whose memory is watched")
    parser.add_argument("--many", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        CORPUS.append(write_corpus(Path(folder)))
        if options.many:
            print(json.dumps(anyio.run(many, options.many, backend_options=LOOP)))
            return 0
        figures: dict[str, float] = {}
        anyio.run(measure, figures, backend_options=LOOP)
        many_job(figures, options.seeds)
    show(figures)
    lines = missed(figures)
    for line in lines:
        print(f"missed: {line}")
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))
    return 1 if lines and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
