"""The journal in one SQLite file."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import TypeVar, cast

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import SQLAlchemyError

from agentflow.journal._backend import EntryRow, Trouble, root_of
from agentflow.journal._worker_thread import Lane

__all__ = ["Sqlite"]

T = TypeVar("T")

_INSERT = """
    INSERT INTO agentflow_entries (run, seed, key, ordinal, body)
    SELECT column1, column2, column3, column4, column5 FROM (VALUES {rows})
    WHERE (SELECT claims FROM agentflow_seeds WHERE run = column1 AND number = column2) = column6
    ON CONFLICT DO NOTHING
"""
# Rows of one statement. The driver keeps 128 compiled ones.
_MANY = 100
# How long the driver waits for others who write. Not long: whoever closes the journal waits for it too, and an attempt
# that was in vain is made again.
_BUSY_SECONDS = 2
# The other one is no room for the memory that all processes share; it is a file beside the journal.
_NO_ROOM = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}
_PASSING = {"SQLITE_BUSY", "SQLITE_LOCKED"}
_CHECKPOINT_PAGES = 4000
_WRITE_AHEAD_BYTES = 64 * 2**20


class Sqlite:
    """One file in WAL mode, written by one thread and read by another.

    What a transaction wrote outlives the process at once. It outlives a loss of power from the next durable
    transaction on (the end of a seed): what is lost by that is the newest work only, never something older, and
    whoever was to build on it is gone as well.
    """

    def __init__(self, url: URL) -> None:
        self.shown = str(url.database)
        engine = create_engine(
            url.set(drivername="sqlite+pysqlite"),
            # Each thread keeps the one connection that it has.
            poolclass=NullPool,
            # The driver begins nothing by itself: a transaction that writes takes the lock at its start, and one
            # statement is a transaction of its own.
            connect_args={"timeout": _BUSY_SECONDS, "isolation_level": None},
        )
        event.listen(engine, "connect", _prepare)
        self._writer = _Connected(engine, "journal-writer")
        self._reader = _Connected(engine, "journal-reader")

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Ask in the thread that reads, which nobody who writes holds up."""
        return await self._reader.do(ask)

    async def write(self, change: Callable[[Connection], T], *, durable: bool) -> T:
        """Change something, having said how much of the disk's time its end is worth."""

        def transact(connection: Connection) -> T:
            driver = _driver(connection, durable=durable)
            with connection.begin():
                driver.execute("BEGIN IMMEDIATE")
                return change(connection)

        return await self._writer.do(transact)

    async def insert(self, rows: Sequence[EntryRow]) -> int:
        """On the driver's own connection, with a statement that is compiled once."""
        return await self._writer.do(lambda connection: _insert_all(connection, rows))

    async def close(self) -> None:
        """Close both connections, after what their threads are at."""
        await self._reader.close()
        await self._writer.close()

    def lock_schema(self, connection: Connection) -> None:
        """Nothing is left to lock: there is one writer at a time."""

    def now(self, connection: Connection) -> float:
        """The machine's time, since all are on one machine."""
        return time.time()

    def trouble(self, error: BaseException) -> Trouble:
        """By SQLite's own name of the error."""
        name = str(getattr(root_of(error), "sqlite_errorname", ""))
        if name in _NO_ROOM:
            return Trouble.FULL
        return Trouble.PASSING if any(name.startswith(passing) for passing in _PASSING) else Trouble.BROKEN


class _Connected:
    """A thread with a connection, which is made where it is missing and given up when something went wrong on it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._lane = Lane(name)
        self._connection: Connection | None = None

    async def do(self, work: Callable[[Connection], T]) -> T:
        """Do it in the thread."""
        return await self._lane.do(lambda: self._attempt(work))

    async def close(self) -> None:
        """Close the connection and end the thread."""
        try:
            await self._lane.do(self._drop)
        finally:
            self._lane.close()

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            result = work(self._connection)
            # Ends what SQLAlchemy began to count when it was asked something.
            self._connection.commit()
        except BaseException:
            # Whatever it was, it is undone before anything else is done.
            self._drop()
            raise
        return result

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError, sqlite3.Error):
                connection.close()


def _driver(connection: Connection, *, durable: bool) -> sqlite3.Connection:
    """The driver's connection, on which the next transaction is durable or not."""
    driver = cast("sqlite3.Connection", connection.connection.driver_connection)
    if connection.info.get("durable", False) is not durable:
        driver.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.info["durable"] = durable
    return driver


def _insert_all(connection: Connection, rows: Sequence[EntryRow]) -> int:
    driver = _driver(connection, durable=False)
    if len(rows) <= _MANY:
        return _insert_some(driver, rows)
    driver.execute("BEGIN IMMEDIATE")
    written = sum(_insert_some(driver, rows[start : start + _MANY]) for start in range(0, len(rows), _MANY))
    driver.execute("COMMIT")
    return written


def _insert_some(driver: sqlite3.Connection, rows: Sequence[EntryRow]) -> int:
    # One statement for all of them: `executemany` would give the loop's thread the lock back and ask for it again at
    # every row, and a busy loop lets it wait each time.
    return driver.execute(_insert(len(rows)), [value for row in rows for value in row]).rowcount


@cache
def _insert(rows: int) -> str:
    return _INSERT.format(rows=", ".join(["(?, ?, ?, ?, ?, ?)"] * rows))


def _prepare(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in (
        # An entry of a usual length fits into a page; that halves the cost of writing it. For a new file only.
        "page_size = 8192",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
        f"journal_size_limit = {_WRITE_AHEAD_BYTES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
