"""The journal in a Postgres database that many machines share."""

from collections.abc import Sequence
from importlib.util import find_spec

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from agentflow.errors import ConfigurationError
from agentflow.journal._backend import EntryRow, Trouble, root_of

__all__ = ["Postgres"]

# The share on the seed holds up whoever would claim it until these entries are there for them to read.
_INSERT = """
    INSERT INTO agentflow_entries (run, seed, key, ordinal, body)
    SELECT entry.run, entry.seed, entry.key, entry.ordinal, entry.body
    FROM unnest($1::int[], $2::int[], $3::text[], $4::int[], $5::bytea[], $6::int[])
        AS entry (run, seed, key, ordinal, body, claims)
    JOIN agentflow_seeds AS seeds
        ON seeds.run = entry.run AND seeds.number = entry.seed AND seeds.claims = entry.claims
    FOR SHARE OF seeds
    ON CONFLICT DO NOTHING
"""
_SCHEMA_LOCK = 0x6166_6A6F_7572_6E61
# Classes and codes of SQLSTATE: connections, lost races, a server that stops, starts or has no place.
_PASSING = ("08", "40", "57P01", "57P02", "57P03", "53300", "55P03")
_FULL = "53100"


class Postgres:
    """A database by its address. What a transaction wrote outlives a loss of the server's power at once."""

    def __init__(self, url: URL, connections: int) -> None:
        if find_spec("asyncpg") is None:
            raise ConfigurationError(
                "journal: Postgres needs the package asyncpg; install it with: pip install 'agentflow[postgres]'"
            )
        query = dict(url.query)
        if "sslmode" in query:
            # What libpq calls sslmode the driver calls ssl.
            query["ssl"] = query.pop("sslmode")
        self._url = url.set(drivername="postgresql+asyncpg", query=query)
        self._connections = connections
        self.shown = url.render_as_string(hide_password=True)

    def engine(self) -> AsyncEngine:
        """A new engine for the database."""
        return create_async_engine(
            self._url, pool_size=self._connections, max_overflow=0, connect_args={"timeout": 10}
        )

    async def prepare(self) -> None:
        """Nothing: the database is made by whoever owns the server."""

    async def begin(self, connection: AsyncConnection, *, durable: bool) -> None:
        """Nothing to say: a transaction begins by itself, and every one is durable."""

    async def lock_schema(self, connection: AsyncConnection) -> None:
        """Wait for a lock that every such transaction takes."""
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))

    async def now(self, connection: AsyncConnection) -> float:
        """The server's time."""
        found = await connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())::float8"))
        return float(found or 0)

    async def insert(self, connection: AsyncConnection, rows: Sequence[EntryRow]) -> int:
        """All rows in one statement, each column an array."""
        columns = tuple(list(column) for column in zip(*rows, strict=True))
        written = (await connection.exec_driver_sql(_INSERT, columns)).rowcount
        await connection.commit()
        return written

    def trouble(self, error: BaseException) -> Trouble:
        """By SQLSTATE; an error without one is a connection that could not be made, or broke."""
        state: object = getattr(root_of(error), "sqlstate", None)
        if state == _FULL:
            return Trouble.FULL
        passing = state is None or str(state).startswith(_PASSING)
        return Trouble.PASSING if passing else Trouble.BROKEN
