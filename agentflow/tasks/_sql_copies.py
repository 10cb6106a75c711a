"""Databases of text2sql tasks: their schema, queries on them, and copies with changed rows."""

import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import anyio
from msgspec import Struct

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.trace import TaskColumn, TaskTable, digest

Json: TypeAlias = Any
"""A JSON value."""

MAX_RESULT_ROWS: Final = 1_000
"""Maximum rows of a result that are compared; a longer one is cut, which `SqlResult.truncated` tells."""
MAX_COPIES: Final = 12
"""Maximum number of open copies; the least recently used one is closed to open another."""
_SAMPLE_ROWS: Final = 3
_READS: Final = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*(?:select|with|values|from|table)\b", re.IGNORECASE | re.DOTALL
)
"""Beginning of a statement that reads. One that begins with `WITH` may still change rows, which its result tells."""
_UNAVAILABLE: Final = frozenset(
    {
        ErrorKind.UNAVAILABLE,
        ErrorKind.BUSY,
        ErrorKind.SESSION_NOT_FOUND,
        ErrorKind.FAILED,
        ErrorKind.CANNOT_FORK,
    }
)
"""Failures that say nothing about a query."""


class SqlResult(Struct, frozen=True):
    """Result of a query."""

    columns: tuple[str, ...] = ()
    """Names of the columns."""
    rows: tuple[tuple[Json, ...], ...] = ()
    """The rows."""
    truncated: bool = False
    """There are more rows."""
    error: str = ""
    """Reason that the query failed, in one line."""
    unavailable: bool = False
    """The database could not be reached: the failure says nothing about the query."""

    @property
    def empty(self) -> bool:
        """There is no row with a value."""
        return all(cell is None for row in self.rows for cell in row)


class SqlSchema(Struct, frozen=True):
    """Tables of a database."""

    database: str
    """Id of the database."""
    engine: str
    """`sqlite`, `duckdb` or `postgres`."""
    tables: tuple[TaskTable, ...]
    """Its tables, without views."""


@dataclass(slots=True, eq=False)
class _Copy:
    """Session with copies of its own."""

    sandbox: Sandbox
    users: int = 0
    """Number of calls in flight; a copy in use is not closed."""
    applied: int = 0
    """Number of changes that were made."""
    spoilt: bool = False
    """A query changed it."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class SqlCopies:
    """Sessions whose databases are copies, one session per set of changes.

    The originals are never changed. Sessions are opened at their first use; `close` closes them.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        """:param sandbox: sandbox whose `sql` backend is writable, so that each session has copies."""
        self._sandbox = sandbox
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        self._bases: dict[str, Sandbox] = {}
        self._lock = anyio.Lock()

    async def prepare(self) -> None:
        """Copy the databases of Postgres servers, which copy a database only while no client uses it; later copies are made of these.

        :raises ConfigurationError: if one can't be copied.
        """
        for database in await self._listed():
            if database["engine"] != "postgres":
                continue
            name = str(database["id"])
            base = self._bases[name] = await self._sandbox.fork()
            result = await base.execute("sql_execute", {"database": name, "query": "SELECT 1"})
            if result.error is not None:
                fix = "close its other clients and let its role create databases, or set tasks=questions"
                raise ConfigurationError(
                    f"tasks: text2sql can't copy the database {name}: {_line(result.error.message)}; {fix}"
                )

    async def databases(self) -> list[str]:
        """Return the ids of the databases.

        :raises ToolFailure: if they can't be listed.
        """
        return [database["id"] for database in await self._listed()]

    async def _listed(self) -> list[dict[str, Json]]:
        result = await self._sandbox.execute("sql_list_databases")
        if result.error is not None:
            raise ToolFailure(result.error.kind, result.error.message)
        return result.data["databases"]

    async def _fork(self, database: str) -> Sandbox:
        """Return a new session with copies of its own."""
        return await self._bases.get(database, self._sandbox).fork()

    async def schema(self, database: str) -> SqlSchema:
        """Return the tables of a database.

        :raises ToolFailure: if it can't be described.
        """
        async with self._use(database, ()) as copy:
            result = await copy.sandbox.execute(
                "sql_schema", {"database": database, "sample_rows": _SAMPLE_ROWS}
            )
        if result.error is not None:
            raise ToolFailure(result.error.kind, result.error.message)
        tables = tuple(_table(table) for table in result.data["tables"] if table["kind"] == "table")
        return SqlSchema(database, result.data["engine"], tables)

    async def run(self, database: str, query: str, changes: Sequence[str] = ()) -> SqlResult:
        """Run a query on the database after these changes."""
        if not _READS.match(query):
            return SqlResult(error="it is no query: begin it with SELECT or WITH")
        try:
            async with self._use(database, tuple(changes)) as copy:
                result = await _query(copy.sandbox, database, query)
                copy.spoilt = copy.spoilt or result.changed
                return result.result
        except ToolFailure as failure:
            return SqlResult(error=failure.message, unavailable=True)

    async def accepted(self, database: str, changes: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return the statements that the database accepts, in order. Its constraints decide.

        :param changes: for each change a statement, then those to try one by one if it is refused.
        :raises ToolFailure: if there is no copy to try them on.
        """
        made: list[str] = []
        sandbox = await self._fork(database)
        try:
            for first, *others in changes:
                for statement in (first, *others):
                    answer = await _query(sandbox, database, statement)
                    if answer.result.unavailable:
                        raise ToolFailure(ErrorKind.UNAVAILABLE, answer.result.error)
                    if not answer.result.error:
                        made.append(statement)
                        if statement == first:
                            break
            kept = await self._keep(digest([database, tuple(made)]), _Copy(sandbox, applied=len(made)))
        except BaseException:
            await _close(sandbox)
            raise
        if not kept:
            await _close(sandbox)
        return tuple(made)

    async def close(self) -> None:
        """Close all sessions."""
        while self._copies:
            _, copy = self._copies.popitem()
            await _close(copy.sandbox)
        while self._bases:
            await _close(self._bases.popitem()[1])

    @asynccontextmanager
    async def _use(self, database: str, changes: tuple[str, ...]) -> AsyncGenerator[_Copy]:
        """Use the copy with these changes, alone.

        :raises ToolFailure: if it can't be made.
        """
        key = digest([database, changes])
        copy = await self._claim(key, database)
        try:
            for statement in changes[copy.applied :]:
                if error := (await _query(copy.sandbox, database, statement)).result.error:
                    raise ToolFailure(ErrorKind.FAILED, f"a change of the copy was refused: {error}")
                copy.applied += 1
            yield copy
        finally:
            copy.users -= 1
            copy.lock.release()
            if copy.spoilt and self._copies.get(key) is copy:
                del self._copies[key]
                await _close(copy.sandbox)

    async def _claim(self, key: str, database: str) -> _Copy:
        """Return a copy, locked; one that a query changed meanwhile is replaced."""
        while True:
            async with self._lock:
                if key not in self._copies:
                    await self._make_room()
                    self._copies[key] = _Copy(await self._fork(database))
                copy = self._copies[key]
                self._copies.move_to_end(key)
                copy.users += 1
            await copy.lock.acquire()
            if not copy.spoilt:
                return copy
            copy.users -= 1
            copy.lock.release()

    async def _keep(self, key: str, copy: _Copy) -> bool:
        """Keep a copy for later queries, unless there is an equal one."""
        async with self._lock:
            if key in self._copies:
                return False
            await self._make_room()
            self._copies[key] = copy
            return True

    async def _make_room(self) -> None:
        idle = [key for key, copy in self._copies.items() if not copy.users]
        for key in idle[: max(0, len(self._copies) + 1 - MAX_COPIES)]:
            await _close(self._copies.pop(key).sandbox)


class _Answer(NamedTuple):
    """Answer to a statement."""

    result: SqlResult
    changed: bool = False
    """It changed rows."""


async def _query(sandbox: Sandbox, database: str, query: str) -> _Answer:
    arguments = {"query": query, "database": database, "limit": MAX_RESULT_ROWS}
    result = await sandbox.execute("sql_execute", arguments)
    data = result.data
    if result.error is not None:
        unavailable = result.error.kind in _UNAVAILABLE
        return _Answer(SqlResult(error=_line(result.error.message), unavailable=unavailable))
    if data["error"] is not None:
        return _Answer(SqlResult(error=_line(data["error"]["message"])))
    if data["changed"] is not None:
        return _Answer(SqlResult(), changed=True)
    columns = tuple(column["name"] for column in data["columns"])
    return _Answer(SqlResult(columns, tuple(map(tuple, data["rows"])), bool(data["truncated"])))


async def _close(sandbox: Sandbox) -> None:
    with anyio.CancelScope(shield=True), suppress(ToolFailure):
        await sandbox.close()


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _table(described: Mapping[str, Json]) -> TaskTable:
    refers: dict[str, str] = {}
    for foreign in described["foreign_keys"]:
        referred = foreign["referred_columns"] or [""] * len(foreign["columns"])
        for column, target in zip(foreign["columns"], referred, strict=False):
            refers[column] = f"{foreign['table']}.{target}".rstrip(".")
    columns = tuple(
        TaskColumn(column["name"], column["type"], refers.get(column["name"], ""))
        for column in described["columns"]
    )
    return TaskTable(
        name=described["name"],
        columns=columns,
        key=tuple(described["primary_key"]),
        rows=described["row_count"],
        sample=tuple(map(tuple, described["sample"] or ())),
    )
