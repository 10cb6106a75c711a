"""Tools of the sql backend, and their results."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, ValidationError

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.extras import with_command
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Output
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._running import check_settings, sendable
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool
from mcp_servers.sql._access import DatabaseAccess, SessionCopies
from mcp_servers.sql._databases import EngineName, databases_of
from mcp_servers.sql._settings import SqlSettings
from mcp_servers.sql._workers import (
    MAX_TABLES,
    QueryReply,
    SchemaReply,
    WorkerFailure,
    query_limits,
    schema_limits,
)


class DatabaseInfo(Output):
    """One database."""

    id: str
    """Id of the database, as other tools take it."""
    engine: EngineName
    """Engine, which determines the SQL dialect."""
    writable: bool
    """The session may change its own copy of it."""


class Databases(Output):
    """The configured databases."""

    databases: list[DatabaseInfo]
    """Databases, sorted by id."""


class ResultColumn(Output):
    """One column of a result."""

    name: str
    """Name of the column."""
    type: str
    """Type in the engine's terms; in SQLite that of the first value."""


class SqlProblem(Output):
    """Reason why the engine rejected a query."""

    type: str
    """Error type of the engine."""
    message: str
    """Message of the engine, with the most similar name of a table or column."""


class Executed(Output):
    """Result of a query."""

    columns: list[ResultColumn] = Field(default_factory=list[ResultColumn])
    """Columns of the result."""
    rows: list[list[object]] = Field(default_factory=list[list[object]])
    """First rows; dates, exact numbers and NaN are text, a blob is `x'…'`."""
    row_count: int = 0
    """Number of returned rows."""
    truncated: bool = False
    """There are more rows."""
    changed: int | None = None
    """Number of changed rows; null if none or unknown."""
    error: SqlProblem | None = None
    """Reason if the engine rejected the query, else null."""
    note: str = ""
    """Note on omitted rows; often empty."""


class SchemaColumn(Output):
    """One column of a table."""

    name: str
    """Name of the column."""
    type: str
    """Declared type."""
    nullable: bool
    """The column accepts null."""


class ForeignKey(Output):
    """Columns that refer to rows of another table."""

    columns: list[str]
    """Referring columns."""
    table: str
    """Referred table."""
    referred_columns: list[str]
    """Referred columns; empty for the primary key."""


class SchemaTable(Output):
    """A table or view."""

    name: str
    """Name to use in queries."""
    kind: Literal["table", "view"]
    """Table or view."""
    columns: list[SchemaColumn]
    """Columns in order."""
    primary_key: list[str]
    """Columns of the primary key."""
    foreign_keys: list[ForeignKey]
    """References to other tables."""
    row_count: int | None
    """Number of rows; null for a view, for more than a million rows, or if counting takes too long."""
    sample: list[list[object]] | None
    """Sample rows, if requested."""


class Schema(Output):
    """Tables of a database."""

    database: str
    """Id of the database."""
    engine: EngineName
    """Engine, which determines the SQL dialect."""
    tables: list[SchemaTable]
    """Tables and views, or the requested ones."""
    others: list[str]
    """Names of other tables, which are described on request."""


MAX_ROWS = 10_000
COUNTING_SECONDS = 2.0
_SOURCES = ("databases", "db_paths", "connection_string", "databases_dir")
_NO_TRANSACTIONS = "Each call is one transaction with one statement, committed if it succeeds."

DatabaseId = Annotated[
    str | None,
    Field(
        validation_alias=AliasChoices("database", "db_id"),
        description="Id of the database, as in sql_list_databases. Omit it if there is only one.",
    ),
]


class SqlBackend(Backend):
    """SQL access to SQLite, DuckDB and Postgres databases."""

    name = "sql"
    description = "Query databases with SQL and inspect their tables, columns and keys."
    settings_model = SqlSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = frozenset((*SqlSettings.model_fields, "db_paths"))

    def __init__(self) -> None:
        self._settings = SqlSettings()
        self._access = DatabaseAccess(self._settings, {}, "")

    def check(self, settings: Mapping[str, object]) -> None:
        """Reject invalid settings and missing databases."""
        databases_of(check_settings(SqlSettings, self.name, settings))

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        """Mark the query tools as unusable if no database is configured."""
        if any(settings.get(name) for name in _SOURCES):
            return {}
        reason = "no database is set up: set `databases` of the backend `sql` to {id: path or address}"
        return {"schema": reason, "execute": reason}

    def configure(self, settings: Mapping[str, object]) -> None:
        """Apply the server's settings."""
        self._settings = check_settings(SqlSettings, self.name, settings)
        self._access = DatabaseAccess(self._settings, databases_of(self._settings), secrets.token_hex(6))

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Create the session's state; databases are opened on first use."""
        session.put(SessionCopies())

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the session's copies."""
        forked.put(await self._access.fork(session.get(SessionCopies)))

    async def cleanup(self, session: Session) -> None:
        """Remove the session's copies."""
        await self._access.remove(session.get(SessionCopies))

    async def shutdown(self) -> None:
        """Stop all workers."""
        await self._access.close()

    @tool(title="List the databases", read_only=True)
    async def list_databases(self, session: Session) -> Databases:
        """List the databases with their ids and engines, which determine the SQL dialect.

        Use it first, to learn the ids for the other tools.
        """
        writable = self._settings.writable
        databases = [
            DatabaseInfo(id=id, engine=database.engine, writable=writable)
            for id, database in sorted(self._access.databases.items())
        ]
        return Databases(databases=databases)

    @tool(title="Describe a database", read_only=True)
    async def schema(
        self,
        session: Session,
        context: CallContext,
        database: DatabaseId = None,
        tables: Annotated[
            list[str] | None,
            Field(
                validation_alias=AliasChoices("tables", "table_names"),
                description="Tables and views to describe; by default all, up to 50.",
            ),
        ] = None,
        sample_rows: Annotated[int, Field(ge=0, le=20, description="Number of sample rows per table.")] = 0,
    ) -> Schema:
        """Describe the tables of a database: columns with types, primary and foreign keys, and row counts.

        Use it before writing a query, to learn the names and relations of tables.
        """
        request: dict[str, object] = {
            "do": "schema",
            "tables": tables or [],
            "most": MAX_TABLES,
            "samples": sample_rows,
            "bytes": self._settings.result_bytes,
            "counting_seconds": COUNTING_SECONDS,
        }
        source = self._access.find("sql_schema", database)
        copies = session.get(SessionCopies)
        seconds = self._seconds(context, None)
        try:
            reply = await self._access.ask(
                source, copies, request, seconds, SchemaReply, schema_limits(self._settings.result_bytes)
            )
        except WorkerFailure as failure:
            raise self._failed("sql_schema", failure) from None
        names = reply.known
        lower = {name.lower() for name in names}
        for wanted in tables or ():
            if wanted.lower() not in lower:
                message = f"sql_schema: no table {wanted!r} in {source.id!r}.{did_you_mean(wanted, names)}"
                raise ToolFailure(ErrorKind.NOT_FOUND, message)
        try:
            described = [SchemaTable.model_validate(table) for table in reply.tables]
        except ValidationError:
            raise ToolFailure(
                ErrorKind.FAILED, "sql_schema: the engine's process sent a bad answer."
            ) from None
        shown = {table.name for table in described}
        others = [] if tables else [name for name in names if name not in shown]
        return Schema(database=source.id, engine=source.engine, tables=described, others=others)

    @tool(title="Run a SQL query")
    async def execute(
        self,
        session: Session,
        context: CallContext,
        query: Annotated[
            str,
            Field(
                min_length=1, max_length=100_000, description="One statement in the database's SQL dialect."
            ),
        ],
        database: DatabaseId = None,
        limit: Annotated[
            int | None, Field(ge=1, le=MAX_ROWS, description="Maximum number of rows to return.")
        ] = None,
        timeout: Annotated[
            float | None, Field(gt=0, description="Time limit of the query in seconds.")
        ] = None,
    ) -> Executed:
        """Run one SQL statement and return its rows.

        Use it after sql_schema. Let the database count, join and aggregate instead of reading many rows. Changes are
        refused unless the database is listed as writable; then they affect only this session's copy. Each call is one
        transaction. If the engine rejects a query, the call succeeds with the reason in `error`.
        """
        sendable("sql_execute", query, without="\0")
        request: dict[str, object] = {
            "do": "query",
            "query": query,
            "rows": limit or self._settings.rows,
            "bytes": self._settings.result_bytes,
        }
        source = self._access.find("sql_execute", database)
        copies = session.get(SessionCopies)
        seconds = self._seconds(context, timeout)
        try:
            reply = await self._access.ask(
                source, copies, request, seconds, QueryReply, query_limits(self._settings.result_bytes)
            )
        except WorkerFailure as failure:
            if failure.kind == "rejected":
                return Executed(error=SqlProblem(type=failure.type, message=failure.message))
            raise self._failed("sql_execute", failure) from None
        return Executed(
            columns=[ResultColumn(name=column.name, type=column.type) for column in reply.columns],
            rows=reply.rows,
            row_count=len(reply.rows),
            truncated=bool(reply.more),
            changed=reply.changed,
            note=self._note(reply.more),
        )

    def _seconds(self, context: CallContext, requested: float | None) -> float:
        most = self._settings.timeout
        seconds = context.run_seconds(most if requested is None else min(requested, most))
        return most if seconds is None else seconds

    def _note(self, more: str) -> str:
        if more == "bytes":
            return f"The other rows exceed the limit of {self._settings.result_bytes} bytes."
        return "There are more rows: increase limit, or let the query aggregate." if more else ""

    def _failed(self, tool: str, failure: WorkerFailure) -> ToolFailure:
        match failure.kind:
            case "denied":
                return ToolFailure(ErrorKind.DENIED, f"{tool}: {failure.message}. {_NO_TRANSACTIONS}")
            case "timeout":
                return ToolFailure(ErrorKind.TIMEOUT, f"{tool}: the query was stopped at its time limit.")
            case "out_of_memory":
                message = f"{tool}: the query needs more memory than {self._settings.memory_bytes} bytes."
                return ToolFailure(ErrorKind.OUT_OF_MEMORY, message)
            case "unavailable":
                return ToolFailure(ErrorKind.UNAVAILABLE, f"{tool}: {with_command(failure.message)}.")
            case _:
                return ToolFailure(ErrorKind.FAILED, f"{tool}: {failure.message}.")
