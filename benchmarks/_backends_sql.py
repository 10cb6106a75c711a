"""Overhead of sql calls over the drivers: whole calls through a sandbox compared with the drivers in this process.

Both sides alternate in one run; figures are medians of elapsed time, the least of several rounds, since other load
delays both. Queries read some rows of a small table in order; writes are not measured.
"""

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import anyio
import duckdb

from agentflow.sandbox import Sandbox, SandboxSettings
from benchmarks._rows import Row
from tests._postgres import postgres_server

CALLS = 50
ROUNDS = 3
FLOOR_MS = 2.0
FILL = "CREATE TABLE pets (id integer PRIMARY KEY, name varchar(20))"
QUERY = "SELECT id, name FROM pets WHERE id % 7 = 0 ORDER BY name LIMIT 50"

Call: TypeAlias = Callable[[], Awaitable[object]]


class SqlConnection(Protocol):
    """Connection of asyncpg, which has no type annotations, as far as it is used here."""

    async def execute(self, query: str) -> str: ...
    async def executemany(self, query: str, args: list[tuple[int, str]]) -> None: ...
    async def fetch(self, query: str) -> list[object]: ...
    async def close(self) -> None: ...


async def median_ms(call: Call) -> float:
    """The median of some calls."""
    seconds: list[float] = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1000


async def compare(engine: str, driver: str, ours: Call, theirs: Call) -> Row:
    """Measure one engine through our tools and through its driver, alternately."""
    await ours()
    await theirs()
    mine: list[float] = []
    plain: list[float] = []
    for _ in range(ROUNDS):
        mine.append(await median_ms(ours))
        plain.append(await median_ms(theirs))
    name = f"sql query, {engine} [ms]"
    return Row(name, min(mine), min(plain), driver, FLOOR_MS, added=True)


def rows() -> list[tuple[int, str]]:
    """Return the table's rows."""
    return [(number, f"name{number * 37 % 1000}") for number in range(1000)]


async def measure() -> list[Row]:
    """A query on each engine."""
    import asyncpg  # pyright: ignore[reportMissingTypeStubs]

    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        lite, duck = Path(folder, "pets.sqlite"), Path(folder, "pets.duckdb")
        url = await anyio.to_thread.run_sync(server.new_database)
        with closing(sqlite3.connect(lite)) as made:
            made.execute(FILL)
            made.executemany("INSERT INTO pets VALUES (?, ?)", rows())
            made.commit()
        with duckdb.connect(duck) as made:
            made.execute(FILL)
            made.executemany("INSERT INTO pets VALUES (?, ?)", rows())
        postgres = cast("SqlConnection", await asyncpg.connect(url))  # pyright: ignore[reportUnknownMemberType]
        await postgres.execute(FILL)
        await postgres.executemany("INSERT INTO pets VALUES ($1, $2)", rows())
        sqlite, duckdb_ = sqlite3.connect(lite), duckdb.connect(duck, read_only=True)

        async def by_sqlite() -> object:
            return sqlite.execute(QUERY).fetchall()

        async def by_duckdb() -> object:
            return duckdb_.execute(QUERY).fetchall()

        async def by_asyncpg() -> object:
            return await postgres.fetch(QUERY)

        places = {"sqlite": str(lite), "duckdb": str(duck), "postgres": url}
        settings = SandboxSettings(backends={"sql": {"databases": places, "superuser": True}})
        try:
            async with Sandbox(settings) as sandbox:

                def ask(engine: str) -> Call:
                    async def call() -> object:
                        result = await sandbox.execute("sql:execute", {"database": engine, "query": QUERY})
                        assert result.ok and result.data["row_count"] == 50, result
                        return result

                    return call

                return [
                    await compare("SQLite", "sqlite3", ask("sqlite"), by_sqlite),
                    await compare("DuckDB", "duckdb", ask("duckdb"), by_duckdb),
                    await compare("Postgres", "asyncpg", ask("postgres"), by_asyncpg),
                ]
        finally:
            sqlite.close()
            duckdb_.close()
            await postgres.close()
