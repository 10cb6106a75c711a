"""Access of sessions to databases: the originals, or the session's own copies.

Copies of killed servers are found and removed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.sql._databases import DatabaseSource
from mcp_servers.sql._settings import SqlSettings
from mcp_servers.sql._workers import DoneReply, SqlWorker, SqlWorkerPool, WorkerFailure, schema_limits
from mcp_servers.sql.inside._confining import JOURNALS
from mcp_servers.sql.inside._engine import DatabaseSpec
from runtimes import JsonLimits

T = TypeVar("T")
COPY_SECONDS: Final = 300.0
_PREFIX: Final = "agentflow-sql-"
_ENDINGS: Final = ("", *JOURNALS)
_LOCK: Final = "owner.lock"
_MAINTENANCE: Final = "postgres"
"""Database that every server has, for commands that concern other databases."""


@dataclass(slots=True)
class SessionCopies:
    """A session's copies of writable databases."""

    copies: dict[str, DatabaseSpec] = field(default_factory=dict[str, DatabaseSpec])
    """Copies by database id."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a copy is used: statements run one after the other."""


class DatabaseAccess:
    """The databases, their worker processes, and the sessions' copies."""

    def __init__(self, settings: SqlSettings, databases: Mapping[str, DatabaseSource], owner: str) -> None:
        self.databases = databases
        """Databases by id."""
        self._settings = settings
        self._workers = SqlWorkerPool(settings.workers, schema_limits(settings.result_bytes).max_bytes)
        self._copies = DatabaseCopies(self._workers, owner)

    def find(self, tool: str, id: str | None) -> DatabaseSource:
        """Return the database with this id; without an id, the only database.

        :raises ToolFailure: `not_found`, with the most similar id.
        """
        if id is None and len(self.databases) == 1:
            return next(iter(self.databases.values()))
        database = self.databases.get(id or "")
        if database is None:
            wrong = f"no database {id!r}" if id is not None else "name a database"
            hint = did_you_mean(id or "", self.databases) or " sql_list_databases returns the ids."
            raise ToolFailure(ErrorKind.NOT_FOUND, f"{tool}: {wrong}.{hint}")
        return database

    async def ask(
        self,
        database: DatabaseSource,
        state: SessionCopies,
        request: Mapping[str, object],
        seconds: float,
        kind: type[T],
        limits: JsonLimits,
    ) -> T:
        """Send a request to the database, or to the session's copy of it.

        :raises WorkerFailure: if it fails.
        """
        original = DatabaseSpec(
            database.engine,
            database.target,
            writable=False,
            memory=self._settings.memory_bytes,
            file_bytes=self._settings.copy_bytes,
            superuser=self._settings.superuser,
        )
        if not self._settings.writable:
            return await self._workers.ask(original, request, seconds, kind, limits)
        async with state.lock:
            if database.id not in state.copies:
                state.copies[database.id] = await self._copies.copy(original)
            return await self._workers.ask(state.copies[database.id], request, seconds, kind, limits)

    async def fork(self, state: SessionCopies) -> SessionCopies:
        """Copy the session's copies.

        :raises ToolFailure: `cannot_fork`, if a copy cannot be made.
        """
        forked = SessionCopies()
        try:
            for id, database in state.copies.items():
                forked.copies[id] = await self._copies.copy(database)
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


class DatabaseCopies:
    """Creates and removes copies: files in a directory of this server, or databases on the original's Postgres server."""

    def __init__(self, workers: SqlWorkerPool, owner: str) -> None:
        """:param owner: 12 hexadecimal digits that are unique to this server."""
        self._workers = workers
        self._owner = owner
        self._numbers = count(1)
        self._lock = anyio.Lock()
        self._folder: Path | None = None
        self._folder_lock = -1
        self._keepers: dict[str, SqlWorker] = {}

    async def copy(self, source: DatabaseSpec) -> DatabaseSpec:
        """Copy a database or another copy of it, which must not be in use.

        :raises WorkerFailure: if the copy cannot be made.
        """
        if source.engine == "postgres":
            return await self._copy_on_server(source)
        async with self._lock:
            if self._folder is None:
                self._folder, self._folder_lock = await anyio.to_thread.run_sync(_new_folder, self._owner)
        name = f"{next(self._numbers)}{Path(source.target).suffix}"
        # The source's worker can write only to a directory of its own, so the host moves the copy.
        made, folder = Path(self._outbox(source), name), self._folder / Path(name).stem
        if os.stat(source.target).st_size > source.file_bytes:
            raise WorkerFailure("failed", f"it is larger than the {source.file_bytes} bytes of `copy_bytes`")
        try:
            copying = replace(source, folder=str(made.parent))
            await self._workers.ask(
                copying, {"do": "copy", "target": str(made), "source": ""}, COPY_SECONDS, DoneReply
            )
            await anyio.to_thread.run_sync(_move, made, folder)
        except BaseException:
            _unlink(str(made))
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return replace(source, target=str(folder / name), folder=str(folder), writable=True)

    async def remove(self, database: DatabaseSpec) -> None:
        """Remove a copy, which must not be in use."""
        await self._workers.forget(database)
        if database.engine == "postgres":
            name, keeper = _database_of(database.target), await self._keeper(database)
            async with self._lock:
                await keeper.ask({"do": "remove", "target": name}, COPY_SECONDS, DoneReply)
        else:
            await anyio.to_thread.run_sync(shutil.rmtree, database.folder)

    async def close(self) -> None:
        """Disconnect from the servers and remove the directory."""
        for keeper in self._keepers.values():
            await keeper.close()
        self._keepers = {}
        if self._folder is not None:
            await anyio.to_thread.run_sync(shutil.rmtree, self._folder)
            os.close(self._folder_lock)
            self._folder = None

    def _outbox(self, source: DatabaseSpec) -> str:
        """Return the directory in which a source's worker makes copies: a copy's own, or one per original."""
        assert self._folder is not None
        if source.folder:
            return source.folder
        folder = self._folder / f"of-{sha256(source.target.encode()).hexdigest()[:16]}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return str(folder)

    async def _copy_on_server(self, source: DatabaseSpec) -> DatabaseSpec:
        keeper = await self._keeper(source)
        name = f"agentflow_sql_{self._owner}_{next(self._numbers)}"
        await self._workers.forget(source)
        request = {"do": "copy", "target": name, "source": _database_of(source.target)}
        async with self._lock:
            await keeper.ask(request, COPY_SECONDS, DoneReply)
        return replace(source, target=_with_database(source.target, name), writable=True)

    async def _keeper(self, database: DatabaseSpec) -> SqlWorker:
        url = _with_database(database.target, _MAINTENANCE)
        async with self._lock:
            keeper = self._keepers.get(url)
            if keeper is None or not keeper.usable:
                if keeper is not None:
                    await keeper.close()
                wanted = replace(database, engine="keeper", target=url, writable=True, owner=self._owner)
                keeper = self._keepers[url] = await SqlWorker.start(wanted)
            return keeper


def _new_folder(owner: str) -> tuple[Path, int]:
    """Create a directory with a lock that this process holds; remove directories whose lock is free."""
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.geteuid() and (lock := _locked(folder)) is not None:
                shutil.rmtree(folder)
                os.close(lock)
    folder = parent / f"{_PREFIX}{owner}"
    folder.mkdir(mode=0o700)
    lock = _locked(folder, os.O_CREAT)
    assert lock is not None
    return folder, lock


def _locked(folder: Path, flags: int = 0) -> int | None:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _move(made: Path, folder: Path) -> None:
    """Move a copy and its journals to a directory of its own."""
    folder.mkdir(mode=0o700)
    for ending in _ENDINGS:
        with suppress(FileNotFoundError):
            os.rename(f"{made}{ending}", f"{folder / made.name}{ending}")


def _unlink(path: str) -> None:
    for ending in _ENDINGS:
        Path(path + ending).unlink(missing_ok=True)


def _database_of(url: str) -> str:
    from sqlalchemy.engine import make_url  # heavy, and files need none of it

    return make_url(url).database or ""


def _with_database(url: str, name: str) -> str:
    from sqlalchemy.engine import make_url  # heavy, and files need none of it

    return make_url(url).set(database=name).render_as_string(hide_password=False)
