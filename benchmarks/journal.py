"""How fast the journal writes, beside a transaction for each row.

Run `python benchmarks/journal.py [--check] [--postgres URL]`: a table, and as the last line one JSON object. With
`--check` it exits with 1 where a floor is missed. Entries have 2 kB; their writers wait for each before the next, as
those who grow trees do. CPU is that of the whole process: the page, the queue, the writer and SQLite.
"""

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from agentflow.journal import NewSeed, Page, open_journal

ENTRIES = 20_000
ROUNDS = 5
BODY = "x" * 2000
_runs = count(1)


class Entry(Struct, frozen=True):
    """What is recorded."""

    text: str


class Speed(NamedTuple):
    """What one way to write did."""

    per_second: float
    """Entries per second."""
    microseconds: float
    """CPU per entry."""


async def journal(url: str, writers: int, entries: int) -> Speed:
    """Entries on the pages of 32 seeds."""
    async with open_journal(url) as opened:
        run = await opened.open_run(f"benchmark {next(_runs)} {time.time()}", {})
        seeds = await run.add_seeds([NewSeed(str(number)) for number in range(32)])
        pages = [await run.open_page(seed) for seed in seeds]

        async def write(writer: int, page: Page) -> None:
            for number in range(entries // writers):
                await page.record(f"act/{writer}/{number}", Entry(BODY))

        started, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as tasks:
            for writer in range(writers):
                tasks.create_task(write(writer, pages[writer % len(pages)]))
        return _speed(entries, started, cpu)


def commit_per_row(file: Path, entries: int) -> Speed:
    """The same rows into SQLite with nothing around it, each in a transaction of its own."""
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE entries (run, seed, key, body, PRIMARY KEY (run, seed, key))")
    body = json.dumps({"text": BODY}).encode()
    started, cpu = time.perf_counter(), time.process_time()
    for number in range(entries):
        database.execute("INSERT INTO entries VALUES (1, ?, ?, ?)", (number % 32, f"act/{number}", body))
    speed = _speed(entries, started, cpu)
    database.close()
    return speed


def _speed(entries: int, started: float, cpu: float) -> Speed:
    return Speed(entries / (time.perf_counter() - started), (time.process_time() - cpu) / entries * 1_000_000)


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
        name: Speed(max(each.per_second for each in speeds), min(each.microseconds for each in speeds))
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
    for name, speed in speeds.items():
        print(f"{name:<28} {speed.per_second:10,.0f} entries/s {speed.microseconds:9.1f} us of CPU an entry")
    many = speeds["1,000 writers"]
    rows = [
        ("entries per second, 1,000 writers", many.per_second, ">=", 15_000.0),
        ("us of CPU an entry, 1,000 writers", many.microseconds, "<=", 60.0),
    ]
    met = True
    for name, figure, sign, floor in rows:
        good = figure >= floor if sign == ">=" else figure <= floor
        met = met and good
        print(f"{name:<38} {figure:9,.1f}   {sign} {floor:,g}   {'ok' if good else 'MISSED'}")
    figures = {name: [round(value, 1) for value in speed] for name, speed in speeds.items()}
    print(json.dumps({"benchmark": "journal", "met": met, **figures}))
    return 1 if arguments.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
