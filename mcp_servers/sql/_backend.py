"""The tools of the sql backend."""

import secrets
from collections.abc import Mapping
from typing import Annotated

from pydantic import AliasChoices, Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._running import check_settings, sendable
from mcp_servers.core._session import Session
from mcp_servers.core._tool import tool
from mcp_servers.sql._access import Access, State
from mcp_servers.sql._databases import databases_of
from mcp_servers.sql._results import DatabaseInfo, Databases, Executed, Problem, Schema, SchemaTable
from mcp_servers.sql._settings import SqlSettings
from mcp_servers.sql._worker import WorkerFailure

__all__ = ["SqlBackend"]

MOST_ROWS = 10_000
MOST_TABLES = 50
COUNTING_SECONDS = 2.0
_SOURCES = ("databases", "db_paths", "connection_string", "databases_dir")
_NO_TRANSACTIONS = "Each call is a transaction of its own: one statement, kept if it succeeds."

DatabaseId = Annotated[
    str | None,
    Field(
        validation_alias=AliasChoices("database", "db_id"),
        description="The database's id, as sql_list_databases gives it. Leave it out where there is only one.",
    ),
]


class SqlBackend(Backend):
    """Databases to look into with SQL: SQLite, DuckDB and Postgres."""

    name = "sql"
    description = "Look into databases with SQL: their tables, columns and keys, and queries."
    reserved = frozenset((*SqlSettings.model_fields, "db_paths"))

    def __init__(self) -> None:
        self._settings = SqlSettings()
        self._access = Access(self._settings, {}, "")

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that can't be used, and databases that are not there."""
        check_settings(SqlSettings, self.name, settings)
        databases_of(SqlSettings.model_validate(settings))

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        """Without a database there is nothing to ask."""
        if any(settings.get(name) for name in _SOURCES):
            return {}
        reason = "no database is set up: set `databases` of the backend `sql` to {id: path or address}"
        return {"schema": reason, "execute": reason}

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the server's settings."""
        check_settings(SqlSettings, self.name, settings)
        self._settings = SqlSettings.model_validate(settings)
        self._access = Access(self._settings, databases_of(self._settings), secrets.token_hex(6))

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Nothing is opened before it is asked for."""
        session.put(State())

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the session's copies."""
        forked.put(await self._access.fork(session.get(State)))

    async def cleanup(self, session: Session) -> None:
        """Remove the session's copies."""
        await self._access.remove(session.get(State))

    async def shutdown(self) -> None:
        """End every engine."""
        await self._access.close()

    @tool(title="List the databases", read_only=True)
    async def list_databases(self, session: Session) -> Databases:
        """List the databases that can be queried, with the engine whose SQL each speaks.

        Use it first, to learn the ids that the other tools take.
        """
        known = self._access.databases.values()
        writable = self._settings.writable
        found = [DatabaseInfo(id=one.id, engine=one.engine, writable=writable) for one in known]
        return Databases(databases=sorted(found, key=lambda one: one.id))

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
                description="Only these tables and views; by default all, the first 50 of very many.",
            ),
        ] = None,
        sample_rows: Annotated[
            int, Field(ge=0, le=20, description="How many rows of each to show as a sample.")
        ] = 0,
    ) -> Schema:
        """Describe the tables of a database: columns with types, primary and foreign keys, how many rows.

        Use it before you write a query, to learn the names and how tables are joined.
        """
        request: dict[str, object] = {
            "do": "schema",
            "tables": tables or [],
            "most": MOST_TABLES,
            "samples": sample_rows,
            "bytes": self._settings.result_bytes,
            "counting_seconds": COUNTING_SECONDS,
        }
        known = self._access.find("sql_schema", database)
        try:
            reply = await self._access.ask(known, session.get(State), request, self._seconds(context, None))
        except WorkerFailure as failure:
            raise self._failed("sql_schema", failure) from None
        names: list[str] = reply["known"]
        lower = {name.lower() for name in names}
        for wanted in tables or ():
            if wanted.lower() not in lower:
                message = f"sql_schema: no table {wanted!r} in {known.id!r}.{did_you_mean(wanted, names)}"
                raise ToolFailure(ErrorKind.NOT_FOUND, message)
        described = [SchemaTable.model_validate(table) for table in reply["tables"]]
        shown = {table.name for table in described}
        others = [] if tables else [name for name in names if name not in shown]
        return Schema(database=known.id, engine=known.engine, tables=described, others=others)

    @tool(title="Run a SQL query")
    async def execute(
        self,
        session: Session,
        context: CallContext,
        query: Annotated[
            str,
            Field(min_length=1, max_length=100_000, description="One statement, in the database's SQL."),
        ],
        database: DatabaseId = None,
        limit: Annotated[
            int | None, Field(ge=1, le=MOST_ROWS, description="How many rows to return at most.")
        ] = None,
        timeout: Annotated[
            float | None, Field(gt=0, description="Seconds after which the query is stopped.")
        ] = None,
    ) -> Executed:
        """Run one SQL statement and return its rows.

        Use it once sql_schema has told you the tables. Let the database count, join and aggregate instead of reading many
        rows. Changes are refused unless the database is listed as writable; then they are kept in a copy of this
        session's own. Each call is a transaction of its own. A query that the engine does not take is no failed call:
        look at error.
        """
        sendable("sql_execute", query, without="\0")
        request: dict[str, object] = {
            "do": "query",
            "query": query,
            "rows": limit or self._settings.rows,
            "bytes": self._settings.result_bytes,
        }
        known = self._access.find("sql_execute", database)
        try:
            reply = await self._access.ask(
                known, session.get(State), request, self._seconds(context, timeout)
            )
        except WorkerFailure as failure:
            if failure.kind == "rejected":
                return Executed(error=Problem(type=failure.type, message=failure.message))
            raise self._failed("sql_execute", failure) from None
        return Executed.model_validate(
            {
                "columns": reply["columns"],
                "rows": reply["rows"],
                "row_count": len(reply["rows"]),
                "truncated": bool(reply["more"]),
                "changed": reply["changed"],
                "note": self._note(reply["more"]),
            }
        )

    def _seconds(self, context: CallContext, asked: float | None) -> float:
        most = self._settings.timeout
        seconds = context.run_seconds(most if asked is None else min(asked, most))
        return most if seconds is None else seconds

    def _note(self, more: str) -> str:
        if more == "bytes":
            return f"More rows would have been larger than {self._settings.result_bytes} bytes."
        return "There are more rows: ask for more by limit, or let the query aggregate." if more else ""

    def _failed(self, tool: str, failure: WorkerFailure) -> ToolFailure:
        match failure.kind:
            case "denied":
                return ToolFailure(ErrorKind.DENIED, f"{tool}: {failure.message}. {_NO_TRANSACTIONS}")
            case "timeout":
                message = f"{tool}: the time was up; the query was stopped."
                return ToolFailure(ErrorKind.TIMEOUT, message)
            case "out_of_memory":
                message = f"{tool}: the query needs more memory than {self._settings.memory_bytes} bytes."
                return ToolFailure(ErrorKind.OUT_OF_MEMORY, message)
            case "unavailable":
                return ToolFailure(ErrorKind.UNAVAILABLE, f"{tool}: {failure.message}.")
            case _:
                return ToolFailure(ErrorKind.FAILED, f"{tool}: {failure.message}.")
