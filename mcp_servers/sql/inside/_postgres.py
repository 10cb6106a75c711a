"""Postgres engine: read-only transactions enforced by the server, and an unprivileged role; copies of databases."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from ._engine import (
    DatabaseSpec,
    DatabaseUnavailable,
    EngineColumn,
    EngineForeignKey,
    EngineTable,
    QueryRejected,
    Row,
    SqlEngine,
    SqlEngineError,
    StatementDenied,
    StatementResult,
    nearest,
)
from ._values import quoted

T = TypeVar("T")

Foreign: TypeAlias = Any
"""An object of the library, which has no types."""

BATCH = 64
PREFIX = "agentflow_sql_"
"""Prefix of the names of all copies, followed by the owner and a number."""
_NAME = re.compile(rf"{PREFIX}(?P<owner>[0-9a-f]{{12}})_\d+")
_GAP = re.compile(r"(?:\s|;|--[^\r\n]*+)*+")
_WORD = re.compile(r"\w+")
_COMMENT_MARK = re.compile(r"/\*|\*/")
_OWN = (
    "SELECT datname FROM pg_database WHERE datdba = (SELECT oid FROM pg_roles WHERE rolname = current_user)"
)
_POWERS = """
SELECT rolsuper
    OR pg_has_role(rolname, 'pg_execute_server_program', 'member')
    OR pg_has_role(rolname, 'pg_read_server_files', 'member')
    OR pg_has_role(rolname, 'pg_write_server_files', 'member')
FROM pg_roles WHERE rolname = current_user
"""
_TABLES = """
SELECT n.nspname AS schema, c.relname AS name, c.relkind IN ('v', 'm') AS is_view,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS quoted,
       (SELECT json_agg(json_build_array(a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull)
                        ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
       (SELECT json_agg(json_build_array(k.contype::text, other.relname, other_schema.nspname,
            (SELECT json_agg(a.attname ORDER BY p.place) FROM unnest(k.conkey) WITH ORDINALITY AS p(number, place)
             JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = p.number),
            (SELECT json_agg(a.attname ORDER BY p.place) FROM unnest(k.confkey) WITH ORDINALITY AS p(number, place)
             JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = p.number)) ORDER BY k.conname)
        FROM pg_constraint k LEFT JOIN pg_class other ON other.oid = k.confrelid
        LEFT JOIN pg_namespace other_schema ON other_schema.oid = other.relnamespace
        WHERE k.conrelid = c.oid AND k.contype IN ('p', 'f')) AS keys
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
  AND n.nspname NOT LIKE 'pg\\_t%' AND has_schema_privilege(n.oid, 'usage')
ORDER BY n.nspname <> 'public', n.nspname, c.relname
"""


class _Cursor(Protocol):
    """The part of a cursor's interface used here."""

    async def fetch(self, n: int) -> list[Row]: ...


class _Statement(Protocol):
    """The part of a prepared statement's interface used here."""

    def get_attributes(self) -> tuple[Foreign, ...]: ...
    def get_statusmsg(self) -> str: ...
    async def fetch(self) -> list[Foreign]: ...
    async def cursor(self) -> _Cursor: ...


class Connection(Protocol):
    """The part of a connection's interface used here, because the library has no types."""

    async def execute(self, query: str) -> str: ...
    async def fetch(self, query: str, *args: object) -> list[Foreign]: ...
    async def fetchval(self, query: str, *args: object) -> Foreign: ...
    async def prepare(self, query: str) -> _Statement: ...
    async def close(self) -> None: ...
    def is_closed(self) -> bool: ...


# The library has no types.
_connect: Callable[..., Awaitable[Connection]] = asyncpg.connect  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def connect(database: DatabaseSpec) -> Connection:
    """Connect; the connection is read-only unless the database is writable.

    :raises StatementDenied: if the role has privileges beyond data, unless `superuser` accepts it.
    """
    connection = await _connect(
        database.target,
        statement_cache_size=0,
        timeout=10,
        server_settings={
            "application_name": "agentflow",
            "client_connection_check_interval": "1000",
            "default_transaction_read_only": "off" if database.writable else "on",
        },
    )
    if not database.superuser and await connection.fetchval(_POWERS):
        await connection.close()
        raise StatementDenied(
            "this role may run programs and read files on the database's server: "
            "connect as one that may only use the data, or set `superuser: true`"
        )
    return connection


class PostgresEngine(SqlEngine):
    """A Postgres database, with one connection that is reset before each statement.

    `abandon` does nothing: `tidy`, or the next statement, rolls back. A database can be copied only while no client is
    connected to it, so its server does that.
    """

    def __init__(self, database: DatabaseSpec) -> None:
        self._database = database
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[object] | None = None
        self._dirty = False
        self._connection: Connection | None = None
        self._wait(self._open())

    def run(self, query: str) -> StatementResult:
        statement, cursor, first = self._wait(self._begin(query))
        return StatementResult(
            [(str(column.name), str(column.type.name)) for column in statement.get_attributes() or ()],
            self._rows(cursor, first),
            lambda: _changed(statement.get_statusmsg()),
        )

    def finish(self) -> None:
        if self._database.writable:
            self._wait(self._commit())

    def tidy(self) -> None:
        """Roll back uncommitted changes and settings."""
        if self._connection is not None:
            self._wait(self._open())

    def tables(self) -> list[EngineTable]:
        return [_table(row) for row in self._wait(self._catalogue())]

    def interrupt(self) -> None:
        if (task := self._task) is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        if self._connection is not None:
            self._wait(self._connection.close())
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        async def tracked() -> T:
            self._task = asyncio.current_task()
            try:
                return await work
            finally:
                self._task = None

        try:
            return self._loop.run_until_complete(tracked())
        except (asyncio.CancelledError, asyncpg.QueryCanceledError):
            raise InterruptedError from None
        except asyncpg.PostgresError as error:
            raise self._trouble(error) from None
        except (asyncpg.InterfaceError, OSError) as error:
            raise DatabaseUnavailable(
                f"the database can't be reached: {' '.join(str(error).split())}"
            ) from None

    async def _open(self) -> Connection:
        """Return the connection after a reset."""
        connection = self._connection
        if connection is None or connection.is_closed():
            self._connection = connection = await connect(self._database)
        elif self._dirty:
            await connection.execute("ROLLBACK")
            await connection.execute("DISCARD ALL")
        self._dirty = False
        return connection

    async def _begin(self, query: str) -> tuple[_Statement, _Cursor | None, list[Row]]:
        connection = await self._open()
        if _first_words(query, 2) == ["PREPARE", "TRANSACTION"]:
            raise StatementDenied(
                "PREPARE TRANSACTION is not allowed here: the transaction would outlive its call"
            )
        self._dirty = True
        # After the SELECT has taken a snapshot, SET TRANSACTION READ WRITE is an error.
        await connection.execute(
            f"BEGIN {'READ WRITE' if self._database.writable else 'READ ONLY'}; SELECT 1"
        )
        statement = await connection.prepare(query)
        if not statement.get_attributes():
            await statement.fetch()
            return statement, None, []
        cursor = await statement.cursor()
        # Errors show up with its first rows.
        return statement, cursor, await cursor.fetch(BATCH)

    def _rows(self, cursor: _Cursor | None, batch: list[Row]) -> Iterator[Row]:
        yield from (tuple(row) for row in batch)
        while cursor is not None and len(batch) == BATCH:
            batch = self._wait(cursor.fetch(BATCH))
            yield from (tuple(row) for row in batch)

    async def _commit(self) -> None:
        assert self._connection is not None
        if await self._connection.execute("COMMIT") == "ROLLBACK":
            raise QueryRejected("Transaction", "the transaction was rolled back")

    async def _catalogue(self) -> list[Foreign]:
        connection = await self._open()
        return await connection.fetch(_TABLES)

    def _trouble(self, error: asyncpg.PostgresError) -> Exception:
        details: dict[str, str | None] = vars(error)
        message = details.get("message") or str(error)
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            return StatementDenied("the database is read-only")
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            return StatementDenied(message)
        if isinstance(error, asyncpg.OutOfMemoryError):
            return MemoryError()
        if isinstance(error, asyncpg.UndefinedTableError):
            return QueryRejected(type(error).__name__, message + self._hint(message))
        parts = [message, *(text for name in ("detail", "hint") if (text := details.get(name)))]
        return QueryRejected(type(error).__name__, ". ".join(text.rstrip(".") for text in parts))

    def _hint(self, message: str) -> str:
        try:
            names = [table.name for table in self.tables()]
        except (SqlEngineError, InterruptedError):
            return ""
        parts = message.split('"')
        return f".{nearest(parts[1], names)}" if len(parts) > 1 else ""


def _first_words(query: str, number: int) -> list[str]:
    """Return the first words of a statement in upper case, as Postgres reads it: comments may be nested."""
    words: list[str] = []
    at = _after_gap(query, 0)
    while len(words) < number and (match := _WORD.match(query, at)):
        words.append(match[0].upper())
        at = _after_gap(query, match.end())
    return words


def _after_gap(query: str, at: int) -> int:
    at = _end(_GAP.match(query, at), at)
    while query.startswith("/*", at):
        depth = 0
        for mark in _COMMENT_MARK.finditer(query, at):
            depth += 1 if mark[0] == "/*" else -1
            if depth == 0:
                at = _end(_GAP.match(query, mark.end()), mark.end())
                break
        else:
            return len(query)
    return at


def _end(match: re.Match[str] | None, otherwise: int) -> int:
    return otherwise if match is None else match.end()


def _changed(status: str) -> int | None:
    words = (status or "").split()
    return int(words[-1]) if words and words[0] in ("INSERT", "UPDATE", "DELETE", "MERGE") else None


def _table(row: Foreign) -> EngineTable:
    public = row["schema"] == "public"
    table = EngineTable(
        row["name"] if public else f"{row['schema']}.{row['name']}",
        row["quoted"],
        "view" if row["is_view"] else "table",
        [
            EngineColumn(name, type, nullable=nullable)
            for name, type, nullable in json.loads(row["columns"] or "[]")
        ],
    )
    for kind, other, schema, here, there in json.loads(row["keys"] or "[]"):
        if kind == "p":
            table.primary_key = here
        else:
            table.foreign_keys.append(
                EngineForeignKey(here, other if schema == "public" else f"{schema}.{other}", there)
            )
    return table


class PostgresCopies(SqlEngine):
    """Copies on a Postgres server, made through one connection to a database that is never copied.

    It holds a lock with the owner's number as long as it lives. Copies of an owner whose lock is free are removed.
    """

    def __init__(self, database: DatabaseSpec) -> None:
        self._owner = database.owner
        self._runner = asyncio.Runner()
        self._connection: Connection = self._wait(connect(database))
        self._wait(self._begin())

    def copy(self, target: str, source: str) -> None:
        """Copy a database to which no client is connected."""
        self._wait(self._connection.execute(f"CREATE DATABASE {quoted(target)} TEMPLATE {quoted(source)}"))

    def remove(self, target: str) -> None:
        assert _NAME.fullmatch(target)
        self._wait(self._drop(target))

    def close(self) -> None:
        self._wait(self._connection.close())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        async def waited() -> T:
            return await work

        try:
            return self._runner.run(waited())
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise DatabaseUnavailable(" ".join(str(error).split())) from None

    async def _begin(self) -> None:
        await self._connection.execute(f"SELECT pg_advisory_lock({int(self._owner, 16)})")
        names = [str(row[0]) for row in await self._connection.fetch(_OWN)]
        others = {match["owner"] for name in names if (match := _NAME.fullmatch(name))} - {self._owner}
        for owner in others:
            if await self._connection.fetchval(f"SELECT pg_try_advisory_lock({int(owner, 16)})"):
                for name in names:
                    if name.startswith(f"{PREFIX}{owner}_"):
                        await self._drop(name)
                await self._connection.execute(f"SELECT pg_advisory_unlock({int(owner, 16)})")

    async def _drop(self, name: str) -> None:
        await self._connection.execute(f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")
