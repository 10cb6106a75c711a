"""DuckDB engine, restricted to its file: no other files, extensions or settings."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb

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
)
from ._values import quoted

BATCH = 256
_LOOKING = frozenset(("SELECT", "EXPLAIN", "MULTI"))
"""The engine splits a PIVOT into several statements."""
_CHANGING = frozenset(
    ("INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "ALTER", "DROP", "ANALYZE", "VACUUM")
)


class DuckdbEngine(SqlEngine):
    """An open DuckDB file. Each statement has its own connection."""

    def __init__(self, database: DatabaseSpec) -> None:
        self._path = Path(database.target)
        self._writable = database.writable
        self._memory = database.memory
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._files = DatabaseFiles(database.target)
        self._base = self._open()

    def run(self, query: str) -> StatementResult:
        self._cursor = cursor = self._base.cursor()
        try:
            statements = cursor.extract_statements(query)
            if len(statements) != 1:
                raise QueryRejected("OneStatement", f"give one statement at a time, not {len(statements)}")
            kind = str(statements[0].type).rpartition(".")[2]
            if kind in _CHANGING and not self._writable:
                raise StatementDenied("the database is read-only")
            if kind not in _LOOKING | _CHANGING:
                raise StatementDenied(f"{kind} is not allowed here")
            cursor.execute("BEGIN" if self._writable else "BEGIN READ ONLY")
            cursor.execute(statements[0])
            columns = [(str(column[0]), str(column[1])) for column in cursor.description or ()]
            if kind in _CHANGING and columns == [("Count", "BIGINT")]:
                counted = cursor.fetchone()
                number = int(counted[0]) if counted else None
                return StatementResult([], iter(()), lambda: number)
        except duckdb.Error as error:
            raise self._trouble(error) from None
        return StatementResult(columns, self._rows(cursor))

    def finish(self) -> None:
        if self._cursor is not None and self._writable:
            try:
                self._cursor.execute("COMMIT")
            except duckdb.Error as error:
                raise self._trouble(error) from None
        self.abandon()

    def abandon(self) -> None:
        """Close the connection, which discards uncommitted changes and temporary tables."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def tables(self) -> list[EngineTable]:
        self._cursor = cursor = self._base.cursor()
        by_name: dict[tuple[str, str], EngineTable] = {}
        for schema, name, kind in cursor.execute(
            "SELECT table_schema, table_name, table_type FROM information_schema.tables "
            "WHERE table_catalog = current_database() ORDER BY table_schema <> 'main', table_schema, table_name"
        ).fetchall():
            shown = name if schema == "main" else f"{schema}.{name}"
            kind = "view" if kind == "VIEW" else "table"
            by_name[schema, name] = EngineTable(shown, f"{quoted(schema)}.{quoted(name)}", kind)
        for schema, name, column, type_, nullable in cursor.execute(
            "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
            "WHERE database_name = current_database() AND NOT internal ORDER BY column_index"
        ).fetchall():
            if (schema, name) in by_name:
                by_name[schema, name].columns.append(EngineColumn(column, type_, nullable=bool(nullable)))
        for schema, name, kind, columns, other, others in cursor.execute(
            "SELECT schema_name, table_name, constraint_type, constraint_column_names, referenced_table, "
            "referenced_column_names FROM duckdb_constraints() WHERE database_name = current_database()"
        ).fetchall():
            table = by_name.get((schema, name))
            if table is not None and kind == "PRIMARY KEY":
                table.primary_key = list(columns)
            elif table is not None and kind == "FOREIGN KEY":
                table.foreign_keys.append(EngineForeignKey(list(columns), other, list(others)))
        return list(by_name.values())

    def copy(self, target: str, source: str) -> None:
        """Copy the file after closing it, which writes all data to it."""
        self.abandon()
        self._base.close()
        try:
            shutil.copyfile(self._path, target)
            log = Path(f"{self._path}.wal")
            if log.exists():
                shutil.copyfile(log, f"{target}.wal")
        finally:
            self._base = self._open()

    def interrupt(self) -> None:
        if (cursor := self._cursor) is not None:
            cursor.interrupt()

    def close(self) -> None:
        self.abandon()
        self._base.close()

    def _open(self) -> duckdb.DuckDBPyConnection:
        config: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": False,
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,
            "threads": 1,
            "memory_limit": f"{self._memory // 1024}KiB",
            "temp_directory": "",
            "lock_configuration": True,
        }
        try:
            return duckdb.connect(self._path, read_only=not self._writable, config=config)
        except duckdb.Error as error:
            if not self._writable and self._files.replaced():
                raise DatabaseFilesReplaced from None
            raise DatabaseUnavailable(f"the file can't be opened: {self._trouble(error)}") from None

    def _rows(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[Row]:
        try:
            while batch := cursor.fetchmany(BATCH):
                yield from batch
        except duckdb.Error as error:
            raise self._trouble(error) from None

    @staticmethod
    def _trouble(error: duckdb.Error) -> Exception:
        name = type(error).__name__
        message = re.sub(r"\n+\s*LINE \d+:.*", "", str(error), flags=re.DOTALL).strip()
        if name == "OutOfMemoryException":
            return MemoryError()
        if name == "InterruptException":
            return InterruptedError()
        if name == "PermissionException" or "attached in read-only mode" in message:
            return StatementDenied(message)
        return QueryRejected(name, " ".join(message.split()))
