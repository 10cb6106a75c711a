"""Reading a journal without changing it: no migration, no lock that a writer waits for, no file beside a finished one."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol, Self, TypeVar

import msgspec
from msgspec import Struct, field
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Text,
    case,
    cast,
    create_engine,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from agentflow._decoding import DECODE_ERRORS
from agentflow._folder_files import check_regular, connect_read_only, limit_query, sqlite_reason
from agentflow.errors import ConfigurationError
from agentflow.journal._database import (
    MIGRATIONS,
    backend_for,
    blobs,
    entries,
    results,
    root_of,
    runs,
    schema,
    seeds,
    unpacked_json,
)
from agentflow.journal._run import FAILURES, RUN_PAGE, usage_of
from agentflow.journal._seeds import Counts, count, count_by_host, has_died
from agentflow.journal._sqlite import Sqlite
from agentflow.trace import Seed, Usage

T = TypeVar("T")

READ_ERRORS = (SQLAlchemyError, OSError, sqlite3.Error)


class ReadAccess(Protocol):
    """Database opened for reading."""

    shown: str

    def read(self, ask: Callable[[Connection], T]) -> T: ...

    def now(self, connection: Connection) -> float: ...

    def close(self) -> None: ...


class ReadOnlySqlite:
    """SQLite file opened for reading.

    A file without a write-ahead log is opened as immutable, so that SQLite creates no file beside it. Before and after each
    query, its size and time and those of the log are compared: once a writer appears, the query is repeated.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            reason = "is a folder, no journal" if path.is_dir() else "no such file"
            raise ConfigurationError(f"{path}: {reason}; name the output_dir of a run, or its journal.db")
        self.shown = str(path)
        self._path = path
        self._lock = Lock()
        self._state: tuple[object, ...] = ()
        self._engine: Engine | None = None

    def read(self, ask: Callable[[Connection], T]) -> T:
        while True:
            state = self._look()
            engine = self._open(state)
            try:
                with engine.connect() as connection:
                    driver = connection.connection.driver_connection
                    assert isinstance(driver, sqlite3.Connection)
                    limit_query(driver, self._path)
                    result = ask(connection)
            except READ_ERRORS:
                if self._look() == state:
                    raise
                continue
            if state[0] == "shared" or self._look() == state:
                return result

    def now(self, connection: Connection) -> float:
        del connection
        return time.time()

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine, self._state = None, ()

    def _look(self) -> tuple[object, ...]:
        """Return the state of the files that decides how the journal is opened."""
        about = self._path.stat()
        # SQLite would wait for the other end of a FIFO.
        check_regular(about, self._path)
        if any(_size(Path(f"{self._path}{end}")) for end in ("-wal", "-journal")):
            return "shared", about.st_ino
        return "immutable", about.st_ino, about.st_size, about.st_mtime_ns

    def _open(self, state: tuple[object, ...]) -> Engine:
        with self._lock:
            if self._engine is None or self._state != state:
                if self._engine is not None:
                    self._engine.dispose()
                connect = partial(connect_read_only, self._path, immutable=state[0] == "immutable")
                # The default pool of this URL closes connections that other threads are using.
                engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=4)
                self._engine, self._state = engine, state
            return self._engine


def _size(path: Path) -> int:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return 0
    check_regular(about, path)
    return about.st_size


_SOME = 500
_HOSTS_SINCE = 4
"""Version of the tables that first had the hosts of seeds."""
_COMMANDS_SINCE = 5
"""Version of the tables that first had commands for the processes of runs."""
_AROUND = 400
"""Characters before and after a text that was found."""


class StoredRun(NamedTuple):
    """Run in a journal."""

    number: int
    """Number in the journal."""
    name: str
    """Name."""
    settings: bytes
    """Settings that decide its content, as JSON."""


class StoredSeed(NamedTuple):
    """Seed in a journal."""

    seed: Seed
    """The seed."""
    done: bool
    """It is finished."""
    active: bool
    """A living process holds it, as far as its lease tells."""
    claims: int
    """Number of times that it was claimed."""


class JournalNews(NamedTuple):
    """News since a cursor."""

    cursor: str
    """State to continue from."""
    changed: bool
    """Something has changed."""
    seeds: tuple[int, ...]
    """Numbers of seeds with new entries or a new result."""
    keys: tuple[str, ...]
    """New keys of the watched seed."""


class JournalReader:
    """Journal opened by `open_reader`. Threads may share it; each method reads what is committed at that moment.

    :raises ConfigurationError: from every method, in one line, if the journal can't be read.
    """

    def __init__(self, access: ReadAccess) -> None:
        self._access = access
        self.shown = access.shown
        """Its address, without a password."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._access.close()

    def read(self, ask: Callable[[Connection], T]) -> T:
        """Run a query."""
        try:
            return self._access.read(ask)
        except READ_ERRORS as error:
            raise ConfigurationError(f"{self.shown}: can't be read: {self._reason(error)}") from None

    def check(self) -> None:
        """Check that it is a journal of a known version; older ones are read as they are.

        :raises ConfigurationError: if not.
        """
        try:
            version = self._access.read(lambda connection: connection.scalar(select(schema.c.version)))
        except READ_ERRORS as error:
            reason = self._reason(error)
            if "agentflow_schema" in reason or "not a database" in reason:
                hint = (
                    "no run was begun in this database"
                    if "://" in self.shown
                    else "name the output_dir of a run, or its journal.db"
                )
                what = (
                    "is no journal, or its beginning is damaged"
                    if "not a database" in reason
                    else "is no journal"
                )
                raise ConfigurationError(f"{self.shown}: {what}; {hint}") from None
            raise ConfigurationError(f"{self.shown}: can't be read: {reason}") from None
        if version is not None and version > len(MIGRATIONS):
            raise ConfigurationError(
                f"{self.shown}: its tables are of version {version}, this program knows {len(MIGRATIONS)}; "
                "use a newer AgentFlow"
            )

    def _reason(self, error: Exception) -> str:
        root = root_of(error)
        if isinstance(root, OSError) and root.strerror:
            return root.strerror
        return sqlite_reason(root, None if "://" in self.shown else Path(self.shown))

    def runs(self) -> list[StoredRun]:
        """Return all runs in the order of their creation."""
        rows = self.read(
            lambda connection: connection.execute(
                select(runs.c.id, runs.c.name, runs.c.settings).order_by(runs.c.id)
            ).all()
        )
        return [StoredRun(*row) for row in rows]

    def counts(self, run: int) -> tuple[Counts, bool, bool]:
        """Return the numbers of seeds by state; whether a living process holds one, and whether one was ever claimed."""

        def ask(connection: Connection) -> tuple[Counts, bool, bool]:
            begun = connection.scalar(
                select(seeds.c.number).where(seeds.c.run == run, seeds.c.claims > 0).limit(1)
            )
            return count(connection, run), self._is_worked_on(connection, run), begun is not None

        return self.read(ask)

    def hosts(self, run: int) -> dict[str, Counts]:
        """Return the numbers of seeds that each host holds and has finished; empty in journals of earlier versions."""

        def ask(connection: Connection) -> dict[str, Counts]:
            version = connection.scalar(select(schema.c.version)) or 0
            return count_by_host(connection, run) if version >= _HOSTS_SINCE else {}

        return self.read(ask)

    def paused(self, run: int) -> bool | None:
        """Return whether a run is to pause; `None`: its journal, of an earlier version, takes no commands."""

        def ask(connection: Connection) -> bool | None:
            if (connection.scalar(select(schema.c.version)) or 0) < _COMMANDS_SINCE:
                return None
            return connection.scalar(select(runs.c.paused).where(runs.c.id == run))

        return self.read(ask)

    def _is_worked_on(self, connection: Connection, run: int) -> bool:
        now = self._access.now(connection)
        held = connection.execute(
            select(seeds.c.owner, func.max(seeds.c.until))
            .where(seeds.c.run == run, ~seeds.c.done, seeds.c.owner.is_not(None))
            .group_by(seeds.c.owner)
        ).all()
        return any(_is_active(owner, until, now) for owner, until in held)

    def usage(self, run: int) -> dict[str, Usage]:
        """Return the usage of models by role."""
        return self.read(lambda connection: usage_of(connection, run))

    def seeds(
        self,
        run: int,
        *,
        after: int = -1,
        limit: int = 200,
        done: bool | None = None,
        begun: bool | None = None,
        numbers: Iterable[int] | None = None,
    ) -> list[StoredSeed]:
        """Return seeds in their order.

        :param after: number of the seed before the first one.
        :param done: only finished, or only unfinished ones.
        :param begun: only those that were claimed, or only others.
        :param numbers: only these.
        """
        chosen: list[ColumnElement[bool]] = [seeds.c.run == run, seeds.c.number > after]
        if done is not None:
            chosen.append(seeds.c.done if done else ~seeds.c.done)
        if begun is not None:
            chosen.append(seeds.c.claims > 0 if begun else seeds.c.claims == 0)
        if numbers is not None:
            chosen.append(seeds.c.number.in_(tuple(numbers)))
        return self._seeds(chosen, limit)

    def seed(self, run: int, name: str) -> StoredSeed:
        """Return the seed with an id.

        :raises KeyError: if there is none.
        """
        matching = self._seeds([seeds.c.run == run, seeds.c.name == name], 2)
        if not matching:
            raise KeyError(name)
        if len(matching) > 1:
            raise ConfigurationError(f"{self.shown}: it is damaged: two seeds have the id {name!r}")
        return matching[0]

    def _seeds(self, chosen: Sequence[ColumnElement[bool]], limit: int) -> list[StoredSeed]:
        columns = (
            *(seeds.c.number, seeds.c.name, seeds.c.body),
            *(seeds.c.done, seeds.c.owner, seeds.c.until, seeds.c.claims),
        )

        def ask(connection: Connection) -> list[StoredSeed]:
            now = self._access.now(connection)
            rows = connection.execute(
                select(*columns).where(*chosen).order_by(seeds.c.number).limit(limit)
            ).all()
            return [
                StoredSeed(
                    self._decoded(body, number, name), bool(done), _is_active(owner, until, now), claims
                )
                for number, name, body, done, owner, until, claims in rows
            ]

        return self.read(ask)

    def _decoded(self, body: bytes, number: int, name: str) -> Seed:
        seed = msgspec.json.decode(body, type=Seed)
        # A page of seeds begins after the last one of the page before.
        if (seed.index, seed.id) != (number, name):
            raise ConfigurationError(f"{self.shown}: the record of seed {number} is damaged")
        return seed

    def count_entries(self, run: int, numbers: Sequence[int], prefix: str) -> dict[int, int]:
        """Count the entries of seeds under keys with a prefix, by number of the seed; from the keys alone."""
        if not numbers:
            return {}

        def ask(connection: Connection) -> dict[int, int]:
            rows = connection.execute(
                select(entries.c.seed, func.count())
                .where(
                    entries.c.run == run,
                    entries.c.seed.in_(tuple(numbers)),
                    *_below(connection, prefix),
                )
                .group_by(entries.c.seed)
            )
            return {row[0]: row[1] for row in rows.all()}

        return self.read(ask)

    def keys_below(self, run: int, seed: int, prefix: str) -> list[str]:
        """Return the keys of a seed with a prefix, without it and in no order; no body is read."""

        def ask(connection: Connection) -> str | None:
            rest = func.substr(entries.c.key, len(prefix) + 1)
            return connection.scalar(
                select(func.aggregate_strings(rest, "\n")).where(
                    entries.c.run == run, entries.c.seed == seed, *_below(connection, prefix)
                )
            )

        rests = self.read(ask)
        return [] if rests is None else rests.split("\n")

    def entries(self, run: int, seed: int, prefix: str) -> dict[str, bytes]:
        """Return the entries of a seed with a prefix, in the order in which they were written."""

        def ask(connection: Connection) -> dict[str, bytes]:
            rows = connection.execute(
                select(entries.c.key, entries.c.body)
                .where(entries.c.run == run, entries.c.seed == seed, *_below(connection, prefix))
                .order_by(entries.c.ordinal)
            )
            return {row[0]: row[1] for row in rows.all()}

        return self.read(ask)

    def bodies(self, run: int, seed: int, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the entries of a seed with these keys; missing ones are left out."""
        wanted = list(dict.fromkeys(keys))

        def ask(connection: Connection) -> dict[str, bytes]:
            bodies: dict[str, bytes] = {}
            for start in range(0, len(wanted), _SOME):
                rows = connection.execute(
                    select(entries.c.key, entries.c.body).where(
                        entries.c.run == run,
                        entries.c.seed == seed,
                        entries.c.key.in_(wanted[start : start + _SOME]),
                    )
                )
                bodies |= {row[0]: row[1] for row in rows.all()}
            return bodies

        return self.read(ask) if wanted else {}

    def existing(self, run: int, seed: int, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that a seed has; no body is read."""

        def ask(connection: Connection) -> set[str]:
            existing_keys: set[str] = set()
            for start in range(0, len(keys), _SOME):
                some = entries.c.key.in_(keys[start : start + _SOME])
                existing_keys |= set(
                    connection.scalars(
                        select(entries.c.key).where(entries.c.run == run, entries.c.seed == seed, some)
                    )
                )
            return existing_keys

        return self.read(ask)

    def find(self, run: int, words: str, limit: int, seed: int | None = None) -> list[tuple[int, str, str]]:
        """Return entries with a text, as number of the seed, key and the JSON around the text.

        Case matters only beyond ASCII letters. A body of any size stays in the database.

        :param words: the text as it is in JSON.
        :param seed: only entries of this seed.
        """

        def ask(connection: Connection) -> list[tuple[int, str, str]]:
            lite = connection.dialect.name == "sqlite"
            body = cast(entries.c.body, Text) if lite else func.convert_from(entries.c.body, "UTF8")
            position = (func.instr if lite else func.strpos)(func.lower(body), func.lower(words))
            begin = case((position > _AROUND, position - _AROUND), else_=1)
            chosen = [entries.c.run == run, entries.c.seed >= 0, position > 0]
            if seed is not None:
                chosen.append(entries.c.seed == seed)
            rows = connection.execute(
                select(entries.c.seed, entries.c.key, func.substr(body, begin, 2 * _AROUND + len(words)))
                .where(*chosen)
                .order_by(entries.c.seed, entries.c.key)
                .limit(limit)
            )
            return [(row[0], row[1], row[2]) for row in rows.all()]

        return self.read(ask)

    def kept(self, run: int, key: str) -> bytes | None:
        """Return a record of the run itself, which `Run.keep` stored."""
        return self.bodies(run, RUN_PAGE, [key]).get(key)

    def failures(self, run: int) -> dict[str, int]:
        """Return the failures that the processes of a run saw, by kind; each stores them every ten seconds and at its end."""
        failures = Counter[str]()
        for body in self.entries(run, RUN_PAGE, FAILURES).values():
            failures.update(msgspec.json.decode(body, type=dict[str, int]))
        return dict(sorted(failures.items()))

    def results(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return the results of finished seeds by number."""
        if not numbers:
            return {}
        chosen = select(results.c.seed, results.c.body).where(
            results.c.run == run, results.c.seed.in_(tuple(numbers))
        )
        return {row[0]: row[1] for row in self.read(lambda connection: connection.execute(chosen).all())}

    def blob(self, run: int, hash: str) -> bytes:
        """Return the bytes with a SHA-256.

        :raises KeyError: if the run has none.
        """
        wanted = select(blobs.c.data).where(blobs.c.run == run, blobs.c.hash == hash)
        if (data := self.read(lambda connection: connection.scalar(wanted))) is None:
            raise KeyError(hash)
        return data

    def json(self, run: int, hash: str) -> bytes:
        """Return the JSON object with a SHA-256.

        :raises KeyError: if the run has none.
        :raises ValueError: if these bytes are something else.
        """
        return unpacked_json(self.blob(run, hash))

    def news(self, run: int, cursor: str, watched: int | None = None) -> JournalNews:
        """Return what was committed since a cursor; an empty one means from now on.

        SQLite numbers all entries in the order of their commits. Postgres has no such number: a transaction that began
        earlier may be committed later. There the cursor has a place for each seed that is worked on.

        :param watched: number of the seed whose new keys are returned.
        """

        def ask(connection: Connection) -> JournalNews:
            active = self._is_worked_on(connection, run)
            return read_news(connection, run, cursor, watched, active=active)

        return self.read(ask)


def open_reader(url: str | Path) -> JournalReader:
    """Open a journal for reading, whether its run is active, finished or was killed.

    Nothing is created or changed, and tables are not migrated. See docs/journal.md.

    :param url: `sqlite:///FILE` or `postgresql://…`; a `Path` is a SQLite file.
    :raises ConfigurationError: one line, if there is no journal that can be read.
    """
    backend = backend_for(url)
    if isinstance(backend, Sqlite):
        reader = JournalReader(ReadOnlySqlite(Path(backend.shown)))
    else:
        from agentflow.journal._postgres import Postgres, ReadOnlyPostgres

        assert isinstance(backend, Postgres), "there are two kinds"
        reader = JournalReader(ReadOnlyPostgres(backend.url))
    try:
        reader.check()
    except BaseException:
        reader.close()
        raise
    return reader


def _is_active(owner: str | None, until: float | None, now: float) -> bool:
    return owner is not None and until is not None and until > now and not has_died(owner)


def _below(connection: Connection, prefix: str) -> tuple[ColumnElement[bool], ...]:
    """Select keys with a prefix. SQLite reads only that range of its primary key, and no body."""
    if not prefix:
        return ()
    if connection.dialect.name == "sqlite":
        return entries.c.key >= prefix, entries.c.key < f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
    return (entries.c.key.startswith(prefix, autoescape=True),)


_MANY_NEWS = 20_000
_MANY_STATES = 1_000


class _NewsCursor(Struct, omit_defaults=True):
    """State of a run that a reader has seen."""

    entry: int = 0
    """Last entry of the journal."""
    result: int = 0
    """Last result of the journal."""
    seeds: dict[int, int] = field(default_factory=dict[int, int])
    """Number of the last entry of each seed that is worked on."""
    counts: tuple[int, ...] = ()
    """Numbers of seeds by state."""
    active: bool = False
    """A living process works on the run."""


def read_news(
    connection: Connection, run: int, cursor: str, watched: int | None, *, active: bool
) -> JournalNews:
    """Return what was committed since a cursor; see `JournalReader.news`."""
    try:
        before = msgspec.json.decode(cursor, type=_NewsCursor) if cursor else None
    except DECODE_ERRORS:
        before = None
    read = _sqlite_news if connection.dialect.name == "sqlite" else _postgres_news
    after, changed, keys = read(connection, run, before, watched)
    after.counts, after.active = tuple(count(connection, run)), active
    shown = msgspec.json.encode(after).decode()
    if before is None:
        return JournalNews(shown, False, (), ())
    if before.active != active:
        begun = select(seeds.c.number).where(seeds.c.run == run, ~seeds.c.done, seeds.c.claims > 0)
        changed |= set(connection.scalars(begun.limit(_MANY_STATES)))
    moved = bool(changed or keys) or (before.counts, before.active) != (after.counts, active)
    return JournalNews(shown, moved, tuple(sorted(changed)), tuple(keys))


def _sqlite_news(
    connection: Connection, run: int, before: _NewsCursor | None, watched: int | None
) -> tuple[_NewsCursor, set[int], list[str]]:
    changed: set[int] = set()
    keys: list[str] = []
    after = _NewsCursor(
        entry=connection.scalar(text("SELECT max(rowid) FROM agentflow_entries")) or 0,
        result=connection.scalar(text("SELECT max(rowid) FROM agentflow_harvests")) or 0,
    )
    if before is None:
        return after, changed, keys
    if after.entry > before.entry:
        rows = connection.execute(
            text(
                "SELECT seed, key FROM agentflow_entries WHERE rowid > :since AND rowid <= :last AND run = :run"
            ),
            {"since": max(before.entry, after.entry - _MANY_NEWS), "last": after.entry, "run": run},
        ).all()
        changed |= {seed for seed, _ in rows if seed >= 0}
        keys += [key for seed, key in rows if seed == watched]
    if after.result > before.result:
        rows = connection.execute(
            text(
                "SELECT seed FROM agentflow_harvests WHERE rowid > :since AND rowid <= :last AND run = :run"
            ),
            {"since": max(before.result, after.result - _MANY_NEWS), "last": after.result, "run": run},
        ).all()
        changed |= {seed for (seed,) in rows}
    return after, changed, keys


def _postgres_news(
    connection: Connection, run: int, before: _NewsCursor | None, watched: int | None
) -> tuple[_NewsCursor, set[int], list[str]]:
    newest = (
        select(func.max(entries.c.ordinal))
        .where(entries.c.run == seeds.c.run, entries.c.seed == seeds.c.number)
        .scalar_subquery()
    )
    wanted = or_((~seeds.c.done) & (seeds.c.claims > 0), seeds.c.number == watched)
    rows = connection.execute(select(seeds.c.number, newest).where(seeds.c.run == run, wanted)).all()
    after = _NewsCursor(seeds={number: last or 0 for number, last in rows})
    if before is None:
        return after, set(), []
    seen = before.seeds
    changed = {
        number for number in after.seeds.keys() | seen.keys() if after.seeds.get(number) != seen.get(number)
    }
    keys: list[str] = []
    if watched is not None and watched in seen:
        chosen = select(entries.c.key).where(
            entries.c.run == run, entries.c.seed == watched, entries.c.ordinal > seen[watched]
        )
        keys = list(connection.scalars(chosen.limit(_MANY_NEWS)))
    return after, changed, keys
