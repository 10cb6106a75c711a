"""Journal of episodes: one SQLite file with their slots, a page for each attempt, the calls of each page, and their images.

`agentflow.journal` records work that is repeated from its inputs: one owner per seed, results by key, kept in memory until the
seed ends. Episodes can't be repeated: clients play them, and a state follows another. They share only the idea of a page.
"""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import anyio
import msgspec
from msgspec import Struct, structs

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._folder_files import connect_read_only, find_file, sqlite_reason
from agentflow._private_files import make_private_folder, open_private
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.gateway._images import MAX_IMAGE_BYTES
from agentflow.gateway._types import (
    EndedEpisode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeReceipt,
    EpisodeState,
    RecordedCall,
)

if TYPE_CHECKING:
    from agentflow.gateway._live import LiveEpisode

T = TypeVar("T")

FILE = "episodes.db"
FLUSH_SECONDS = 0.05
_FLUSH_BYTES = 1 << 20
_PENDING_BYTES = 64 << 20
_BATCH = 500
_ROWS = 100
_FIRST_TABLES = """
    CREATE TABLE meta (name TEXT PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE places (
        id TEXT PRIMARY KEY, offer BLOB NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, failures INTEGER NOT NULL,
        page INTEGER NOT NULL, number INTEGER NOT NULL, step INTEGER NOT NULL, version INTEGER NOT NULL, outcome BLOB
    );
    CREATE TABLE pages (
        page INTEGER PRIMARY KEY, place TEXT NOT NULL, attempt INTEGER NOT NULL, begin BLOB NOT NULL, end BLOB,
        UNIQUE (place, attempt)
    );
    CREATE TABLE calls (page INTEGER NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (page, number));
    CREATE INDEX live_places ON places (state) WHERE state NOT IN ('used', 'dropped')
"""
_SCHEMAS = (_FIRST_TABLES, "CREATE TABLE images (hash TEXT PRIMARY KEY, data BLOB NOT NULL)")
"""Statements that lead to each version of the schema from the one before."""
_PUT_SLOT = """
    INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET offer = excluded.offer,
    state = excluded.state, attempt = excluded.attempt, failures = excluded.failures, page = excluded.page,
    number = excluded.number, step = excluded.step, version = excluded.version, outcome = excluded.outcome
"""


_encode = msgspec.msgpack.Encoder().encode


class Change(NamedTuple):
    """A statement with its values."""

    statement: str
    values: tuple[Any, ...]


class EpisodeSlot:
    """Slot for one episode, with its newest attempt: a row of the journal, in memory until a step uses it."""

    def __init__(self, offer: EpisodeOffer) -> None:
        self.offer = offer
        self.state = EpisodeState.OFFERED
        self.attempt = 0
        self.failures = 0
        self.page = 0
        self.number = 0
        self.step = 0
        self.version = 0
        self.outcome: EpisodeOutcome | None = None
        self.live: LiveEpisode | None = None
        self.changing = anyio.Lock()

    def change(self) -> Change:
        """Return the statement that stores it."""
        outcome = None if self.outcome is None else _encode(self.outcome)
        position = (self.attempt, self.failures, self.page, self.number, self.step, self.version)
        return Change(_PUT_SLOT, (self.offer.id, _encode(self.offer), self.state.value, *position, outcome))

    @classmethod
    def of(cls, row: Sequence[Any]) -> "EpisodeSlot":
        """Return the slot of a row."""
        _, offer, state, *position, outcome = row
        slot = cls(msgspec.msgpack.decode(offer, type=EpisodeOffer))
        slot.state = EpisodeState(state)
        slot.attempt, slot.failures, slot.page, slot.number, slot.step, slot.version = position
        if outcome is not None:
            slot.outcome = msgspec.msgpack.decode(outcome, type=EpisodeOutcome)
        return slot

    def judge(self, outcome: EpisodeOutcome) -> None:
        """Set its outcome; it is scored by a reward or a failure."""
        is_scored = outcome.reward is not None or outcome.failure
        self.outcome = outcome
        self.state = EpisodeState.SCORED if is_scored else EpisodeState.SEALED

    def report(self) -> EndedEpisode:
        """Return it as the trainer collects it."""
        return EndedEpisode(
            number=self.number,
            offer=self.offer,
            attempt=self.attempt,
            state=self.state,
            outcome=self.outcome or EpisodeOutcome(),
            version=self.version,
        )


class AttemptBegin(Struct, frozen=True):
    """First entry of an attempt's page."""

    digests: dict[str, bytes]
    """Digest of each agent's key."""
    client: bytes
    """Digest of the client's id."""
    version: int
    """Version of the weights."""


class AttemptEnd(Struct, frozen=True):
    """Last entry of an attempt's page."""

    state: str
    why: str = ""
    end_id: str = ""
    body: bytes = b""
    """Digest of the outcome."""
    receipt: EpisodeReceipt | None = None
    lost: tuple[str, ...] = ()
    """Ids of the answers that no client received."""


class Attempt(NamedTuple):
    """An attempt at an episode: a page of the journal, without its calls."""

    page: int
    """Number of the page."""
    slot: str
    """Id of the slot."""
    number: int
    """Number of the attempt, from 1."""
    begin: AttemptBegin
    """First entry."""
    end: AttemptEnd | None = None
    """Last entry; `None`: it is open."""

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Attempt":
        """Return the attempt of a row."""
        page, slot, number, begin, end = row
        begun = msgspec.msgpack.decode(begin, type=AttemptBegin)
        return cls(page, slot, number, begun, None if end is None else _decode_end(end))


_decode_end = msgspec.msgpack.Decoder(AttemptEnd).decode
_decode_call = msgspec.msgpack.Decoder(RecordedCall).decode


def begin_page(attempt: Attempt) -> Change:
    """Insert the page of an attempt."""
    return Change(
        "INSERT INTO pages (page, place, attempt, begin) VALUES (?, ?, ?, ?)",
        (attempt.page, attempt.slot, attempt.number, _encode(attempt.begin)),
    )


def end_page(page: int, end: AttemptEnd) -> Change:
    """Write the end of an attempt."""
    return Change("UPDATE pages SET end = ? WHERE page = ?", (_encode(end), page))


def put_meta(name: str, body: bytes) -> Change:
    """Write a value of the whole journal."""
    return Change(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body", (name, body)
    )


class _WriteJob(NamedTuple):
    """Changes that are written together, after all earlier calls."""

    calls: Sequence[tuple[int, int, bytes]]
    images: Mapping[str, bytes]
    changes: Sequence[Change]
    durable: bool
    written: Callable[[Exception | None], None]


class EpisodeStore:
    """Journal of episodes, used inside `async with`.

    One thread writes everything in the order of arrival and all that waits in one transaction. A durable commit, such as the
    end of an episode, is synced to disk together with everything before it. Calls wait up to 0.05 s for company.
    A write that fails is final: the episodes continue after a restart from what is on disk.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        """The file."""
        self.failure: RunStopped | None = None
        """Reason that nothing more can be written."""
        self._queue: SimpleQueue[_WriteJob | None] = SimpleQueue()
        self._calls: list[tuple[int, int, bytes]] = []
        self._images: dict[str, bytes] = {}
        self._call_bytes = 0
        self._pending_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failed = anyio.Event()
        self._room = anyio.Event()
        self._reader: sqlite3.Connection
        self._reading = Lock()
        self._thread: Thread
        self._loop: asyncio.AbstractEventLoop

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        with ExitStack() as opened:
            try:
                make_private_folder(self.path.parent)
                open_private(self.path, "ab").close()
                writer = opened.enter_context(closing(_connect(self.path)))
                _prepare(writer, self.path)
                self._reader = opened.enter_context(closing(_connect(self.path)))
            except (OSError, sqlite3.Error) as error:
                raise ConfigurationError(f"folder: {self.path}: {error}; name another folder") from None
            opened.pop_all()
        self._thread = Thread(target=self._write_all, args=(writer,), name="episode-journal", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._flush()
        self._queue.put(None)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join)
        with self._reading:
            self._reader.close()

    async def broken(self) -> None:
        """Wait until something can't be written.

        :raises RunStopped: then.
        """
        await self._failed.wait()
        self._check()

    async def add_call(
        self, page: int, number: int, body: bytes, images: Mapping[str, bytes] = MappingProxyType({})
    ) -> None:
        """Add a call to a page. It is on disk before everything that is committed later.

        :param images: images that no earlier call of the page has, by hash; each is stored once in the journal.
        :raises RunStopped: if the journal can't be written.
        """
        self._check()
        self._calls.append((page, number, body))
        self._images |= images
        size = len(body) + sum(map(len, images.values()))
        self._call_bytes += size
        self._pending_bytes += size
        if self._call_bytes > _FLUSH_BYTES:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._flush)
        while self._pending_bytes > _PENDING_BYTES:
            self._room = anyio.Event()
            await self._room.wait()
            self._check()

    async def commit(self, *changes: Change, durable: bool = False) -> None:
        """Write changes in one transaction, after everything before them; return once they are on disk.

        A cancelled caller does not undo them.

        :param durable: survive a power loss, not only the end of this process.
        :raises RunStopped: if the journal can't be written.
        """
        self._check()
        done: asyncio.Future[None] = self._loop.create_future()
        self._flush(changes, durable=durable, done=done)
        await asyncio.shield(done)

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in a thread. It sees what was committed before.

        :raises RunStopped: if the journal can't be read, or an earlier write has failed.
        """
        self._check()

        def run() -> T:
            with self._reading:
                return ask(self._reader)

        try:
            return await anyio.to_thread.run_sync(run)
        except sqlite3.Error as error:
            raise self._stopped(error) from error

    async def calls(self, page: int) -> list[bytes]:
        """Return the calls of a page, in the order in which they were recorded."""
        await self.commit()
        rows = await self.read(
            lambda reader: reader.execute(
                "SELECT body FROM calls WHERE page = ? ORDER BY number", (page,)
            ).fetchall()
        )
        return [body for (body,) in rows]

    async def images(self, hashes: Collection[str]) -> dict[str, bytes]:
        """Return images by hash; those that are not stored are missing."""
        await self.commit()
        query = f"SELECT hash, data FROM images WHERE hash IN ({', '.join('?' * len(hashes))})"
        return dict(await self.read(lambda reader: reader.execute(query, (*hashes,)).fetchall()))

    async def recorded_calls(self, attempt: Attempt) -> list[RecordedCall]:
        """Return the record of an attempt."""
        return _recorded(await self.calls(attempt.page), attempt.end)

    async def attempt(self, slot: str, number: int) -> Attempt | None:
        """Return an attempt at the episode of a slot."""
        query = "SELECT page, place, attempt, begin, end FROM pages WHERE place = ? AND attempt = ?"
        row = await self.read(lambda reader: reader.execute(query, (slot, number)).fetchone())
        return Attempt.of(row) if row else None

    async def last_attempts(self, count: int) -> list[Attempt]:
        """Return the newest attempts, the oldest first."""
        query = "SELECT page, place, attempt, begin, end FROM pages ORDER BY page DESC LIMIT ?"
        rows = await self.read(lambda reader: reader.execute(query, (count,)).fetchall())
        return [Attempt.of(row) for row in reversed(rows)]

    async def slots(self, ids: Collection[str]) -> dict[str, EpisodeSlot]:
        """Return slots in any state, by id; those that are not stored are missing."""
        if not ids:
            return {}
        query = "SELECT * FROM places WHERE id IN (SELECT value FROM json_each(?))"
        encoded = json.dumps([*ids])
        rows = await self.read(lambda reader: reader.execute(query, (encoded,)).fetchall())
        return {slot.offer.id: slot for slot in map(EpisodeSlot.of, rows)}

    async def live_slots(self) -> list[EpisodeSlot]:
        """Return the slots that are neither used nor dropped, in the order in which they were offered."""
        query = "SELECT * FROM places WHERE state NOT IN ('used', 'dropped') ORDER BY rowid"
        return [
            EpisodeSlot.of(row) for row in await self.read(lambda reader: reader.execute(query).fetchall())
        ]

    async def highest(self) -> tuple[int, int]:
        """Return the highest numbers of a page and of an ended episode."""
        query = (
            "SELECT (SELECT COALESCE(MAX(page), 0) FROM pages), (SELECT COALESCE(MAX(number), 0) FROM places)"
        )
        page, number = await self.read(lambda reader: reader.execute(query).fetchone())
        return page, number

    async def meta(self, name: str) -> bytes | None:
        """Return a value of the whole journal."""
        query = "SELECT body FROM meta WHERE name = ?"
        row = await self.read(lambda reader: reader.execute(query, (name,)).fetchone())
        return row[0] if row else None

    def _stopped(self, error: Exception) -> RunStopped:
        remedy = "nothing with a receipt is lost: fix it, then start the gateway again"
        return RunStopped(StopCause.JOURNAL, f"journal {self.path}: {error}; {remedy}")

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _flush(
        self,
        changes: Sequence[Change] = (),
        *,
        durable: bool = False,
        done: "asyncio.Future[None] | None" = None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls, size, self._call_bytes = self._calls, [], self._call_bytes, 0
        images, self._images = self._images, {}
        if calls or done is not None:
            self._queue.put(_WriteJob(calls, images, changes, durable, partial(self._written, size, done)))

    def _written(self, size: int, done: "asyncio.Future[None] | None", error: Exception | None) -> None:
        """Take the outcome of a job, in the loop."""
        self._pending_bytes -= size
        self._room.set()
        if error is not None and self.failure is None:
            self.failure = self._stopped(error)
            self._failed.set()
        if done is None or done.done():
            return
        if self.failure is not None:
            done.set_exception(self.failure)
            # A cancelled caller never reads it.
            done.exception()
        else:
            done.set_result(None)

    def _write_all(self, writer: sqlite3.Connection) -> None:
        failure: Exception | None = None
        ended = False
        while not ended:
            first = self._queue.get()
            jobs = [] if first is None else [first]
            ended = first is None
            with suppress(Empty):
                while not ended and len(jobs) < _BATCH:
                    job = self._queue.get_nowait()
                    if ended := job is None:
                        break
                    jobs.append(job)
            if failure is None:
                try:
                    _transact(writer, jobs)
                # Boundary of the thread: every later job fails with the first error, as the order must hold.
                except Exception as error:
                    failure = error
            with suppress(RuntimeError):  # a closed loop has nobody who waits
                self._loop.call_soon_threadsafe(_report, jobs, failure)
        writer.close()


def _report(jobs: Iterable[_WriteJob], failure: Exception | None) -> None:
    for job in jobs:
        job.written(failure)


def _transact(writer: sqlite3.Connection, jobs: Sequence[_WriteJob]) -> None:
    if not any(job.calls or job.changes for job in jobs):
        return
    writer.execute(f"PRAGMA synchronous = {'FULL' if any(job.durable for job in jobs) else 'NORMAL'}")
    writer.execute("BEGIN IMMEDIATE")
    calls: list[tuple[int, int, bytes]] = []
    for job in jobs:
        calls.extend(job.calls)
        writer.executemany("INSERT OR IGNORE INTO images VALUES (?, ?)", job.images.items())
        for change in job.changes:
            writer.execute(*change)
    for start in range(0, len(calls), _ROWS):
        some = calls[start : start + _ROWS]
        # One statement for all rows: each statement gives up the interpreter's lock, and waits for it under load.
        writer.execute(_insert_calls(len(some)), [value for row in some for value in row])
    writer.execute("COMMIT")


@cache
def _insert_calls(rows: int) -> str:
    return f"INSERT INTO calls VALUES {', '.join(['(?, ?, ?)'] * rows)}"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(writer: sqlite3.Connection, path: Path) -> None:
    (version,) = writer.execute("PRAGMA user_version").fetchone()
    if version < len(_SCHEMAS):
        writer.execute("BEGIN IMMEDIATE")
        for statement in ";".join(_SCHEMAS[version:]).split(";"):
            writer.execute(statement)
        writer.execute(f"PRAGMA user_version = {len(_SCHEMAS)}")
        writer.execute("COMMIT")
    elif version > len(_SCHEMAS):
        raise ConfigurationError(f"folder: {path} belongs to a newer version; update AgentFlow")
    os.chmod(path, 0o600)


def _recorded(bodies: Iterable[bytes], end: AttemptEnd | None) -> list[RecordedCall]:
    """Return the calls of an attempt; those whose client left are not delivered.

    :param end: end of the attempt; `None`: it is open.
    """
    lost = frozenset(end.lost) if end else frozenset[str]()
    calls = map(_decode_call, bodies)
    return [structs.replace(call, delivered=False) if call.id in lost else call for call in calls]


class RecordedEpisode(Struct, frozen=True, kw_only=True):
    """An episode in the journal of a gateway, with its newest attempt."""

    offer: EpisodeOffer
    """Its offer."""
    state: EpisodeState
    """Its state."""
    outcome: EpisodeOutcome | None
    """Its outcome; `None`: it has not ended."""
    calls: tuple[RecordedCall, ...]
    """Calls of the newest attempt, in order."""


def recorded_calls(folder: Path, episode: str) -> list[RecordedCall]:
    """Return the calls of an episode's newest attempt from the journal of a gateway, which may be running.

    See docs/tokens.md.

    :param folder: folder of the gateway.
    :return: empty if there is no such journal or episode.
    :raises ConfigurationError: if the journal can't be read.
    """
    recorded = recorded_episode(folder, episode)
    return [] if recorded is None else list(recorded.calls)


def recorded_episode(folder: Path, episode: str) -> RecordedEpisode | None:
    """Return an episode from the journal of a gateway, which may be running; `None`: there is no such journal or episode.

    See docs/exports.md.

    :param folder: folder of the gateway.
    :raises ConfigurationError: if the journal can't be read.
    """
    with _journal(folder) as reader:
        if reader is None:
            return None
        slot = reader.execute("SELECT offer, state, outcome FROM places WHERE id = ?", (episode,)).fetchone()
        if slot is None:
            return None
        newest = "SELECT page, end FROM pages WHERE place = ? ORDER BY attempt DESC LIMIT 1"
        page, end = reader.execute(newest, (episode,)).fetchone() or (None, None)
        bodies = reader.execute("SELECT body FROM calls WHERE page = ? ORDER BY number", (page,))
        offer, state, outcome = slot
        return RecordedEpisode(
            offer=msgspec.msgpack.decode(offer, type=EpisodeOffer),
            state=EpisodeState(state),
            outcome=None if outcome is None else msgspec.msgpack.decode(outcome, type=EpisodeOutcome),
            calls=tuple(_recorded((body for (body,) in bodies), None if end is None else _decode_end(end))),
        )


def recorded_ids(folder: Path) -> list[str]:
    """Return the ids of all episodes in the journal of a gateway, in the order of their offers.

    See docs/exports.md.

    :param folder: folder of the gateway.
    :return: empty if there is no such journal.
    :raises ConfigurationError: if the journal can't be read.
    """
    with _journal(folder) as reader:
        return (
            [] if reader is None else [id for (id,) in reader.execute("SELECT id FROM places ORDER BY rowid")]
        )


@contextmanager
def _journal(folder: Path) -> Generator[sqlite3.Connection | None]:
    """Yield the journal of a gateway for reading; `None`: there is none.

    :raises ConfigurationError: if it can't be read.
    """
    path = folder / FILE
    try:
        with closing(connect_read_only(find_file(path, folder.parent))) as reader:
            yield reader
    except FileNotFoundError:
        yield None
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from None
    except (sqlite3.Error, TypeError) as error:
        raise ConfigurationError(f"{path}: can't be read: {sqlite_reason(error)}") from None
    except DECODE_ERRORS as error:
        raise ConfigurationError(f"{path}: a record is damaged: {decode_reason(error)}") from None


def recorded_image(folder: Path, hash: str) -> bytes:
    """Return an image of a recorded call from the journal of a gateway, which may be running. See docs/gateway.md.

    :param folder: folder of the gateway.
    :param hash: SHA-256 of the image: the data of an image part in `RecordedCall.messages`.
    :raises KeyError: if the journal has no such image.
    """
    path = folder / FILE
    try:
        with closing(connect_read_only(find_file(path, folder.parent))) as reader:
            # The journal may be a stranger's.
            query = "SELECT data FROM images WHERE hash = ? AND typeof(data) = 'blob' AND length(data) <= ?"
            [data] = reader.execute(query, (hash, MAX_IMAGE_BYTES)).fetchone()
            return data
    except (OSError, sqlite3.Error, TypeError):
        raise KeyError(hash) from None
