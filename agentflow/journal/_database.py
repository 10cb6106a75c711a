"""Databases of the journal: their interface, reads and writes that survive a lost connection, tables and migrations."""

import sqlite3
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import anyio
import msgspec
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
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
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from agentflow._decoding import decode_reason
from agentflow._folder_files import sqlite_reason, unpack
from agentflow.actors import Backoff, Clock
from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.extras import missing_extra
from agentflow.journal._page import damaged_journal, decode_record
from agentflow.telemetry import get_logger

T = TypeVar("T")
_PACKED_BYTES: Final = 4096
"""A compression costs 70 us at least, and saves half of a short text."""
_COMPRESSION: Final = 1
"""Level: a higher one takes longer and saves a tenth."""


class DatabaseFailure(Enum):
    """Consequence of a database error for the callers that wait."""

    PASSING = auto()
    """It may pass soon: a lost connection, a server that starts."""
    FULL = auto()
    """The disk is full."""
    DAMAGED = auto()
    """The stored data is damaged."""
    BROKEN = auto()
    """A retry would not help."""


class EntryRow(NamedTuple):
    """One entry, encoded for writing."""

    run: int
    seed: int
    key: str
    ordinal: int
    body: bytes
    claims: int
    """Number of claims of its seed when the page was opened; a later claim takes the page over."""


class BlobRow(NamedTuple):
    """One blob that is written with the next entries."""

    run: int
    hash: str
    data: bytes
    is_json: bool
    """It is JSON, which is compressed if that pays; see `unpacked_json`."""

    @property
    def stored(self) -> tuple[int, str, bytes]:
        """Run, hash and bytes as they are stored."""
        packs = self.is_json and len(self.data) >= _PACKED_BYTES
        return self.run, self.hash, zlib.compress(self.data, _COMPRESSION) if packs else self.data


def unpacked_json(data: bytes) -> bytes:
    """Return JSON from its stored form.

    :raises ValueError: if it is something else.
    """
    if data.startswith(b"{"):
        return data
    return unpack(data)


class DatabaseBackend(Protocol):
    """One kind of database.

    Each query and change is written once, as a plain function of a connection. SQLite calls it in a worker thread, so
    that no statement blocks the event loop; with Postgres it runs on the loop and awaits.
    """

    shown: str
    """Its URL, without a password."""

    @property
    def file(self) -> Path | None:
        """Its file, if it is one."""
        ...

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Run a query that changes nothing."""
        ...

    async def write(self, change: Callable[[Connection], T], *, durable: bool, atomic: bool) -> T:
        """Run a change in one transaction, one at a time; a failed change leaves nothing behind.

        A durable change survives a power loss, together with everything before it. Each statement of a change that is
        not atomic may be a transaction by itself, which saves round trips.
        """
        ...

    async def insert(self, rows: Sequence[EntryRow], blobs: Sequence[BlobRow]) -> int:
        """Write the entries whose key is new and whose seed was not claimed since; return their number.

        :param blobs: blobs for the same transaction; known ones are left out.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    def lock_schema(self, connection: Connection) -> None:
        """Take the exclusive lock for changing tables, until the transaction ends."""
        ...

    def now(self, connection: Connection) -> float:
        """Return the time that all users of the database agree on."""
        ...

    def clock(self) -> ColumnElement[float]:
        """Return that time as a part of any statement, read when it is executed."""
        ...

    def trouble(self, error: BaseException) -> DatabaseFailure:
        """Classify a database error."""
        ...


def root_of(error: BaseException) -> BaseException:
    """Return the driver's error below SQLAlchemy's wrapper."""
    while (cause := getattr(error, "orig", None) or error.__cause__) is not None:
        error = cause
    return error


# SQLite entries are written on the driver's connection and raise the driver's errors.
_ERRORS = (SQLAlchemyError, OSError, sqlite3.Error)
_BACKOFF = Backoff(initial=0.05, maximum=2.0)
_log = get_logger(__name__)


def backend_for(url: str | Path) -> DatabaseBackend:
    """Return the kind of database that a URL names; a path is a SQLite file, whatever characters it contains.

    :raises ConfigurationError: if the URL names no supported database.
    """
    from agentflow.journal._sqlite import Sqlite  # it imports this module

    if isinstance(url, Path):
        return Sqlite(URL.create("sqlite", database=str(url)))
    address = _address(url)
    kind = address.drivername.partition("+")[0] if address is not None else ""
    if address is not None and kind == "sqlite" and address.database not in (None, "", ":memory:"):
        return Sqlite(address)
    if address is not None and kind in ("postgresql", "postgres"):
        if find_spec("asyncpg") is None or find_spec("greenlet") is None:
            raise ConfigurationError(missing_extra("journal: Postgres", "postgres"))
        # A SQLite file needs no driver package.
        from agentflow.journal._postgres import Postgres

        return Postgres(address)
    # The message leaves out the URL: it may contain a password.
    raise ConfigurationError(
        "journal: not an address that can be used; write sqlite:///FILE or postgresql://…"
    )


def journal_hosts(url: str) -> str | None:
    """Return the hosts or the file of a database; `None`: it is no address. Nothing is connected to.

    >>> journal_hosts("postgresql://me@db.example/runs")
    'db.example'
    """
    address = _address(url)
    if address is None:
        return None
    if address.drivername.startswith("sqlite"):
        return f"this machine, {address.database}"
    # The driver prefers hosts of the query.
    named = address.query.get("host", address.host or "the host of PGHOST")
    return named if isinstance(named, str) else ", ".join(named)


def is_same_database(url: str, other: str) -> bool:
    """Return whether two addresses name the same database of the same host; users and passwords may differ.

    >>> is_same_database("postgresql://me:***@db.example/runs", "postgresql://you@db.example:5432/runs")
    True
    """
    first, second = _address(url), _address(other)
    if first is None or second is None:
        return False
    return _name_of(first) == _name_of(second)


def _name_of(address: URL) -> tuple[object, ...]:
    kind = address.drivername.partition("+")[0].replace("postgresql", "postgres")
    return kind, address.host, address.port or 5432, address.database


def _address(url: str) -> URL | None:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None


class JournalDatabase:
    """Database that may be unavailable for a while.

    A failed operation is retried until the patience is over. Patience starts with the first failure and is renewed by the
    first success.
    """

    def __init__(self, backend: DatabaseBackend, patience: float, clock: Clock) -> None:
        self.backend = backend
        """The kind of database."""
        self._patience = patience
        self._clock = clock
        self._failing_since: float | None = None
        self._closed = False

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Run a query that changes nothing.

        :raises RunStopped: if the database can't be read.
        """
        return await self._persist(lambda: self.backend.read(ask))

    async def write(
        self, change: Callable[[Connection], T], *, durable: bool = False, atomic: bool = True
    ) -> T:
        """Run a change in one transaction, one at a time. A failed attempt is rolled back and retried.

        :param atomic: `False`: each statement may be a transaction by itself.
        :raises RunStopped: if the database can't be written.
        """
        return await self._persist(lambda: self.backend.write(change, durable=durable, atomic=atomic))

    async def insert(self, rows: Sequence[EntryRow], blobs: Sequence[BlobRow] = ()) -> int:
        """Write the new entries, and blobs in the same transaction; return the number of entries.

        :raises RunStopped: if the database can't be written.
        """
        return await self._persist(lambda: self.backend.insert(rows, blobs))

    def decode(self, body: bytes, kind: type[T], record: str) -> T:
        """Return a record.

        :param record: its name in errors.
        :raises RunStopped: if it is damaged.
        """
        return decode_record(body, kind, self.backend.shown, record)

    async def close(self) -> None:
        """Close all connections. Later calls fail."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self.backend.close()

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        while True:
            if self._closed:
                raise RunStopped(StopCause.JOURNAL, f"journal {self.backend.shown}: it is closed")
            try:
                result = await attempt()
            except AgentFlowError:
                raise
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                problem = (
                    f"a record is damaged ({decode_reason(error)}), so that part of what was recorded is lost"
                )
                raise damaged_journal(self.backend.shown, problem) from error
            except _ERRORS as error:
                failures += 1
                self._check(error)
                await self._clock.sleep(_BACKOFF.delay(failures))
            else:
                self._failing_since = None
                return result

    def _check(self, error: Exception) -> None:
        """Return whether to retry after an error.

        :raises RunStopped: if not.
        """
        reason = sqlite_reason(root_of(error), self.backend.file)
        trouble = self.backend.trouble(error)
        if trouble is DatabaseFailure.FULL:
            raise self._stopped(f"no room is left ({reason}); make room") from error
        if trouble is DatabaseFailure.DAMAGED:
            problem = f"damaged ({reason}), so that part of what was recorded may be lost"
            raise damaged_journal(self.backend.shown, problem) from error
        if trouble is DatabaseFailure.BROKEN:
            # A failing disk, for example: nothing is known about what it has.
            line = f"journal {self.backend.shown}: {reason}; mend it, then run the same command again"
            raise RunStopped(StopCause.JOURNAL, line) from error
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

results = Table(
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
