"""Access of sessions to databases: the originals, or the session's own copies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.sql._copies import DatabaseCopies
from mcp_servers.sql._databases import DatabaseSource
from mcp_servers.sql._settings import SqlSettings
from mcp_servers.sql._workers import Reply, SqlWorkerPool, WorkerTarget


@dataclass(slots=True)
class SessionCopies:
    """A session's copies of writable databases."""

    copies: dict[str, WorkerTarget] = field(default_factory=dict[str, WorkerTarget])
    """Copies by database id."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a copy is used: statements run one after the other."""


class DatabaseAccess:
    """The databases, their worker processes, and the sessions' copies."""

    def __init__(self, settings: SqlSettings, databases: Mapping[str, DatabaseSource], owner: str) -> None:
        self.databases = databases
        """Databases by id."""
        self._settings = settings
        self._workers = SqlWorkerPool(settings.workers)
        self._copies = DatabaseCopies(self._workers, owner)

    def find(self, tool: str, id: str | None) -> DatabaseSource:
        """Return the database with this id; without an id, the only database.

        :raises ToolFailure: `not_found`, with the most similar id.
        """
        if id is None and len(self.databases) == 1:
            return next(iter(self.databases.values()))
        found = self.databases.get(id or "")
        if found is None:
            wrong = f"no database {id!r}" if id is not None else "name a database"
            hint = did_you_mean(id or "", self.databases) or " sql_list_databases returns the ids."
            raise ToolFailure(ErrorKind.NOT_FOUND, f"{tool}: {wrong}.{hint}")
        return found

    async def ask(
        self, database: DatabaseSource, state: SessionCopies, request: Mapping[str, object], seconds: float
    ) -> Reply:
        """Send a request to the database, or to the session's copy of it.

        :raises WorkerFailure: if it fails.
        """
        original = self._original(database)
        if not self._settings.writable:
            return await self._ask(original, request, seconds)
        async with state.lock:
            if database.id not in state.copies:
                state.copies[database.id] = await self._copies.copy(original)
            return await self._ask(state.copies[database.id], request, seconds)

    async def fork(self, state: SessionCopies) -> SessionCopies:
        """Copy the session's copies.

        :raises ToolFailure: `cannot_fork`, if a copy cannot be made.
        """
        forked = SessionCopies()
        try:
            for id, place in state.copies.items():
                forked.copies[id] = await self._copies.copy(place)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.remove(forked)
            if isinstance(error, Exception):
                raise ToolFailure(ErrorKind.CANNOT_FORK, f"sql: a copy can't be made: {error}") from error
            raise
        return forked

    async def remove(self, state: SessionCopies) -> None:
        """Remove the copies of a session."""
        for id in list(state.copies):
            await self._copies.remove(state.copies.pop(id))

    async def close(self) -> None:
        """Stop the workers and remove the copies."""
        await self._workers.close()
        await self._copies.close()

    async def _ask(self, place: WorkerTarget, request: Mapping[str, object], seconds: float) -> Reply:
        async with self._workers.lend(place) as worker:
            return await worker.ask(request, seconds)

    def _original(self, database: DatabaseSource) -> WorkerTarget:
        return WorkerTarget(
            database.engine,
            database.target,
            writable=False,
            memory=self._settings.memory_bytes,
            file_bytes=self._settings.copy_bytes,
            superuser=self._settings.superuser,
        )
