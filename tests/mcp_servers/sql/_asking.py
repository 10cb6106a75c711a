"""Asking databases through the real engines."""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Protocol, cast

import anyio.to_thread
import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import duckdb

from agentflow import Sandbox
from agentflow.sandbox import SandboxSettings, ToolResult
from tests._postgres import PostgresServer

PEOPLE = """
CREATE TABLE people (id integer PRIMARY KEY, name varchar(40) NOT NULL, pay numeric(10, 2), born date);
CREATE TABLE pets (id integer PRIMARY KEY, owner integer REFERENCES people (id), kind varchar(40));
INSERT INTO people VALUES (1, 'Änne', 10.50, '1990-02-03'), (2, 'Bo', NULL, NULL);
INSERT INTO pets VALUES (1, 1, 'cat'), (2, 1, 'dog'), (3, 2, 'cat');
CREATE VIEW owners AS SELECT p.name, count(*) AS pets FROM people p JOIN pets ON owner = p.id GROUP BY p.name;
"""
"""The same small database in the SQL of all engines."""

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
"""Never ends by itself."""


def entries(folder: Path) -> list[str]:
    """The names of what is in a folder."""
    return sorted(path.name for path in folder.iterdir())


class Connection(Protocol):
    """A connection of asyncpg, which has no types, as far as it is used here."""

    async def execute(self, query: str) -> str: ...
    async def fetch(self, query: str) -> list[tuple[object, ...]]: ...
    async def close(self) -> None: ...


def make_sqlite(path: Path, script: str = PEOPLE) -> Path:
    """A SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def make_duckdb(path: Path, script: str = PEOPLE) -> Path:
    """A DuckDB file."""
    with duckdb.connect(path) as connection:
        connection.execute(script)
    return path


async def make_postgres(server: PostgresServer, script: str = PEOPLE) -> str:
    """A database of the server; the address is that of a role that owns it and may make others."""
    url = await anyio.to_thread.run_sync(server.new_database)
    await run_as_owner(
        url,
        "DO $$ BEGIN CREATE ROLE keeper LOGIN CREATEDB; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        f"ALTER DATABASE {url.rpartition('/')[2]} OWNER TO keeper",
        "GRANT ALL ON SCHEMA public TO keeper",
    )
    url = url.replace("postgres@", "keeper@")
    await run_as_owner(url, script)
    return url


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Connection]:
    """A connection of our own to a Postgres database."""
    connection = cast("Connection", await asyncpg.connect(url))  # pyright: ignore[reportUnknownMemberType]
    try:
        yield connection
    finally:
        await connection.close()


async def run_as_owner(url: str, *scripts: str) -> None:
    """Run scripts on a Postgres database."""
    async with connected(url) as connection:
        for script in scripts:
            await connection.execute(script)


async def databases_of(url: str) -> list[str]:
    """The names of the copies on a Postgres server."""
    async with connected(url) as connection:
        query = "SELECT datname FROM pg_database WHERE datname LIKE 'agentflow%' ORDER BY 1"
        return [str(row[0]) for row in await connection.fetch(query)]


class Asking:
    """The sql tools of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        return await self.sandbox.execute(f"sql:{tool}", arguments)

    async def data(self, tool: str, **arguments: object) -> dict[str, object]:
        result = await self.call(tool, **arguments)
        assert result.ok, result.error
        return result.data

    async def rows(self, query: str, **arguments: object) -> list[list[object]]:
        """The rows of a query that the engine must take."""
        data = await self.data("execute", query=query, **arguments)
        assert data["error"] is None, data["error"]
        return cast("list[list[object]]", data["rows"])

    async def problem(self, query: str, **arguments: object) -> str:
        """Return the engine's message on a rejected query."""
        error = (await self.data("execute", query=query, **arguments))["error"]
        assert error is not None, query
        return cast("dict[str, str]", error)["message"]

    async def failure(self, tool: str, **arguments: object) -> tuple[str, str]:
        """Kind and message of a call that must fail."""
        result = await self.call(tool, **arguments)
        assert result.error is not None, result
        return result.error.kind.value, result.error.message

    async def fork(self) -> "Asking":
        return Asking(await self.sandbox.fork())

    async def close(self) -> None:
        await self.sandbox.close()


@asynccontextmanager
async def asking(**settings: object) -> AsyncGenerator[Asking]:
    """A sandbox with these settings of the sql backend."""
    async with Sandbox(SandboxSettings.model_validate({"backends": {"sql": settings}})) as sandbox:
        yield Asking(sandbox)
