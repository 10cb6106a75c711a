"""Copies of databases on a Postgres server; copies of killed servers are removed."""

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from ._engine import DatabaseSpec, DatabaseUnavailable, EngineTable, SqlEngineError, StatementResult
from ._postgres import Connection, connect

T = TypeVar("T")
PREFIX = "agentflow_sql_"
"""Prefix of the names of all copies, followed by the owner and a number."""
_NAME = re.compile(rf"{PREFIX}(?P<owner>[0-9a-f]{{12}})_\d+")
_OWN = (
    "SELECT datname FROM pg_database WHERE datdba = (SELECT oid FROM pg_roles WHERE rolname = current_user)"
)


class PostgresCopies:
    """One connection to the server, to a database that is never copied.

    It holds a lock with the owner's number as long as it lives. Copies of an owner whose lock is free are nobody's.
    """

    def __init__(self, place: DatabaseSpec) -> None:
        self._owner = place["owner"]
        self._runner = asyncio.Runner()
        self._connection: Connection = self._wait(connect(place))
        self._wait(self._begin())

    def copy(self, target: str, source: str) -> None:
        """Copy a database to which no client is connected."""
        self._wait(self._connection.execute(f"CREATE DATABASE {_quoted(target)} TEMPLATE {_quoted(source)}"))

    def remove(self, target: str) -> None:
        """Drop a copy."""
        assert _NAME.fullmatch(target)
        self._wait(self._drop(target))

    def run(self, query: str) -> StatementResult:
        """Not supported."""
        raise SqlEngineError(query)

    def finish(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""

    def tidy(self) -> None:
        """Do nothing."""

    def tables(self) -> list[EngineTable]:
        """Not supported."""
        return []

    def interrupt(self) -> None:
        """Do nothing: copying is not interruptible."""

    def close(self) -> None:
        """Disconnect from the server."""
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
        others = {found["owner"] for name in names if (found := _NAME.fullmatch(name))} - {self._owner}
        for owner in others:
            if await self._connection.fetchval(f"SELECT pg_try_advisory_lock({int(owner, 16)})"):
                for name in names:
                    if name.startswith(f"{PREFIX}{owner}_"):
                        await self._drop(name)
                await self._connection.execute(f"SELECT pg_advisory_unlock({int(owner, 16)})")

    async def _drop(self, name: str) -> None:
        await self._connection.execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
