"""SQLite engine. Its authorizer callback decides about each operation of a query."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import quote

from ._confining import DatabaseFiles
from ._engine import (
    DatabaseFilesReplaced,
    DatabaseSpec,
    DatabaseUnavailable,
    EngineColumn,
    EngineForeignKey,
    EngineTable,
    QueryRejected,
    Row,
    SqlEngine,
    StatementDenied,
    StatementResult,
    nearest,
)
from ._values import quoted

MAX_VALUE = 64 * 1024 * 1024
_NEVER = frozenset(
    (
        sqlite3.SQLITE_ATTACH,
        sqlite3.SQLITE_DETACH,
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_SAVEPOINT,
        sqlite3.SQLITE_CREATE_TEMP_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TABLE,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_VIEW,
    )
)
_LOOKING = frozenset(
    (
        *("application_id", "collation_list", "compile_options", "encoding", "foreign_key_check"),
        *("foreign_key_list", "freelist_count", "function_list", "index_info", "index_list", "index_xinfo"),
        *("integrity_check", "page_count", "page_size", "quick_check", "schema_version", "table_info"),
        *("table_list", "table_xinfo", "user_version"),
    )
)
"""Pragmas that only read a value if they have no argument."""
_NAMING = _LOOKING - {"application_id", "encoding", "page_size", "schema_version", "user_version"}
"""Pragmas whose argument only selects what to read."""
_WRONG_NAME = re.compile(r"no such (?P<what>table|column): (?:\w+\.)?(?P<name>\S+)")
_UNOPENED = ("SQLITE_CANTOPEN", "SQLITE_READONLY_", "SQLITE_IOERR")
"""Errors on files that this process cannot open."""
_FUNCTIONS = frozenset(("load_extension", "fts3_tokenizer"))
"""Functions that access more than data."""
_RAW_PAGES = "sqlite_dbpage"
"""Virtual table of the file's pages; writing to it can corrupt the engine."""


class SqliteEngine(SqlEngine):
    """A SQLite file. Each statement has its own connection, so only data outlives it."""

    def __init__(self, database: DatabaseSpec) -> None:
        self._path = Path(database.target)
        self._writable = database.writable
        self._memory = database.memory
        self._connection: sqlite3.Connection | None = None
        self._refused = ""
        self._files = DatabaseFiles(database.target)
        self._connect().close()

    def run(self, query: str) -> StatementResult:
        self._connection = connection = self._connect()
        self._refused = ""
        try:
            if self._writable:
                connection.execute("BEGIN")
            connection.set_authorizer(self._allowed)
            cursor = connection.execute(query)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._trouble(error) from None
        names = [str(column[0]) for column in cursor.description or ()]
        columns = [(name, "null") for name in names]
        return StatementResult(
            columns,
            self._rows(cursor, columns),
            lambda: cursor.rowcount if cursor.rowcount >= 0 else None,
        )

    def finish(self) -> None:
        if self._connection is not None and self._writable:
            self._connection.set_authorizer(None)
            try:
                self._connection.commit()
            except sqlite3.Error as error:
                raise self._trouble(error) from None
        self.abandon()

    def abandon(self) -> None:
        """Close the connection, which discards uncommitted changes."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def tables(self) -> list[EngineTable]:
        # Internal tables of indexes and the engine are not listed.
        query = (
            "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'view', 'virtual') "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        )
        with closing(self._connect()) as connection:
            listed = connection.execute(query).fetchall()
            return [
                self._table(connection, name, "view" if kind == "view" else "table") for name, kind in listed
            ]

    def copy(self, target: str, source: str) -> None:
        """Copy a consistent snapshot of the file, even while others write to it."""
        with closing(self._connect()) as original, closing(sqlite3.connect(target)) as copied:
            original.backup(copied)
            # Without WAL: a journal file would have to be copied too.
            copied.execute("PRAGMA journal_mode = DELETE")

    def interrupt(self) -> None:
        if (connection := self._connection) is not None:
            connection.interrupt()

    def close(self) -> None:
        self.abandon()

    def _connect(self) -> sqlite3.Connection:
        uri = f"file:{quote(str(self._path))}?{self._mode()}"
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            pragmas = (f"hard_heap_limit = {self._memory}", "trusted_schema = OFF", "temp_store = MEMORY")
            for pragma in pragmas if self._writable else (*pragmas, "query_only = ON"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self._trouble(error) from None
        return connection

    def _mode(self) -> str:
        if self._writable:
            return "mode=rw"
        # In WAL mode even a reader creates files next to it. If no process has it open, it is read as immutable.
        try:
            with self._path.open("rb") as file:
                in_wal_mode = file.read(19)[18:] == b"\x02"
        except OSError:
            in_wal_mode = False
        unused = in_wal_mode and not Path(f"{self._path}-wal").exists()
        return "mode=ro&immutable=1" if unused else "mode=ro"

    def _allowed(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_PRAGMA:
            name = (first or "").lower()
            fine = name in _LOOKING and (second is None or name in _NAMING)
            what = f"PRAGMA {name}"
        elif action == sqlite3.SQLITE_FUNCTION:
            fine, what = (second or "").lower() not in _FUNCTIONS, f"{second}()"
        elif action in _NEVER:
            fine, what = False, "attaching, a transaction or a temporary table"
        elif action == sqlite3.SQLITE_CREATE_VTABLE:
            fine, what = self._writable, "a change"
        else:
            # A database that is not writable is also opened read-only.
            fine, what = first != _RAW_PAGES, _RAW_PAGES
        if not fine and not self._refused:
            self._refused = what
        return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY

    def _rows(self, cursor: sqlite3.Cursor, columns: list[tuple[str, str]]) -> Iterator[Row]:
        unknown = set(range(len(columns)))
        try:
            for row in cursor:
                for index in tuple(unknown):
                    if row[index] is not None:
                        columns[index] = (columns[index][0], _KINDS[type(row[index])])
                        unknown.discard(index)
                yield row
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def _trouble(self, error: Exception) -> Exception:
        message = str(error)
        if self._refused:
            return StatementDenied(f"{self._refused} is not allowed here")
        if (
            not self._writable
            and str(getattr(error, "sqlite_errorname", "")).startswith(_UNOPENED)
            and self._files.replaced()
        ):
            return DatabaseFilesReplaced()
        if "readonly database" in message:
            return StatementDenied("the database is read-only")
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if name == "SQLITE_NOMEM":
            return MemoryError()
        if name == "SQLITE_INTERRUPT":
            return InterruptedError()
        if name == "SQLITE_CANTOPEN":
            return DatabaseUnavailable(message)
        return QueryRejected(name, f"{message}{self._hint(message)}")

    def _hint(self, message: str) -> str:
        wrong = _WRONG_NAME.search(message)
        if wrong is None:
            return ""
        try:
            tables = self.tables()
        except (sqlite3.Error, QueryRejected, MemoryError):
            return ""
        if wrong["what"] == "table":
            return f".{nearest(wrong['name'], [table.name for table in tables])}"
        columns = {column.name for table in tables for column in table.columns}
        return f".{nearest(wrong['name'], sorted(columns))}"

    @staticmethod
    def _table(connection: sqlite3.Connection, name: str, kind: str) -> EngineTable:
        table = EngineTable(name, quoted(name), kind)
        keys: list[tuple[int, str]] = []
        try:
            columns = connection.execute(
                'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1', (name,)
            ).fetchall()
        except sqlite3.OperationalError:
            # A view on a dropped table.
            return table
        for column, type_, not_null, key in columns:
            table.columns.append(EngineColumn(column, type_, nullable=not not_null))
            keys += [(key, column)] if key else []
        table.primary_key = [column for _, column in sorted(keys)]
        by_id: dict[int, EngineForeignKey] = {}
        for number, other, here, there in connection.execute(
            'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?) ORDER BY id, seq', (name,)
        ):
            key = by_id.setdefault(number, EngineForeignKey([], other, []))
            key.columns.append(here)
            # Without column names, it refers to the primary key.
            key.referred_columns += [there] if there is not None else []
        table.foreign_keys = [by_id[number] for number in sorted(by_id, reverse=True)]
        return table


_KINDS: dict[type, str] = {int: "integer", float: "real", str: "text", bytes: "blob"}
