"""Search in a million short documents, compared with SQLite's FTS5 on the same documents and queries.

Run `python benchmarks/rag.py [--check] [--documents N]`: prints a table of figures, and as the last line one JSON object. With
`--check` it exits with 1 if a limit is missed. Ours are whole calls of `rag_search` through a sandbox, with snippets, in
elapsed time and CPU time of this process (`cpu`), which is more meaningful under load (`load`); FTS5's are the bare query
for ids in ranking order, any of the terms, in this process. Documents and queries are generated from a seed: word
frequencies follow Zipf's law, queries have two to six words of one document.
"""

import argparse
import itertools
import json
import math
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import psutil

from agentflow.sandbox import Sandbox, SandboxSettings

DOCUMENTS = 1_000_000
VOCABULARY = 200_000
WORDS = 40
TITLE_WORDS = 3
QUERIES = 1_000
WARM_UP = 200
QUERIES_OF_FTS5 = 200
SMALL_QUERIES = 2_000
SEED = 20_240

FLOORS = {"search_p50_ms": 5.0, "search_p95_ms": 20.0, "small_call_us": 150.0}
"""Limits of the figures."""


class Line(NamedTuple):
    """A document."""

    name: str
    title: str
    text: str


def word(rank: int) -> str:
    """A word that can be spoken, the same for the same rank."""
    syllables = ""
    while rank >= 0:
        rank, digit = divmod(rank, 80)
        syllables += "bdfgklmnprstvzjh"[digit % 16] + "aeiou"[digit // 16]
        rank -= 1
    return syllables


def documents(count: int) -> Iterator[Line]:
    """So many documents, the same ones each time."""
    chance = random.Random(SEED)
    words = [word(rank) for rank in range(VOCABULARY)]
    weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(VOCABULARY)))
    for number in range(count):
        length = chance.randint(WORDS // 2, WORDS * 3 // 2)
        chosen = chance.choices(words, cum_weights=weights, k=length + TITLE_WORDS)
        sentences = [" ".join(chosen[place : place + 10]) for place in range(TITLE_WORDS, length, 10)]
        yield Line(f"d{number}", " ".join(chosen[:TITLE_WORDS]), ". ".join(sentences) + ".")


def write_documents(path: Path, count: int) -> list[str]:
    """Write them, and choose queries on the way."""
    chance = random.Random(SEED + 1)
    queries: list[str] = []
    total = QUERIES + WARM_UP
    every = max(count // total, 1)
    with path.open("w", encoding="utf-8") as file:
        for number, line in enumerate(documents(count)):
            file.write(json.dumps(line._asdict() | {"id": line.name}) + "\n")
            if number % every == 0 and len(queries) < total:
                words = line.text.replace(".", "").split()
                begin = chance.randrange(len(words) - 6)
                queries.append(" ".join(words[begin : begin + chance.randint(2, 6)]))
    return queries


def build_fts5(path: Path, source: Path) -> sqlite3.Connection:
    """The same documents in FTS5."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute(
        "CREATE VIRTUAL TABLE docs USING fts5(id UNINDEXED, title, text, tokenize = 'porter unicode61')"
    )
    with source.open(encoding="utf-8") as file:
        rows = ((line["id"], line["title"], line["text"]) for line in map(json.loads, file))
        database.executemany("INSERT INTO docs VALUES (?, ?, ?)", rows)
    database.commit()
    return database


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def milliseconds(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Median and p95."""
    return {
        f"{name}_p50_ms": percentile(seconds, 0.5) * 1000,
        f"{name}_p95_ms": percentile(seconds, 0.95) * 1000,
    }


def timed_fts5(database: sqlite3.Connection, queries: Sequence[str]) -> dict[str, float]:
    """FTS5's times."""
    statement = "SELECT id FROM docs WHERE docs MATCH ? ORDER BY rank LIMIT 5"
    seconds: list[float] = []
    for query in queries:
        begin = time.perf_counter()
        found = database.execute(statement, (" OR ".join(f'"{part}"' for part in query.split()),)).fetchall()
        seconds.append(time.perf_counter() - begin)
        assert found
    return milliseconds("fts5", seconds)


async def ours(
    source: Path, folder: Path, queries: Sequence[str], report: Callable[[str], None]
) -> dict[str, float]:
    """Our times: making the index, opening it again, searching."""
    settings = {"backends": {"rag": {"index_path": str(source), "index_dir": str(folder)}}}
    begin = time.perf_counter()
    async with Sandbox(SandboxSettings.model_validate(settings)) as sandbox:
        await sandbox.warmup("rag")
        built = time.perf_counter() - begin
    report(f"index made in {built:.0f} s")
    begin = time.perf_counter()
    async with Sandbox(SandboxSettings.model_validate(settings)) as sandbox:
        await sandbox.warmup("rag")
        opened = time.perf_counter() - begin
        seconds: list[float] = []
        busy: list[float] = []
        for query in queries:
            begin_busy, begin = time.process_time(), time.perf_counter()
            result = await sandbox.execute("rag:search", {"query": query})
            seconds.append(time.perf_counter() - begin)
            busy.append(time.process_time() - begin_busy)
            assert result.ok, result.error
            assert result.data["hits"]
        memory = psutil.Process().memory_info().rss
    return {
        "index_s": built,
        "open_s": opened,
        **milliseconds("search", seconds[WARM_UP:]),
        **milliseconds("search_cpu", busy[WARM_UP:]),
        "load": os.getloadavg()[0],
        "memory_mb": memory / 2**20,
    }


async def small() -> float:
    """Microseconds of CPU for a call over the corpus that comes along."""
    queries = [
        "largest island of the isles",
        "Kelder Bridge",
        "what does a barge pay for the canal",
        "winter harbour",
    ]
    async with Sandbox(backends=["rag"]) as sandbox:
        best = math.inf
        for _ in range(5):
            begin = time.process_time()
            for number in range(SMALL_QUERIES // 5):
                assert (await sandbox.execute("rag:search", {"query": queries[number % len(queries)]})).ok
            best = min(best, (time.process_time() - begin) / (SMALL_QUERIES // 5))
    return best * 1e6


def report(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)


def measure(count: int, folder: Path) -> dict[str, float]:
    """Everything, one after the other."""
    figures = {"small_call_us": anyio.run(small)}
    source = folder / "documents.jsonl"
    queries = write_documents(source, count)
    report(f"{count} documents written, {source.stat().st_size / 2**20:.0f} MiB")
    figures |= anyio.run(ours, source, folder / "index", queries, report)
    figures["index_mb"] = sum(path.stat().st_size for path in (folder / "index").iterdir()) / 2**20
    figures["documents_per_s"] = count / figures["index_s"]
    begin = time.perf_counter()
    database = build_fts5(folder / "fts5.db", source)
    figures["fts5_index_s"] = time.perf_counter() - begin
    report(f"index of FTS5 made in {figures['fts5_index_s']:.0f} s")
    timed_fts5(database, queries[:20])
    figures |= timed_fts5(database, queries[WARM_UP : WARM_UP + QUERIES_OF_FTS5])
    database.close()
    return figures


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, metavar="N", help="how many documents")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rag-", dir=os.environ.get("TMPDIR")) as folder:
        figures = measure(options.documents, Path(folder))
    for name, value in figures.items():
        floor = f"  at most {FLOORS[name]:g}" if name in FLOORS else ""
        print(f"{name:<20}{value:>12.3f}{floor}")
    missed = [name for name, most in FLOORS.items() if figures[name] > most]
    for name in missed:
        print(f"missed: {name}")
    print(
        json.dumps(
            {"documents": options.documents, **{name: round(value, 3) for name, value in figures.items()}}
        )
    )
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
