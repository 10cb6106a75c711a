"""Model replicas: servers that answer for the same model, in a table with leases, and the weights that they shall have."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar

import anyio
from sqlalchemy import Connection, Update, delete, select, update

from agentflow.actors import SYSTEM_CLOCK
from agentflow.errors import ConfigurationError
from agentflow.journal._database import JournalDatabase, backend_for, migrate, put, services, weights
from agentflow.journal._seeds import has_died, this_process

T = TypeVar("T")

LEASE_SECONDS: Final = 30.0
"""Seconds after which a replica that is not renewed counts as dead."""
REFRESH_SECONDS: Final = 2.0
"""Seconds after which clients have read a change of the table."""


class Replica(NamedTuple):
    """One server of a model. See docs/scaling.md."""

    url: str
    """Base URL by which clients reach it."""
    model: str
    """Name of the model in requests."""
    key: str
    """Key that requests must carry."""
    weights: int = 0
    """Number of the publication that it handled last; 0: it has the weights that it started with."""
    problem: str | None = None
    """Reason that it could not take that publication; it gets no calls then."""


class Publication(NamedTuple):
    """Weights that all replicas of a model shall have. See docs/scaling.md."""

    number: int
    """Number of the publication, counted from 1 for each model."""
    version: str
    """Version of the weights."""
    folder: str
    """Folder with the weights, which each replica can read."""
    probe: bytes | None
    """Check of the weights, as the publisher encoded it."""


@asynccontextmanager
async def open_replicas(url: str, *, patience: float = 60.0) -> AsyncGenerator["ReplicaTable"]:
    """Open the table of replicas in the database of a journal, and create missing tables. See docs/scaling.md.

    :param url: `postgresql://…`
    :param patience: seconds for which an unavailable database is retried.
    :raises ConfigurationError: if the URL can't be used, or the tables belong to a newer version.
    :raises RunStopped: if the database is unavailable for longer than `patience`; all methods do this, too.
    """
    database = JournalDatabase(backend_for(url), patience, SYSTEM_CLOCK)
    try:
        await migrate(database)
        yield ReplicaTable(database)
    finally:
        await database.close()


class ReplicaTable:
    """Table of the replicas of all models that share a database. Leases follow the database's clock."""

    def __init__(self, database: JournalDatabase) -> None:
        self.shown = database.backend.shown
        """URL of the database, without a password."""
        self._database = database
        self._writing = anyio.Lock()
        self._owner = this_process()

    async def live(self, model: str) -> list[Replica]:
        """Return the replicas of a model with a lease, also those with a problem, by URL.

        Those whose process ran on this machine and has ended are left out.
        """

        def load(connection: Connection) -> list[Replica]:
            rows = connection.execute(
                select(services)
                .where(services.c.model == model, services.c.until > self._database.backend.clock())
                .order_by(services.c.url)
            )
            return [
                Replica(row.url, row.model, row.key, row.weights, row.problem)
                for row in rows
                if not has_died(row.owner)
            ]

        return await self._database.read(load)

    async def renew(self, replica: Replica, *, first: bool = False) -> Publication | None:
        """Extend the lease of a replica of this process; return the newest publication of its model.

        The replica is registered, and what it says of itself stored, only if it has handled that publication. Otherwise a lease
        that still runs is extended: the replica answers with the weights before until it has the new ones.

        :param first: take over the address from an earlier server.
        :raises ConfigurationError: if another server has registered at its address.
        """

        def extend(connection: Connection) -> Publication | None:
            now = self._database.backend.now(connection)
            wanted = _newest(connection, replica.model)
            mine = services.c.url == replica.url
            owner = connection.scalar(select(services.c.owner).where(mine, services.c.until > now))
            if not first and owner not in (None, self._owner) and not has_died(owner):
                raise ConfigurationError(
                    f"{replica.url}: another server has registered at this address; give each its own --address"
                )
            until = now + LEASE_SECONDS
            if replica.weights == (wanted.number if wanted else 0):
                put(connection, services, {**replica._asdict(), "owner": self._owner, "until": until})
            else:
                connection.execute(
                    update(services)
                    .where(mine, services.c.owner == self._owner, services.c.until > now)
                    .values(until=until)
                )
            return wanted

        return await self._write(extend)

    async def remove(self, url: str) -> None:
        """Remove a replica of this process, and those whose leases ran out."""

        def drop(connection: Connection) -> None:
            now = self._database.backend.now(connection)
            mine = (services.c.url == url) & (services.c.owner == self._owner)
            connection.execute(delete(services).where(mine | (services.c.until <= now)))

        await self._write(drop)

    async def publish(self, model: str, version: str, folder: str, probe: bytes | None) -> int:
        """Store new weights for the replicas of a model, and return the number of the publication."""

        def store(connection: Connection) -> int:
            before = _newest(connection, model)
            new = Publication(before.number + 1 if before else 1, version, folder, probe)
            put(connection, weights, {"model": model, **new._asdict()})
            return new.number

        return await self._write(store)

    async def move(self, model: str, folder: str, to: str) -> None:
        """Name another folder with the newest weights of a model, if they are in this one."""
        statement = (
            update(weights).where(weights.c.model == model, weights.c.folder == folder).values(folder=to)
        )
        await self._execute(statement)

    async def exclude(self, url: str, number: int, problem: str) -> None:
        """Give a replica no calls until it has handled a publication."""
        statement = (
            update(services).where(services.c.url == url, services.c.weights < number).values(problem=problem)
        )
        await self._execute(statement)

    async def _execute(self, statement: Update) -> None:
        def change(connection: Connection) -> None:
            connection.execute(statement)

        await self._write(change)

    async def _write(self, change: Callable[[Connection], T]) -> T:
        async with self._writing:
            return await self._database.write(change)


def _newest(connection: Connection, model: str) -> Publication | None:
    row = connection.execute(
        select(weights.c.number, weights.c.version, weights.c.folder, weights.c.probe).where(
            weights.c.model == model
        )
    ).one_or_none()
    return None if row is None else Publication(*row)
