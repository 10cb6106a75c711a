"""The journal in one SQLite file."""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Any

import aiosqlite
import anyio.to_thread
from sqlalchemy import URL, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from agentflow.journal._backend import EntryRow, Trouble, root_of

__all__ = ["Sqlite"]

_INSERT = """
    INSERT INTO agentflow_entries (run, seed, key, ordinal, body)
    SELECT column1, column2, column3, column4, column5 FROM (VALUES {rows})
    WHERE (SELECT claims FROM agentflow_seeds WHERE run = column1 AND number = column2) = column6
    ON CONFLICT DO NOTHING
"""
_FEW = 32
_BUSY_SECONDS = 30
_PASSING = {"SQLITE_BUSY", "SQLITE_LOCKED"}
_CHECKPOINT_PAGES = 4000
_WRITE_AHEAD_BYTES = 64 * 2**20


class Sqlite:
    """One file in WAL mode.

    What a transaction wrote outlives the process at once. It outlives a loss of power from the next durable
    transaction on (the end of a seed): what is lost by that is the newest work only, never something older, and
    whoever was to build on it is gone as well.
    """

    def __init__(self, url: URL, connections: int) -> None:
        self._url = url.set(drivername="sqlite+aiosqlite")
        self._connections = connections
        self._file = str(url.database)
        self.shown = self._file

    def engine(self) -> AsyncEngine:
        """A new engine for the file."""
        engine = create_async_engine(
            self._url,
            pool_size=self._connections,
            max_overflow=0,
            # The driver begins nothing by itself: a transaction that writes takes the lock at its start, and one
            # statement is a transaction of its own.
            connect_args={"timeout": _BUSY_SECONDS, "isolation_level": None},
        )
        event.listen(engine.sync_engine, "connect", _prepare)
        return engine

    async def prepare(self) -> None:
        """Make the file, or see whether it is one of SQLite's."""
        # Not on a connection of the engine: one that can't be opened would leave its thread behind.
        await anyio.to_thread.run_sync(_make_file, self._file)

    async def begin(self, connection: AsyncConnection, *, durable: bool) -> None:
        """Begin, having said how much of the disk's time the end is worth."""
        await (await _driver(connection, durable=durable)).execute("BEGIN IMMEDIATE")

    async def lock_schema(self, connection: AsyncConnection) -> None:
        """Nothing is left to lock: there is one writer at a time."""

    async def now(self, connection: AsyncConnection) -> float:
        """The machine's time, since all are on one machine."""
        return time.time()

    async def insert(self, connection: AsyncConnection, rows: Sequence[EntryRow]) -> int:
        """On the driver's own connection, because each trip to its thread costs more than an entry."""
        driver = await _driver(connection, durable=False)
        if len(rows) <= _FEW:
            return (
                await driver.execute(_insert(len(rows)), [value for row in rows for value in row])
            ).rowcount
        await driver.execute("BEGIN IMMEDIATE")
        written = (await driver.executemany(_insert(1), rows)).rowcount
        await driver.commit()
        return written

    def trouble(self, error: BaseException) -> Trouble:
        """By SQLite's own name of the error."""
        name = str(getattr(root_of(error), "sqlite_errorname", ""))
        if name == "SQLITE_FULL":
            return Trouble.FULL
        return Trouble.PASSING if any(name.startswith(passing) for passing in _PASSING) else Trouble.BROKEN


async def _driver(connection: AsyncConnection, *, durable: bool) -> aiosqlite.Connection:
    """The driver's connection, on which the next transaction is durable or not."""
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    if raw.info.get("durable", False) is not durable:
        await driver.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        raw.info["durable"] = durable
    return driver


@cache
def _insert(rows: int) -> str:
    return _INSERT.format(rows=", ".join(["(?, ?, ?, ?, ?, ?)"] * rows))


def _make_file(path: str) -> None:
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as connection:
        # An entry of a usual length fits into a page; that halves the cost of writing it.
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("PRAGMA journal_mode = WAL")


def _prepare(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in (
        "synchronous = NORMAL",
        f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
        f"journal_size_limit = {_WRITE_AHEAD_BYTES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
