"""Migrations of the journal's tables."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlalchemy import Connection, select, text, update

from agentflow.errors import ConfigurationError
from agentflow.journal._database import JournalDatabase
from agentflow.journal._schema import schema

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
    sqlite = connection.dialect.name == "sqlite"
    number, blob = ("INTEGER", "BLOB") if sqlite else ("SERIAL", "BYTEA")
    for statement in _FIRST_TABLES.format(number=number, blob=blob).split(";"):
        connection.execute(text(statement))


MIGRATIONS: tuple[Migration, ...] = (_first_tables,)
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
