"""Journal in a Postgres database shared by many machines."""

import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import anyio
import asyncpg  # pyright: ignore[reportMissingTypeStubs] - it is typed, and does not say so
from anyio.from_thread import start_blocking_portal
from sqlalchemy import URL, ColumnElement, Connection, Double, event, literal_column, select, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from agentflow.journal._database import BlobRow, DatabaseFailure, EntryRow, root_of

T = TypeVar("T")

_READERS = 4
_CLOCK = literal_column("extract(epoch FROM clock_timestamp())::float8", Double[float]())
# The shared lock on the seed delays other claims until these entries are readable. From the limit, which leaves out nothing,
# Postgres concludes that there are few entries: it keeps one plan with index lookups instead of planning each time.
_INSERT = """
    INSERT INTO agentflow_entries (run, seed, key, ordinal, body)
    SELECT entry.run, entry.seed, entry.key, entry.ordinal, entry.body
    FROM (
        SELECT * FROM unnest($1::int[], $2::int[], $3::text[], $4::int[], $5::bytea[], $6::int[])
        LIMIT cardinality($1::int[])
    ) AS entry (run, seed, key, ordinal, body, claims)
    JOIN agentflow_seeds AS seeds
        ON seeds.run = entry.run AND seeds.number = entry.seed AND seeds.claims = entry.claims
    FOR SHARE OF seeds
    ON CONFLICT DO NOTHING
"""
# In one order, so that two processes with the same blobs do not wait for each other in a circle.
_INSERT_WITH_BLOBS = f"""
    WITH blobs AS (
        INSERT INTO agentflow_blobs (run, hash, data)
        SELECT blob.run, blob.hash, blob.data
        FROM unnest($7::int[], $8::text[], $9::bytea[]) AS blob (run, hash, data)
        ORDER BY blob.run, blob.hash
        ON CONFLICT DO NOTHING
    )
    {_INSERT}
"""
_SCHEMA_LOCK = 0x6166_6A6F_7572_6E61
# SQLSTATE classes and codes: connections, lost races, a server that stops, starts or has no space.
_PASSING = ("08", "40", "25P03", "57P01", "57P02", "57P03", "53300", "55P03")
_FULL = "53100"
_DAMAGED = ("XX001", "XX002")
_SILENT_SECONDS = 30
"""Time after which an end that does not answer is given up: by the client, whose network may be cut, and by the server, where
a transaction of a machine that has stopped would keep its locks."""
_PROBES = 3
SERVER_SETTINGS = {
    "idle_in_transaction_session_timeout": f"{_SILENT_SECONDS}s",
    "tcp_keepalives_idle": f"{_SILENT_SECONDS // _PROBES}s",
    "tcp_keepalives_interval": f"{_SILENT_SECONDS // _PROBES}s",
    "tcp_keepalives_count": f"{_PROBES - 1}",
    "tcp_user_timeout": f"{_SILENT_SECONDS}s",
}


def make_engine(url: URL, size: int, **settings: str) -> AsyncEngine:
    """Return an engine with at most `size` connections, each with these settings of the server."""
    query = dict(url.query)
    if "sslmode" in query:
        # libpq's sslmode is the driver's ssl.
        query["ssl"] = query.pop("sslmode")
    engine = create_async_engine(
        url.set(drivername="postgresql+asyncpg", query=query),
        pool_size=size,
        max_overflow=0,
        connect_args={"timeout": 10, "server_settings": {**SERVER_SETTINGS, **settings}},
    )
    event.listen(engine.sync_engine, "connect", _notice_silence)
    return engine


def _notice_silence(connection: DBAPIConnection, _record: object) -> None:
    """Let the kernel end a connection whose server is silent; a reply would be waited for forever."""
    # The driver has no setting for it.
    driver: Any = connection.driver_connection
    connection_socket: socket.socket = driver._transport.get_extra_info("socket")
    if connection_socket.family != socket.AF_UNIX and sys.platform == "linux":
        connection_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS // _PROBES)
        connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_SECONDS // _PROBES)
        connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES - 1)
        connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_SECONDS * 1000)


class Postgres:
    """Database by URL. A committed transaction survives a power loss of the server."""

    def __init__(self, url: URL) -> None:
        self.url = url
        """Its URL."""
        self.shown = url.render_as_string(hide_password=True)
        self.file = None
        self._engine = make_engine(url, _READERS + 1)
        self._readers = anyio.CapacityLimiter(_READERS)
        self._writing: AsyncConnection | None = None

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Run a query on one of a few reading connections."""
        async with self._readers, self._engine.connect() as connection:
            return await connection.run_sync(ask)

    async def write(self, change: Callable[[Connection], T], *, durable: bool, atomic: bool) -> T:
        """Run a change; every transaction is durable. A transaction of several statements costs two more round trips."""
        if self._writing is None:
            self._writing = await self._engine.connect()
        try:
            await self._writing.execution_options(
                isolation_level="READ COMMITTED" if atomic else "AUTOCOMMIT"
            )
            result = await self._writing.run_sync(change)
            await self._writing.commit()
        except BaseException:
            # Roll back after any error, before the connection is used again.
            with anyio.CancelScope(shield=True):
                await self._drop_writer()
            raise
        return result

    async def insert(self, rows: Sequence[EntryRow], blobs: Sequence[BlobRow]) -> int:
        """Send everything in one statement, each column as an array.

        A statement by itself is a transaction: one round trip to the server instead of three.
        """
        connection = self._writing
        if connection is None:
            connection = self._writing = await self._engine.connect()
        raw = await connection.get_raw_connection()
        driver = raw.driver_connection
        assert isinstance(driver, asyncpg.Connection)
        statement = _INSERT_WITH_BLOBS if blobs else _INSERT
        columns = (*_columns(rows), *(_columns([blob.stored for blob in blobs]) if blobs else ()))
        try:
            # The status is `INSERT 0 ROWS`.
            status: str = await driver.execute(statement, *columns)  # pyright: ignore[reportUnknownMemberType] - arguments of any type
            return int(status.rpartition(" ")[2])
        except BaseException as error:
            # The pool does not see the driver's errors, so it must not get the connection back.
            self._writing = None
            with anyio.CancelScope(shield=True):
                await connection.invalidate()
            if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
                raise OperationalError("insert", None, error) from error
            raise

    async def close(self) -> None:
        """Close all connections."""
        await self._drop_writer()
        await self._engine.dispose()

    def lock_schema(self, connection: Connection) -> None:
        """Wait for the lock that every such transaction takes."""
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))

    def now(self, connection: Connection) -> float:
        """Return the server's time."""
        return _server_time(connection)

    def clock(self) -> ColumnElement[float]:
        """Return the server's clock."""
        return _CLOCK

    def trouble(self, error: BaseException) -> DatabaseFailure:
        """Classify by SQLSTATE; an error without one is a failed or broken connection."""
        state: object = getattr(root_of(error), "sqlstate", None)
        if state == _FULL:
            return DatabaseFailure.FULL
        if state in _DAMAGED:
            return DatabaseFailure.DAMAGED
        passing = state is None or str(state).startswith(_PASSING)
        return DatabaseFailure.PASSING if passing else DatabaseFailure.BROKEN

    async def _drop_writer(self) -> None:
        connection, self._writing = self._writing, None
        if connection is not None:
            try:
                await connection.close()
            except (SQLAlchemyError, OSError):
                await connection.invalidate()


def _columns(rows: Sequence[tuple[object, ...]]) -> tuple[list[object], ...]:
    return tuple(list(column) for column in zip(*rows, strict=True))


def _server_time(connection: Connection) -> float:
    seconds = connection.scalar(select(_CLOCK))
    return float(seconds or 0)


class ReadOnlyPostgres:
    """The same database for threads, in read-only transactions; the driver runs in the event loop of a thread."""

    def __init__(self, url: URL) -> None:
        self.shown = url.render_as_string(hide_password=True)
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._engine = make_engine(url, _READERS, default_transaction_read_only="on")

    def read(self, ask: Callable[[Connection], T]) -> T:
        """Run a query."""
        return self._portal.call(self._read, ask)

    def now(self, connection: Connection) -> float:
        """Return the server's time."""
        return _server_time(connection)

    def close(self) -> None:
        """Close all connections and end the thread."""
        with self._stack:
            self._portal.call(self._engine.dispose)

    async def _read(self, ask: Callable[[Connection], T]) -> T:
        async with self._engine.connect() as connection:
            return await connection.run_sync(ask)
