"""A whole run, from seeds to files, compared with a bare driver that makes the same model calls.

Run `python benchmarks/growth.py [--check] [--seeds N]`: prints a table measured in this run, and as the last line one JSON
object. With `--check` it exits with 1 if a limit is missed.

The fake endpoint runs in its own process. The driver is plain aiohttp without tools, tree, facts and disk. It reads from the
journal of our run which calls each seed made, and which of them had to wait for others: growing, extracting facts, and
several rounds of wording and checking questions. It makes as many calls in as many steps, those of a step at once. The
bound of the run with slow calls is the number of steps of its longest seed. Growing trees alone is measured, too: what
remains is the cost of the questions, whose facts are computed here. `--seeds` sets the size of the run whose memory is
measured.
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
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import aiohttp
import anyio
import msgspec

from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisPipeline
from agentflow.testing import fake_endpoint

SEEDS = 32
"""Of the job that is timed, with searches and with code."""
ACTIONS = 30
"""Most actions a seed; a search that repeats the results of another ends its branch."""
DOCUMENTS = 2_000
"""Of the corpus that is searched."""
CORNER = 30
"""Documents that a seed names."""
STRIDE = 7
"""Documents between two seeds, coprime to the number of corners."""
RELATIONS = {"employs": 1, "supplies": 2, "neighbours": 3, "follows": 5, "teaches": 8}
"""Relations of the corpus, and the distance of the document that a document names with each."""
CORPUS: list[Path] = []
"""Its folder, once written."""
EVIDENCE_SAMPLES = 2
"""Readers of the evidence that are asked at once; a further one decides."""

GROWTH_ALONE = {"max_selected_traj": 0}
"""Settings of a run that asks no question."""

LOOP = {"use_uvloop": find_spec("uvloop") is not None}
"""The event loop of both sides, chosen as `agentflow synth` does."""

Place = tuple[str, int, str]
"""A function, in a profile: its file, line and name."""

FLOORS = {
    "growth_times_driver": ("most", 3.0),
    "growth_share_of_bound": ("least", 0.9),
    "rag_times_driver": ("most", 5.0),
    "cpu_ms_per_call": ("most", 2.0),
    "code_actions_per_second": ("least", 150.0),
    "share_of_bound": ("least", 0.75),
    "memory_mb": ("most", 500.0),
    "seed_time_growth": ("most", 1.3),
}
"""Limits of `--check`."""

PARTS = {
    "model call": ("/agentflow/models/", "/aiohttp/", "/yarl/", "/multidict/"),
    "tool": ("/agentflow/sandbox/", "/mcp_servers/", "/runtimes/", "/pydantic", "/tantivy/"),
    "journal": ("/agentflow/journal/", "/sqlalchemy/", "/sqlite3/"),
    "facts": ("/agentflow/facts/", "/agentflow/text/"),
    "growth": ("/agentflow/engine/", "/agentflow/team/", "/agentflow/trace/", "/agentflow/actors/", "/rapidfuzz/"),
    "questions and files": ("/agentflow/synthesis/", "/agentflow/runs/"),
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
    names = document_names()
    starts = [number * STRIDE % (DOCUMENTS - CORNER) for number in range(first, first + count)]
    return [f"Explore {' '.join(names[start : start + CORNER])} ." for start in starts]


def document_names() -> list[str]:
    """Names of the documents; a document names some of the next ones."""
    return random.Random(0).sample(vocabulary(), DOCUMENTS)


def write_corpus(folder: Path) -> Path:
    """Documents enough that every search finds something new; each names others, so that questions span several.

    An observation states 15 facts, those of the bundled corpus 17.
    """
    words, rng = vocabulary(), random.Random(1)
    names = document_names()
    counted = map(str.lower, rng.sample(words, DOCUMENTS))
    path = folder / "corpus.jsonl"
    with path.open("w", encoding="utf-8") as lines:
        for number, name in enumerate(names):
            sentences = [
                f"{name} {verb} {names[(number + distance) % DOCUMENTS]}."
                for verb, distance in rng.sample(sorted(RELATIONS.items()), 2)
            ]
            sentences.append(f"{name} has {rng.randrange(2, 900)} {next(counted)}.")
            sentences += [
                f"In {rng.randrange(900, 1900)} {' '.join(rng.sample(words, 8)).lower()}." for _ in "123"
            ]
            rng.shuffle(sentences)
            document = {"id": f"d{number}", "title": name, "text": " ".join(sentences)}
            lines.write(json.dumps(document) + "\n")
    return path


class Measured(NamedTuple):
    """A whole run."""

    seconds: float
    actions: int
    steps: list[list[int]]
    """Of each seed, the number of model calls in each step; a step begins when the one before it has ended."""

    @property
    def calls(self) -> int:
        """Model calls of all seeds."""
        return sum(map(sum, self.steps))

    @property
    def longest(self) -> int:
        """Most steps of a seed."""
        return max(map(len, self.steps))


async def run(url: str, count: int, first: int = 0, **more: object) -> Measured:
    """Make a whole run, and read its model calls from its journal."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = SynthesisPipeline(config(url, Path(folder), **more))
        begin = time.perf_counter()
        report = await pipeline.arun(seeds(count, first))
        seconds = time.perf_counter() - begin
        steps = steps_in(Path(folder) / "journal.db")
    if report.nodes < 0.85 * count * ACTIONS:
        print(f"only {report.nodes} of {count * ACTIONS} actions: the trees did not grow to their shape")
    if report.drafts < count and not more:
        print(f"only {report.drafts} drafts of {count} seeds: too few questions are asked")
    return Measured(seconds, report.nodes, steps)


def steps_in(journal: Path) -> list[list[int]]:
    """Return the model calls of each seed by step, from the keys of a journal."""
    with closing(sqlite3.connect(journal)) as database:
        rows = database.execute("SELECT seed, key FROM agentflow_entries ORDER BY seed, ordinal")
        return [
            steps_of([key.split("/") for _, key in of_seed]) for _, of_seed in groupby(rows, itemgetter(0))
        ]


def steps_of(keys: Sequence[Sequence[str]]) -> list[int]:
    """Return the number of calls in each step of a seed: the levels of the tree, the facts, the rounds of questions."""
    grown: Counter[tuple[int, int]] = Counter()
    once: Counter[str] = Counter()
    questions: defaultdict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    last: dict[str, int] = {}
    worded: dict[str, int] = {}
    for position, (kind, *rest) in enumerate(keys):
        if kind == "plan":
            grown[0 if rest[0] == "root" else rest[0].count("-") + 1, int(rest[1])] += 1
        elif kind in {"facts", "aliases"}:
            once[kind] += 1
        elif kind in {"word", "look", "translate", "read", "recall"}:
            questions[rest[0]][step_of_question(kind, rest[1:])] += 1
            last[rest[0]] = position
            worded.setdefault(rest[0], position)
    steps = [grown[place] for place in sorted(grown)]
    steps += [once[kind] for kind in ("facts", "aliases") if once[kind]]
    for of_round in rounds(worded, last):
        chains = [[questions[one][place] for place in sorted(questions[one])] for one in of_round]
        steps += map(sum, zip_longest(*chains, fillvalue=0))
    return steps


def step_of_question(kind: str, rest: Sequence[str]) -> tuple[int, ...]:
    """Return the place of a call in the chain of a question: draft, check, and sample if that waits for the one before."""
    draft, sample = int(rest[0]), rest[-1]
    match kind:
        case "word" | "look":
            return draft, 0 if kind == "word" else 1, 0
        case "translate":
            return draft, 2, int(sample)
        case "read" if sample.isdigit():
            return draft, 3, int(int(sample) >= EVIDENCE_SAMPLES)
        case "read" if sample.startswith("without"):
            return draft, 5, int(sample.rpartition("-")[2])
        case _:
            return draft, 4, 0


def rounds(worded: Mapping[str, int], last: Mapping[str, int]) -> list[list[str]]:
    """Return the questions of each round: its first is worded when all of the round before are decided."""
    found: list[list[str]] = []
    for one in sorted(worded, key=worded.__getitem__):
        if not found or all(last[other] < worded[one] for other in found[-1]):
            found.append([])
        found[-1].append(one)
    return found


async def drive(url: str, steps: Sequence[Sequence[int]]) -> float:
    """Return the seconds of the bare driver for the calls of these seeds."""
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

        async def seed(number: int, widths: Sequence[int]) -> None:
            for step, width in enumerate(widths):
                async with anyio.create_task_group() as tasks:
                    for place in range(width):
                        tasks.start_soon(call, f"{number} {step} {place}")

        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number, widths in enumerate(steps):
                tasks.start_soon(seed, number, widths)
        return time.perf_counter() - begin


async def rag_job(figures: dict[str, float], rounds: int = 3) -> None:
    """32 seeds with real searches, beside the driver; the best of a few rounds that take turns."""
    async with fake_endpoint(delay_ms=50) as url:
        await run(url, 4, first=900)
        grown, driver = await beside_driver(url, rounds, **GROWTH_ALONE)
        figures["growth_calls"] = grown.calls
        figures["growth_seconds"] = grown.seconds
        figures["growth_times_driver"] = grown.seconds / driver
        ours, driver = await beside_driver(url, rounds)
        figures["rag_calls"] = ours.calls
        figures["rag_steps"] = ours.longest
        figures["rag_seconds"] = ours.seconds
        figures["driver_seconds"] = driver
        figures["rag_times_driver"] = ours.seconds / driver
        figures["calls_per_second"] = ours.calls / ours.seconds
        await cpu_by_part(url, figures)


async def beside_driver(url: str, rounds: int, **more: object) -> tuple[Measured, float]:
    """Return our run and the seconds of the driver, of the best of a few rounds."""
    measured: list[tuple[Measured, float]] = []
    for number in range(rounds):
        ours = await run(url, SEEDS, first=100 * number, **more)
        measured.append((ours, await drive(url, ours.steps)))
    return min(measured, key=lambda pair: pair[0].seconds / pair[1])


async def cpu_by_part(url: str, figures: dict[str, float]) -> None:
    """CPU of a node, split by where the code lies; that of the event loop by a profile of another run."""
    begin, loop_begin, facts_begin = time.process_time(), time.thread_time(), worker_seconds()
    ours = await run(url, 16, first=600)
    here, facts = time.thread_time() - loop_begin, worker_seconds() - facts_begin
    whole = time.process_time() - begin
    profile = cProfile.Profile(time.thread_time)
    profile.enable()
    await run(url, 16, first=700)
    profile.disable()
    shares: defaultdict[str, float] = defaultdict(float)
    stats: dict[Place, tuple[int, int, float, float, dict[Place, tuple[int, int, float, float]]]]
    stats = vars(pstats.Stats(profile))["stats"]
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if not file.startswith("~"):
            shares[part_of(file)] += own
            continue
        # Attribute a built-in to its caller.
        for (caller, _, _), times in callers.items():
            shares[part_of(caller)] += times[2]
    seconds = {part: here * share / sum(shares.values()) for part, share in shares.items()}
    seconds["facts"] += facts
    seconds["journal"] += whole - here - facts
    for part in (*PARTS, "event loop and the rest"):
        figures[f"cpu_ms_per_node {part}"] = seconds[part] / ours.actions * 1000
    figures["cpu_ms_per_node"] = whole / ours.actions * 1000
    figures["cpu_ms_per_call"] = whole / ours.calls * 1000


def worker_seconds() -> float:
    """CPU of the threads in which the pure stages run."""
    workers = [one.ident for one in threading.enumerate() if one.name == "AnyIO worker thread"]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(one)) for one in workers if one)


def part_of(file: str) -> str:
    """The part that this file belongs to."""
    found = (part for part, places in PARTS.items() if any(place in file for place in places))
    return next(found, "event loop and the rest")


async def code_job(figures: dict[str, float]) -> None:
    """Python sessions: every branch in its own fork."""
    async with fake_endpoint(delay_ms=50) as url:
        await run(url, 1, first=900, available_tools=["code_run"])
        ours = await run(url, SEEDS, available_tools=["code_run"])
        figures["code_actions_per_second"] = ours.actions / ours.seconds


async def slow_job(figures: dict[str, float]) -> None:
    """500 ms a call: how near the run comes to what its dependencies allow."""
    async with fake_endpoint(delay_ms=500) as url:
        grown = await run(url, 8, **GROWTH_ALONE)
        ours = await run(url, 8)
    figures["growth_share_of_bound"] = grown.longest * 0.5 / grown.seconds
    seconds, bound = ours.seconds, ours.longest * 0.5
    figures["slow_seconds"] = seconds
    figures["slow_steps"] = ours.longest
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
        "ms_per_seed": large.seconds / count * 1000,
        "seed_time_growth": (large.seconds / count) / (small.seconds / (count // 10)),
    }


def show(figures: dict[str, float]) -> None:
    """The table."""
    print(f"{SEEDS} seeds, trees alone, 50 ms a call, real searches")
    print(
        f"  ours          {figures['growth_seconds']:7.2f} s   {figures['growth_times_driver']:6.2f} x the bare driver; "
        f"500 ms a call: {figures['growth_share_of_bound']:.0%} of the bound"
    )
    calls, steps = figures["rag_calls"] / SEEDS, figures["rag_steps"]
    print(
        f"{SEEDS} seeds, {calls:.0f} model calls each in at most {steps} steps, 50 ms a call, real searches"
    )
    print(
        f"  ours          {figures['rag_seconds']:7.2f} s   {figures['calls_per_second']:6.0f} model calls/s"
    )
    print(f"  bare driver   {figures['driver_seconds']:7.2f} s   {figures['rag_times_driver']:6.2f} x")
    print(
        f"  CPU of a node {figures['cpu_ms_per_node']:7.2f} ms   {figures['cpu_ms_per_call']:6.2f} ms a call"
    )
    for part in (*PARTS, "event loop and the rest"):
        print(f"    {part:<26}{figures[f'cpu_ms_per_node {part}']:6.2f} ms")
    print(
        f"{SEEDS} seeds, Python sessions, a fork for every branch: {figures['code_actions_per_second']:.0f} actions/s"
    )
    print(
        f"8 seeds, at most {figures['slow_steps']} steps, 500 ms a call: {figures['slow_seconds']:.2f} s, "
        f"{figures['share_of_bound']:.0%} of the bound"
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
    parser.add_argument("--seeds", type=int, default=500, help="seeds of the run whose memory is watched")
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
