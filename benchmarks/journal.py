"""Journal writes, compared with one transaction per row.

Run `python benchmarks/journal.py [--check] [--postgres URL]`: prints a table, and as the last line one JSON object. With
`--check` it exits with 1 if a limit is missed. Entries have 2 kB; each writer waits for an entry before the next, as
tree growth does. CPU is that of the whole process: page, queue, writer and SQLite; the event loop's share is printed
separately, because nothing else of a run proceeds in that time.
"""

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec import Struct

from agentflow.journal import NewSeed, Page, open_journal

ENTRIES = 20_000
ROUNDS = 5
BODY = "x" * 2000
SEEDS = 100
PAGE = 30
"""Entries of a page that is opened."""
_runs = count(1)

T = TypeVar("T")


class Entry(Struct, frozen=True):
    """Recorded content."""

    text: str


class Speed(NamedTuple):
    """Result of one way of writing."""

    per_second: float
    """Entries per second."""
    microseconds: float
    """CPU per entry."""
    on_loop: float
    """That part of it which the event loop's thread took."""


async def journal(url: str, writers: int, entries: int) -> Speed:
    """Entries on the pages of 32 seeds."""
    async with open_journal(url) as opened:
        run = await opened.open_run(f"benchmark {next(_runs)} {time.time()}", {})
        seeds = await run.add_seeds([NewSeed(str(number)) for number in range(32)])
        pages = [await run.open_page(seed) for seed in seeds]

        async def write(writer: int, page: Page) -> None:
            for number in range(entries // writers):
                await page.record(f"act/{writer}/{number}", Entry(BODY))

        started, cpu, loop = time.perf_counter(), time.process_time(), time.thread_time()
        async with asyncio.TaskGroup() as tasks:
            for writer in range(writers):
                tasks.create_task(write(writer, pages[writer % len(pages)]))
        return _speed(entries, started, cpu, loop)


async def on_loop(url: str) -> dict[str, float]:
    """Microseconds that the event loop's thread is busy with each step of a seed's life, and with closing."""
    opened = open_journal(url)
    journal = await opened.__aenter__()
    run = await journal.open_run("benchmark", {})
    for seed in await run.add_seeds([NewSeed(str(number)) for number in range(SEEDS)]):
        page = await run.open_page(seed)
        async with asyncio.TaskGroup() as tasks:
            for number in range(PAGE):
                tasks.create_task(page.record(f"act/{number}", Entry(BODY)))
    took: dict[str, float] = {}

    async def measured(step: str, do: Callable[[], Awaitable[T]]) -> T:
        begin = time.thread_time()
        done = await do()
        took[step] = took.get(step, 0.0) + (time.thread_time() - begin) * 1_000_000
        return done

    for _ in range(SEEDS):
        (seed,) = await measured("claim", lambda: run.claim("me", 1))
        await measured("open_page", lambda seed=seed: run.open_page(seed))
        await measured("renew", lambda: run.renew("me"))
        await measured("counts", run.counts)
        await measured("finish", lambda seed=seed: run.finish(seed, BODY.encode()))
    took = {step: microseconds / SEEDS for step, microseconds in took.items()}
    await measured("close", lambda: opened.__aexit__(None, None, None))
    return took


def commit_per_row(file: Path, entries: int) -> Speed:
    """The same rows into SQLite with nothing around it, each in a transaction of its own."""
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE entries (run, seed, key, body, PRIMARY KEY (run, seed, key))")
    body = json.dumps({"text": BODY}).encode()
    started, cpu, loop = time.perf_counter(), time.process_time(), time.thread_time()
    for number in range(entries):
        database.execute("INSERT INTO entries VALUES (1, ?, ?, ?)", (number % 32, f"act/{number}", body))
    speed = _speed(entries, started, cpu, loop)
    database.close()
    return speed


def _speed(entries: int, started: float, cpu: float, loop: float) -> Speed:
    each = 1_000_000 / entries
    return Speed(
        entries / (time.perf_counter() - started),
        (time.process_time() - cpu) * each,
        (time.thread_time() - loop) * each,
    )


def measure(folder: Path, postgres: str) -> dict[str, Speed]:
    """Every way, the best of some rounds in turns."""
    found: dict[str, list[Speed]] = {}
    for number in range(ROUNDS):
        url = f"sqlite:///{folder}/journal-{number}.db"
        found.setdefault("1,000 writers", []).append(asyncio.run(journal(url, 1000, ENTRIES)))
        found.setdefault("10 writers", []).append(asyncio.run(journal(url, 10, ENTRIES // 4)))
        found.setdefault("1 writer", []).append(asyncio.run(journal(url, 1, ENTRIES // 20)))
        row = commit_per_row(folder / f"rows-{number}.db", ENTRIES // 4)
        found.setdefault("a commit per row", []).append(row)
        if postgres:
            speed = asyncio.run(journal(postgres, 1000, ENTRIES))
            found.setdefault("Postgres, 1,000 writers", []).append(speed)
    # The best round stands: whatever else the machine does only makes it slower.
    return {
        name: Speed(
            max(each.per_second for each in speeds),
            min(each.microseconds for each in speeds),
            min(each.on_loop for each in speeds),
        )
        for name, speeds in found.items()
    }


def main() -> int:
    """Measure, print, check."""
    parser = argparse.ArgumentParser(description="Measure the journal.")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a floor is missed")
    parser.add_argument("--postgres", default="", help="the address of a Postgres database to measure too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        speeds = measure(Path(folder), arguments.postgres)
        lives = [asyncio.run(on_loop(f"sqlite:///{folder}/life-{number}.db")) for number in range(ROUNDS)]
    steps = {step: min(life[step] for life in lives) for step in lives[0]}
    for name, speed in speeds.items():
        print(
            f"{name:<28} {speed.per_second:10,.0f} entries/s {speed.microseconds:9.1f} us of CPU an entry, "
            f"{speed.on_loop:.1f} on the loop"
        )
    print(f"us on the loop: {', '.join(f'{step} {took:,.0f}' for step, took in steps.items())}")
    many = speeds["1,000 writers"]
    rows = [
        ("entries per second, 1,000 writers", many.per_second, ">=", 15_000.0),
        ("us of CPU an entry, 1,000 writers", many.microseconds, "<=", 60.0),
        ("us on the loop an entry, 10 writers", speeds["10 writers"].on_loop, "<=", 25.0),
        ("us on the loop a transaction", speeds["1 writer"].on_loop, "<=", 150.0),
        *((f"us on the loop, {step}", steps[step], "<=", 400.0) for step in ("claim", "open_page", "finish")),
    ]
    met = True
    for name, figure, sign, floor in rows:
        good = figure >= floor if sign == ">=" else figure <= floor
        met = met and good
        print(f"{name:<38} {figure:9,.1f}   {sign} {floor:,g}   {'ok' if good else 'MISSED'}")
    figures = {name: [round(value, 1) for value in speed] for name, speed in speeds.items()}
    print(
        json.dumps(
            {
                "benchmark": "journal",
                "met": met,
                **figures,
                "on_loop": {step: round(took) for step, took in steps.items()},
            }
        )
    )
    return 1 if arguments.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
