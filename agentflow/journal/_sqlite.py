"""Journal in one SQLite file, used by worker threads."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Double,
    Engine,
    NullPool,
    bindparam,
    create_engine,
    event,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import SQLAlchemyError

from agentflow.journal._database import BlobRow, DatabaseFailure, EntryRow, root_of

T = TypeVar("T")

_INSERT = """
    INSERT INTO agentflow_entries (run, seed, key, ordinal, body)
    SELECT column1, column2, column3, column4, column5 FROM (VALUES {rows})
    WHERE (SELECT claims FROM agentflow_seeds WHERE run = column1 AND number = column2) = column6
    ON CONFLICT DO NOTHING
"""
# Rows per statement. The driver caches 128 compiled statements.
_MANY = 100
# Seconds that the driver waits for other writers. Short: closing the journal waits for it, too, and a failed attempt
# is retried.
_BUSY_SECONDS = 2
# The second code means no space for the shared-memory file beside the journal.
_NO_ROOM = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}
_PASSING = {"SQLITE_BUSY", "SQLITE_LOCKED"}
# The last one means that a table or a column is missing.
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ", "SQLITE_ERROR")
_CLOCK: ColumnElement[float] = bindparam("now", callable_=time.time, type_=Double[float]())
_CHECKPOINT_PAGES = 4000
_WRITE_AHEAD_BYTES = 64 * 2**20


class Sqlite:
    """One file in WAL mode, with one writing and one reading thread.

    A committed transaction survives the process. It survives a power loss once the next durable transaction (the end
    of a seed) is committed: a power loss can lose only the newest work, never something older that later
    work depends on.
    """

    def __init__(self, url: URL) -> None:
        self.shown = str(url.database)
        self.file = Path(self.shown)
        engine = create_engine(
            url.set(drivername="sqlite+pysqlite"),
            # Each thread keeps its own connection.
            poolclass=NullPool,
            # The driver begins no transaction by itself: a writing transaction takes the lock at its start, and a single
            # statement is its own transaction.
            connect_args={"timeout": _BUSY_SECONDS, "isolation_level": None},
        )
        event.listen(engine, "do_connect", partial(_make_private, str(url.database)))
        event.listen(engine, "connect", _prepare)
        self._writer = _Connected(engine, "journal-writer")
        self._reader = _Connected(engine, "journal-reader")

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Run a query in the reading thread, which writers do not block."""
        return await self._reader.do(ask)

    async def write(self, change: Callable[[Connection], T], *, durable: bool, atomic: bool) -> T:
        """Run a change in one transaction, durable or not."""

        def transact(connection: Connection) -> T:
            driver = _driver(connection, durable=durable)
            with connection.begin():
                driver.execute("BEGIN IMMEDIATE")
                return change(connection)

        return await self._writer.do(transact)

    async def insert(self, rows: Sequence[EntryRow], blobs: Sequence[BlobRow]) -> int:
        """Write entries and blobs on the driver's connection with a statement that is compiled once."""
        return await self._writer.do(lambda connection: _insert_all(connection, rows, blobs))

    async def close(self) -> None:
        """Close both connections after their current work.

        The last one moves the log into the file. A program that reads the file at this moment would prevent that, and a copy
        of the file alone would lack the newest work, so it is asked for.
        """
        await self._reader.close()
        await self._writer.finish(_empty_log)
        await self._writer.close()

    def lock_schema(self, connection: Connection) -> None:
        """Do nothing: there is only one writer."""

    def now(self, connection: Connection) -> float:
        """Return this machine's time: all users are on this machine."""
        return time.time()

    def clock(self) -> ColumnElement[float]:
        """Return this machine's time."""
        return _CLOCK

    def trouble(self, error: BaseException) -> DatabaseFailure:
        """Classify by SQLite's error name."""
        name = str(getattr(root_of(error), "sqlite_errorname", ""))
        if name in _NO_ROOM:
            return DatabaseFailure.FULL
        if name.startswith(_DAMAGED):
            return DatabaseFailure.DAMAGED
        return (
            DatabaseFailure.PASSING
            if any(name.startswith(passing) for passing in _PASSING)
            else DatabaseFailure.BROKEN
        )


class _Connected:
    """Thread with a connection, which is opened when missing and dropped after an error."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._thread = WorkerThread(name)
        self._connection: Connection | None = None

    async def do(self, work: Callable[[Connection], T]) -> T:
        """Run a function in the thread."""
        return await self._thread.do(lambda: self._attempt(work))

    async def finish(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run a last function in the thread if there is a connection; its failure has no consequence."""

        def attempt() -> None:
            if self._connection is not None:
                with suppress(SQLAlchemyError, sqlite3.Error):
                    work(_raw(self._connection))

        if self._connection is not None:
            await self._thread.do(attempt)

    async def close(self) -> None:
        """Close the connection and end the thread."""
        try:
            await self._thread.do(self._drop)
        finally:
            self._thread.close()

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            result = work(self._connection)
            # Ends the transaction that SQLAlchemy began for a query.
            self._connection.commit()
        except BaseException:
            # Roll back after any error, before the connection is used again.
            self._drop()
            raise
        return result

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError, sqlite3.Error):
                connection.close()


def _raw(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _empty_log(driver: sqlite3.Connection) -> None:
    driver.execute("PRAGMA busy_timeout = 100")
    driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _driver(connection: Connection, *, durable: bool) -> sqlite3.Connection:
    """Return the driver's connection, set so that the next transaction is durable or not."""
    driver = _raw(connection)
    if connection.info.get("durable", False) is not durable:
        driver.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.info["durable"] = durable
    return driver


def _insert_all(connection: Connection, rows: Sequence[EntryRow], blobs: Sequence[BlobRow]) -> int:
    driver = _driver(connection, durable=False)
    if len(rows) <= _MANY and not blobs:
        return _insert_some(driver, rows)
    driver.execute("BEGIN IMMEDIATE")
    for start in range(0, len(blobs), _MANY):
        some = blobs[start : start + _MANY]
        driver.execute(_insert_blobs(len(some)), [value for blob in some for value in blob.stored])
    written = sum(_insert_some(driver, rows[start : start + _MANY]) for start in range(0, len(rows), _MANY))
    driver.execute("COMMIT")
    return written


def _insert_some(driver: sqlite3.Connection, rows: Sequence[EntryRow]) -> int:
    # One statement for all rows: `executemany` would release and reacquire the interpreter lock at every row, and a busy
    # event loop makes each of these wait.
    return driver.execute(_insert(len(rows)), [value for row in rows for value in row]).rowcount


@cache
def _insert_blobs(rows: int) -> str:
    placeholders = ", ".join(["(?, ?, ?)"] * rows)
    return f"INSERT OR IGNORE INTO agentflow_blobs (run, hash, data) VALUES {placeholders}"


@cache
def _insert(rows: int) -> str:
    return _INSERT.format(rows=", ".join(["(?, ?, ?, ?, ?, ?)"] * rows))


def _make_private(file: str, *_connection: object) -> None:
    """Create the file for this user alone; SQLite gives the files beside it the same rights.

    An existing file is not opened: to close it would end the locks of this process on it, and another program could remove the log.
    """
    # What prevents it is SQLite's to report.
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in (
        # Entries of the usual length fit into a page of this size, which halves the cost of writing. New files only.
        "page_size = 8192",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
        f"journal_size_limit = {_WRITE_AHEAD_BYTES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


class WorkerThread:
    """Thread that runs one function after another for an event loop; it starts with the first one.

    A round trip costs the loop a third of an executor's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._thread: Thread | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """Run a function in the thread; return or raise its outcome.

        If the caller is cancelled, a job that has not begun is dropped, and a running one ends unobserved.
        """
        if self._thread is None:
            # A daemon thread, so that a program that must exit does not wait for a database.
            self._thread = Thread(target=_run_jobs, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Job(work, answer))
        return await answer

    def close(self) -> None:
        """End the thread after all its jobs."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    """One job and its waiting caller."""

    _do: Callable[[], T]
    _answer: asyncio.Future[T]

    def do(self) -> None:
        """Run the job and notify the loop."""
        if self._answer.cancelled():
            return
        try:
            settle = partial(self._answer.set_result, self._do())
        # Boundary of the thread: every exception belongs to the caller.
        except BaseException as error:
            settle = partial(self._answer.set_exception, error)
        # A closed loop has no waiting caller.
        with suppress(RuntimeError):
            self._answer.get_loop().call_soon_threadsafe(self._settle, settle)

    def _settle(self, settle: Callable[[], None]) -> None:
        if not self._answer.done():
            settle()


def _run_jobs(queue: SimpleQueue[_Job[Any] | None]) -> None:
    while (job := queue.get()) is not None:
        job.do()
        # Drop the reference before waiting for the next job: it holds the data to write.
        del job
