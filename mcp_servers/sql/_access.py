"""From a session and the id of a database to an engine that answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.sql._copies import Copies
from mcp_servers.sql._databases import Database
from mcp_servers.sql._settings import SqlSettings
from mcp_servers.sql._worker import Place, Reply
from mcp_servers.sql._workers import Workers

__all__ = ["Access", "State"]


@dataclass(slots=True)
class State:
    """What a session has of its own: copies of the databases that it has used, where it may change them."""

    copies: dict[str, Place] = field(default_factory=dict[str, Place])
    """The copies by the id of the database."""
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while one of them is used: one statement comes after the other."""


class Access:
    """The databases, the engines that have them open, and the sessions' copies."""

    def __init__(self, settings: SqlSettings, databases: Mapping[str, Database], owner: str) -> None:
        self.databases = databases
        """The databases by id."""
        self._settings = settings
        self._workers = Workers(settings.workers)
        self._copies = Copies(self._workers, owner)

    def find(self, tool: str, id: str | None) -> Database:
        """The database of that id; the only one there is, where none is named.

        :raises ToolFailure: `not_found`, with the nearest right id.
        """
        if id is None and len(self.databases) == 1:
            return next(iter(self.databases.values()))
        found = self.databases.get(id or "")
        if found is None:
            wrong = f"no database {id!r}" if id is not None else "name a database"
            hint = did_you_mean(id or "", self.databases) or " sql_list_databases tells the ids."
            raise ToolFailure(ErrorKind.NOT_FOUND, f"{tool}: {wrong}.{hint}")
        return found

    async def ask(
        self, database: Database, state: State, request: Mapping[str, object], seconds: float
    ) -> Reply:
        """An engine's answer.

        :raises WorkerFailure: with the reason, if there is none.
        """
        original = self._original(database)
        if not self._settings.writable:
            return await self._ask(original, request, seconds)
        async with state.turn:
            if database.id not in state.copies:
                state.copies[database.id] = await self._copies.copy(original)
            return await self._ask(state.copies[database.id], request, seconds)

    async def fork(self, state: State) -> State:
        """A state with copies of the copies.

        :raises ToolFailure: `cannot_fork`, if one can't be made.
        """
        forked = State()
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

    async def remove(self, state: State) -> None:
        """Remove the copies of a session."""
        for id in list(state.copies):
            await self._copies.remove(state.copies.pop(id))

    async def close(self) -> None:
        """End everything."""
        await self._workers.close()
        await self._copies.close()

    async def _ask(self, place: Place, request: Mapping[str, object], seconds: float) -> Reply:
        async with self._workers.lend(place) as worker:
            return await worker.ask(request, seconds)

    def _original(self, database: Database) -> Place:
        return Place(
            database.engine,
            database.target,
            writable=False,
            memory=self._settings.memory_bytes,
            file_bytes=self._settings.copy_bytes,
            superuser=self._settings.superuser,
        )
