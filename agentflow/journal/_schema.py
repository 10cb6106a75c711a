"""Tables of the journal after the newest migration, inserts that tolerate existing rows, and all migrations."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Double,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    case,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from agentflow.errors import ConfigurationError
from agentflow.journal._database import JournalDatabase

METADATA = MetaData()

schema = Table("agentflow_schema", METADATA, Column("version", Integer, nullable=False))
"""One row: the number of applied migrations."""

runs = Table(
    "agentflow_runs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("settings", LargeBinary, nullable=False),
    Column("paused", Boolean, nullable=False),
)
"""Runs by name, with the settings that determine their content; the processes of a paused one begin no effect."""

launches = Table(
    "agentflow_launches",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("launch", Text, primary_key=True),
    Column("stopped", Boolean, nullable=False),
)
"""Launches of a run: the processes of a stopped one end, also those that are restarted."""

seeds = Table(
    "agentflow_seeds",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("place", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("done", Boolean, nullable=False),
    Column("owner", Text),
    Column("until", Double),
    Column("claims", Integer, nullable=False),
    Column("host", Text),
)
"""Seeds by index, with owner, lease, number of claims, and the host of the last claim."""

entries = Table(
    "agentflow_entries",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("seed", Integer, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("ordinal", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""Entries of the seeds' pages."""

harvests = Table(
    "agentflow_harvests",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("seed", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""Results of finished seeds."""

blobs = Table(
    "agentflow_blobs",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("hash", Text, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""Images and other bytes."""

usage = Table(
    "agentflow_usage",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("role", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""Usage of each process, by role."""


rates = Table(
    "agentflow_rates",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("free", Double, nullable=False),
    Column("at", Double),
)
"""Rate limits, with the times of the next free slot and of the last reservation."""

_SET_BACK = 10.0
"""Seconds by which a clock that was set back differs from one that another process has read a moment before."""

services = Table(
    "agentflow_services",
    METADATA,
    Column("url", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("weights", Integer, nullable=False),
    Column("problem", Text),
    Column("owner", Text, nullable=False),
    Column("until", Double, nullable=False),
)
"""Model replicas by address, with the publication of weights that each handled last, owner and lease."""

weights = Table(
    "agentflow_weights",
    METADATA,
    Column("model", Text, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("probe", LargeBinary),
)
"""Newest publication of weights of each model."""


def put(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or replace the one with its primary key."""
    connection.execute(_put(connection.dialect.name, table, tuple(row)), row)


def put_new(connection: Connection, table: Table, row: dict[str, Any], *unique: str) -> None:
    """Insert a row unless one has the same values in these columns."""
    insert = _insert(connection.dialect.name, table).values(row)
    connection.execute(insert.on_conflict_do_nothing(index_elements=unique))


def reserve_slot(connection: Connection, name: str, now: float, interval: float) -> float:
    """Reserve the next free slot of a rate limit and return its time.

    If the clock was set back since the last reservation, the slots move with it.
    """
    insert = _insert(connection.dialect.name, rates).values(name=name, free=now + interval, at=now)
    back = case((rates.c.at > now + _SET_BACK, rates.c.at - now), else_=0.0)
    free = rates.c.free - back
    later = case((free > now, free), else_=now) + interval
    statement = insert.on_conflict_do_update(index_elements=[rates.c.name], set_={"free": later, "at": now})
    reserved: float = connection.execute(statement.returning(rates.c.free)).scalar_one()
    return reserved - interval


@cache
def _put(dialect: str, table: Table, names: tuple[str, ...]) -> Insert:
    """Build the statement once: building costs several times as much as executing."""
    insert = _insert(dialect, table).values({name: bindparam(name) for name in names})
    keys = [column.name for column in table.primary_key]
    rest = {name: insert.excluded[name] for name in names if name not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=rest)


def _insert(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    return (sqlite if dialect == "sqlite" else postgresql).insert(table)


Migration: TypeAlias = Callable[[Connection], None]
"""One migration. It contains its own statements, so that later code changes do not alter it."""


_FIRST_TABLES = """
    CREATE TABLE agentflow_runs (
        id {number} PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings {blob} NOT NULL
    );
    CREATE TABLE agentflow_seeds (
        run INTEGER NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL,
        origin TEXT NOT NULL, place INTEGER NOT NULL, body {blob} NOT NULL, done BOOLEAN NOT NULL,
        owner TEXT, until DOUBLE PRECISION, claims INTEGER NOT NULL,
        PRIMARY KEY (run, number), UNIQUE (run, origin, place), UNIQUE (run, name)
    );
    CREATE TABLE agentflow_entries (
        run INTEGER NOT NULL, seed INTEGER NOT NULL, key TEXT NOT NULL,
        ordinal INTEGER NOT NULL, body {blob} NOT NULL, PRIMARY KEY (run, seed, key)
    );
    CREATE TABLE agentflow_harvests (
        run INTEGER NOT NULL, seed INTEGER NOT NULL, body {blob} NOT NULL, PRIMARY KEY (run, seed)
    );
    CREATE TABLE agentflow_blobs (
        run INTEGER NOT NULL, hash TEXT NOT NULL, data {blob} NOT NULL, PRIMARY KEY (run, hash)
    );
    CREATE TABLE agentflow_usage (
        run INTEGER NOT NULL, owner TEXT NOT NULL, role TEXT NOT NULL, body {blob} NOT NULL,
        PRIMARY KEY (run, owner, role)
    );
    CREATE INDEX agentflow_open ON agentflow_seeds (run, done, number);
    CREATE INDEX agentflow_leased ON agentflow_seeds (run, owner)
"""


def _first_tables(connection: Connection) -> None:
    """Create runs, seeds, entries, harvests, blobs and usage.

    The indices let a claim skip finished seeds, and a search for leases skip waiting ones.
    """
    number, blob = ("INTEGER", "BLOB") if connection.dialect.name == "sqlite" else ("SERIAL", "BYTEA")
    for statement in _FIRST_TABLES.format(number=number, blob=blob).split(";"):
        connection.execute(text(statement))


def _index_of_news(connection: Connection) -> None:
    """Index the order of a seed's entries, where a reader that polls asks for the newest; SQLite has row ids for it."""
    if connection.dialect.name != "sqlite":
        connection.execute(text("CREATE INDEX agentflow_news ON agentflow_entries (run, seed, ordinal)"))


def _rate_limits(connection: Connection) -> None:
    """Create the rate limits, which all runs of the database share."""
    connection.execute(
        text("CREATE TABLE agentflow_rates (name TEXT PRIMARY KEY, free DOUBLE PRECISION NOT NULL)")
    )


def _hosts(connection: Connection) -> None:
    """Add the host that worked on a seed; it stays when the seed is finished."""
    connection.execute(text("ALTER TABLE agentflow_seeds ADD COLUMN host TEXT"))


def _commands(connection: Connection) -> None:
    """Add what `agentflow ctl` asks of the processes of a run."""
    connection.execute(text("ALTER TABLE agentflow_runs ADD COLUMN paused BOOLEAN NOT NULL DEFAULT FALSE"))
    connection.execute(
        text(
            "CREATE TABLE agentflow_launches (run INTEGER NOT NULL, launch TEXT NOT NULL, "
            "stopped BOOLEAN NOT NULL, PRIMARY KEY (run, launch))"
        )
    )


def _reservations(connection: Connection) -> None:
    """Add the time of the last reservation to a rate limit; later ones show by it that the clock was set back."""
    connection.execute(text("ALTER TABLE agentflow_rates ADD COLUMN at DOUBLE PRECISION"))


_REPLICAS = """
    CREATE TABLE agentflow_services (
        url TEXT PRIMARY KEY, model TEXT NOT NULL, key TEXT NOT NULL, weights INTEGER NOT NULL, problem TEXT,
        owner TEXT NOT NULL, until DOUBLE PRECISION NOT NULL
    );
    CREATE TABLE agentflow_weights (
        model TEXT PRIMARY KEY, number INTEGER NOT NULL, version TEXT NOT NULL, folder TEXT NOT NULL, probe {blob}
    )
"""


def _replicas(connection: Connection) -> None:
    """Create the model replicas and their weights, which all runs of the database share."""
    blob = "BLOB" if connection.dialect.name == "sqlite" else "BYTEA"
    for statement in _REPLICAS.format(blob=blob).split(";"):
        connection.execute(text(statement))


MIGRATIONS: tuple[Migration, ...] = (
    _first_tables,
    _index_of_news,
    _rate_limits,
    _hosts,
    _commands,
    _reservations,
    _replicas,
)
"""All migrations, in order. A released migration never changes."""


async def migrate(database: JournalDatabase, steps: Sequence[Migration] = MIGRATIONS) -> None:
    """Apply the missing migrations, each in its own transaction and by one process only.

    :raises ConfigurationError: if the tables are newer than this program.
    """
    while await database.write(lambda connection: _one_step(database, connection, steps)):
        pass


def _one_step(database: JournalDatabase, connection: Connection, steps: Sequence[Migration]) -> bool:
    """Apply the next migration; return whether there was one."""
    database.backend.lock_schema(connection)
    connection.execute(text("CREATE TABLE IF NOT EXISTS agentflow_schema (version INTEGER NOT NULL)"))
    version = connection.scalar(select(schema.c.version))
    if version is None:
        version = 0
        connection.execute(schema.insert().values(version=version))
    if version > len(steps):
        raise ConfigurationError(
            f"journal {database.backend.shown}: its tables are of version {version}, this program knows "
            f"{len(steps)}; use a newer AgentFlow, or another journal"
        )
    if version == len(steps):
        return False
    steps[version](connection)
    connection.execute(update(schema).values(version=version + 1))
    return True
