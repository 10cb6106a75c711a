"""Reading and writing that outlast a lost connection."""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import anyio
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentflow.actors import Backoff, Clock
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.journal._backend import Backend, EntryRow, Trouble, root_of
from agentflow.journal._postgres import Postgres
from agentflow.journal._sqlite import Sqlite
from agentflow.telemetry import get_logger

__all__ = ["Database", "backend_for"]

T = TypeVar("T")

_READERS = 4
# SQLite's own come from entries, which are written on the driver's connection.
_ERRORS = (SQLAlchemyError, OSError, sqlite3.Error)
_BACKOFF = Backoff(initial=0.05, maximum=2.0)
_log = get_logger(__name__)


def backend_for(url: str | Path) -> Backend:
    """The kind of database that an address names; a path is a SQLite file, whatever signs it holds.

    :raises ConfigurationError: if it names none that can be used.
    """
    if isinstance(url, Path):
        return Sqlite(URL.create("sqlite", database=str(url)), _READERS + 1)
    try:
        address = make_url(url)
    except ArgumentError:
        address = None
    kind = address.drivername.partition("+")[0] if address is not None else ""
    if address is not None and kind == "sqlite" and address.database not in (None, "", ":memory:"):
        return Sqlite(address, _READERS + 1)
    if address is not None and kind in ("postgresql", "postgres"):
        return Postgres(address, _READERS + 1)
    # The address itself is not repeated: it can hold a password.
    raise ConfigurationError(
        "journal: not an address that can be used; write sqlite:///FILE or postgresql://…"
    )


class Database:
    """A database that may go away for a while.

    Whatever finds it gone tries again until the patience is over, which starts with the first failure and is renewed
    by the first success.
    """

    def __init__(self, backend: Backend, patience: float, clock: Clock) -> None:
        self.backend = backend
        """What kind it is."""
        self._engine = backend.engine()
        self._patience = patience
        self._clock = clock
        self._failing_since: float | None = None
        self._readers = anyio.CapacityLimiter(_READERS)
        self._writing: AsyncConnection | None = None

    async def prepare(self) -> None:
        """Do what must be done before anything is read or written.

        :raises RunStopped: if the database can't be used.
        """
        await self._persist(self.backend.prepare)

    async def read(self, ask: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Ask something that changes nothing.

        :raises RunStopped: if the database can't be read.
        """

        async def attempt() -> T:
            async with self._readers, self._engine.connect() as connection:
                return await ask(connection)

        return await self._persist(attempt)

    async def write(self, change: Callable[[AsyncConnection], Awaitable[T]], *, durable: bool = False) -> T:
        """Change something in one transaction; for one task at a time. An attempt that failed is undone and made again.

        :raises RunStopped: if the database can't be written.
        """

        async def attempt(connection: AsyncConnection) -> T:
            # Said, so that it ends also where the change turned out to change nothing.
            await connection.begin()
            await self.backend.begin(connection, durable=durable)
            result = await change(connection)
            await connection.commit()
            return result

        return await self._persist(lambda: self._with_writer(attempt))

    async def insert(self, rows: Sequence[EntryRow]) -> int:
        """Write the entries that are new; how many those were.

        :raises RunStopped: if the database can't be written.
        """
        return await self._persist(
            lambda: self._with_writer(lambda connection: self.backend.insert(connection, rows))
        )

    async def close(self) -> None:
        """Close all connections."""
        with anyio.CancelScope(shield=True):
            await self._drop_writer()
            await self._engine.dispose()

    async def _with_writer(self, attempt: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        if self._writing is None:
            self._writing = await self._engine.connect()
        try:
            return await attempt(self._writing)
        except BaseException:
            # Whatever it was, the transaction is undone before anything else is done on the connection.
            with anyio.CancelScope(shield=True):
                await self._drop_writer()
            raise

    async def _drop_writer(self) -> None:
        connection, self._writing = self._writing, None
        if connection is not None:
            try:
                await connection.close()
            except _ERRORS:
                await connection.invalidate()

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        while True:
            try:
                result = await attempt()
            except _ERRORS as error:
                failures += 1
                self._check(error)
                await self._clock.sleep(_BACKOFF.delay(failures))
            else:
                self._failing_since = None
                return result

    def _check(self, error: Exception) -> None:
        """Whether to try again after that error.

        :raises RunStopped: if not.
        """
        reason = " ".join(str(root_of(error)).split()) or type(root_of(error)).__name__
        trouble = self.backend.trouble(error)
        if trouble is Trouble.FULL:
            raise self._stopped(f"no room is left ({reason}); make room") from error
        if trouble is Trouble.BROKEN:
            raise self._stopped(f"{reason}; mend it") from error
        now = self._clock.now()
        if self._failing_since is None:
            self._failing_since = now
            _log.warning(
                "the journal does not answer, trying again", journal=self.backend.shown, reason=reason
            )
        if now - self._failing_since >= self._patience:
            raise self._stopped(f"no answer for {self._patience:g} s ({reason}); mend it") from error

    def _stopped(self, what: str) -> RunStopped:
        return RunStopped(
            StopCause.JOURNAL,
            f"journal {self.backend.shown}: {what}, then run the same command again: nothing that was recorded is lost",
        )
