"""One run in the journal: the single writer with the queue in front of it; seeds, pages, results, blobs and usage."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import anyio.lowlevel
import msgspec
from sqlalchemy import Connection, bindparam, delete, select, update

from agentflow.actors import Channel, ChannelClosed, ChannelEnded, Context, WouldBlock
from agentflow.errors import AgentFlowError, RunStopped, StopCause
from agentflow.journal import _seeds
from agentflow.journal._database import (
    BlobRow,
    EntryRow,
    JournalDatabase,
    blobs,
    entries,
    launches,
    put,
    reserve_slot,
    results,
    runs,
    seeds,
    usage,
)
from agentflow.journal._page import Page, Writing, decode_record
from agentflow.journal._seeds import Counts, LeaseTerms, NewSeed, add_seeds
from agentflow.trace import Blob, Seed, Usage

T = TypeVar("T")

_CAPACITY = 2048
_BATCH = 500


class SeedTaken(RunStopped):
    """Another process owns this seed now, because this one let its lease run out.

    Raised by writing to the seed's page and by finishing it; the other owner's work is not disturbed.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(
            StopCause.JOURNAL,
            f"journal: another process took over the seed with index {seed}, because the lease on it had run out; "
            "run the same command again to take part in what is left",
        )
        self.seed = seed
        """The seed's index."""


@dataclass(slots=True, eq=False)
class _Entry:
    """An entry with its waiting caller."""

    row: EntryRow
    answer: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _Change(Generic[T]):
    """Any other change, with its own transaction."""

    make: Callable[[Connection], T]
    durable: bool
    atomic: bool
    answer: asyncio.Future[T]


_Job: TypeAlias = _Entry | _Change[Any]


class Inbox:
    """Queue of writes. It belongs to the journal: after a crash the next writer takes over the unfinished batch."""

    def __init__(self) -> None:
        channel: Channel[_Job] = Channel(_CAPACITY)
        self._sender = channel.sender()
        self._receiver = channel.receiver()
        self._taken: list[_Job] = []
        self.attached: list[BlobRow] = []
        """Blobs for the transaction of the next entries."""

    async def begin(self, row: EntryRow) -> "asyncio.Future[None]":
        """Queue an entry; the returned future is done once the entry is on disk. It is written even if nobody waits for it.

        :raises RunStopped: if the queue is closed; from the future, if the entry can't be written.
        """
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._send(_Entry(row, answer))
        return answer

    async def change(
        self, make: Callable[[Connection], T], *, durable: bool = False, atomic: bool = True
    ) -> T:
        """Run another change in a transaction; return its result once it is on disk.

        :param atomic: `False`: each statement may be a transaction by itself.
        :raises RunStopped: if it can't be done.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        await self._send(_Change(make, durable, atomic, answer))
        return await answer

    async def take(self) -> Sequence[_Job]:
        """Return everything that waits, up to a bound; the unfinished batch first, until it is done.

        :raises ChannelEnded: once the queue is closed and empty.
        """
        if not self._taken:
            self._taken.append(await self._receiver.receive())
            # Let callers that are about to write, such as those woken by the last transaction, join this batch.
            await anyio.lowlevel.checkpoint()
            with suppress(WouldBlock, ChannelEnded):
                while len(self._taken) < _BATCH:
                    self._taken.append(self._receiver.receive_nowait())
        return [job for job in self._taken if not job.answer.done()]

    def done(self) -> None:
        """Mark the current batch as done."""
        self._taken.clear()

    def close(self) -> None:
        """Close the queue."""
        self._sender.close()

    def abandon(self) -> None:
        """Fail the remaining callers: nobody will write for them."""
        self.close()
        with suppress(WouldBlock, ChannelClosed):
            while True:
                self._taken.append(self._receiver.receive_nowait())
        for job in self._taken:
            _fail(job, _closed())
        self._receiver.close()

    async def _send(self, job: _Job) -> None:
        try:
            # With room in the queue a caller is not cancelled on the way: a recorded result is written.
            try:
                self._sender.send_nowait(job)
            except WouldBlock:
                await self._sender.send(job)
        except ChannelClosed:
            raise _closed() from None


class Writer:
    """Actor that writes everything that waits in one batch and then wakes all callers."""

    def __init__(self, database: JournalDatabase, inbox: Inbox) -> None:
        self._database = database
        self._inbox = inbox

    async def run(self, context: Context) -> None:
        """Write until the queue is closed and empty."""
        context.on_stop(self._inbox.close)
        context.ready()
        with suppress(ChannelEnded):
            while True:
                # No caller waits for another's job before queueing its own, so entries may come first.
                jobs = await self._inbox.take()
                if batch := [job for job in jobs if isinstance(job, _Entry)]:
                    await self._write(batch)
                if changes := [job for job in jobs if isinstance(job, _Change)]:
                    await self._change_all(changes)
                self._inbox.done()

    async def _write(self, batch: Sequence[_Entry]) -> None:
        try:
            blobs = tuple(self._inbox.attached)
            written = await self._database.insert([entry.row for entry in batch], blobs)
            del self._inbox.attached[: len(blobs)]
            if written < len(batch):
                await self._inspect(batch)
        except RunStopped as stop:
            for entry in batch:
                _fail(entry, stop)
        for entry in batch:
            if not entry.answer.done():
                entry.answer.set_result(None)

    async def _inspect(self, batch: Sequence[_Entry]) -> None:
        """Find the entries of a batch that are not on disk and fail their callers."""
        stored = await self._database.read(
            lambda connection: [_stored_entry(connection, entry.row) for entry in batch]
        )
        for entry, (body, claims) in zip(batch, stored, strict=True):
            row = entry.row
            if body == row.body:
                # An earlier attempt, or another writer, had written it.
                continue
            if claims != row.claims:
                _fail(entry, SeedTaken(row.seed))
            else:
                problem = f"journal: {row.key} of the seed with index {row.seed} has another result already"
                _fail(entry, RunStopped(StopCause.JOURNAL, problem))

    async def _change_all(self, changes: Sequence[_Change[Any]]) -> None:
        """Run a batch in one transaction, for a single disk sync; if one is refused, run each by itself."""
        if len(changes) > 1:
            durable = any(change.durable for change in changes)
            with suppress(AgentFlowError):
                outcomes = await self._database.write(
                    lambda connection: [change.make(connection) for change in changes], durable=durable
                )
                for change, outcome in zip(changes, outcomes, strict=True):
                    if not change.answer.done():
                        change.answer.set_result(outcome)
                return
        for change in changes:
            await self._change(change)

    async def _change(self, change: _Change[Any]) -> None:
        try:
            result = await self._database.write(change.make, durable=change.durable, atomic=change.atomic)
        # Boundary of the caller: the error is its own, and the writer continues.
        except AgentFlowError as refusal:
            _fail(change, refusal)
        else:
            if not change.answer.done():
                change.answer.set_result(result)


def _stored_entry(connection: Connection, row: EntryRow) -> tuple[bytes | None, int | None]:
    """Return the stored value of an entry's key and the number of claims of its seed."""
    body = connection.scalar(
        select(entries.c.body).where(
            entries.c.run == row.run, entries.c.seed == row.seed, entries.c.key == row.key
        )
    )
    claims = connection.scalar(
        select(seeds.c.claims).where(seeds.c.run == row.run, seeds.c.number == row.seed)
    )
    return body, claims


def _fail(job: _Job, error: AgentFlowError) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)
        # A cancelled caller never reads the error; asyncio must not report it as unhandled.
        job.answer.exception()


def _closed() -> RunStopped:
    return RunStopped(StopCause.JOURNAL, "journal: it is closed, so nothing more is written")


RUN_PAGE = -1
"""Number under which a run has a page of its own, beside those of its seeds."""
FAILURES = "failures/"
"""Beginning of the keys under which its processes store their failures there."""
_CHUNK = 16
_END = (
    update(seeds)
    .where(
        seeds.c.run == bindparam("of_run"),
        seeds.c.number == bindparam("of_seed"),
        seeds.c.claims == bindparam("of_claim"),
    )
    .values(done=True, owner=None, until=None)
)
_COMMANDS = (
    select(runs.c.paused, launches.c.stopped)
    .join(launches, launches.c.run == runs.c.id)
    .where(runs.c.id == bindparam("of_run"), launches.c.launch == bindparam("of_launch"))
)


class RunCommands(NamedTuple):
    """Commands for the processes of a run, which `agentflow ctl` writes into the journal."""

    paused: bool
    """Begin no effect."""
    stopped: bool
    """End early."""


@dataclass(frozen=True)
class RunBlobs:
    """Images and other bytes of one run. Implements `agentflow.trace.BlobStore`."""

    _database: JournalDatabase
    _inbox: Inbox
    _run: int

    async def put(self, data: bytes, mime: str) -> Blob:
        """Store bytes; equal bytes are stored once."""
        blob = Blob.of(data, mime)

        def keep(connection: Connection) -> None:
            stored_hash = select(blobs.c.hash).where(blobs.c.run == self._run, blobs.c.hash == blob.hash)
            if connection.scalar(stored_hash) is None:
                put(connection, blobs, {"run": self._run, "hash": blob.hash, "data": data})

        await self._inbox.change(keep)
        return blob

    async def read(self, hash: str) -> bytes:
        """Return the bytes with a SHA-256.

        :raises KeyError: if the run has none.
        """
        wanted = select(blobs.c.data).where(blobs.c.run == self._run, blobs.c.hash == hash)
        data = await self._database.read(lambda connection: connection.scalar(wanted))
        if data is None:
            raise KeyError(hash)
        return data


class Run:
    """Records of one run. Every writing method returns once its data is on disk.

    :raises RunStopped: from every method, if the journal can't be read or written.
    """

    def __init__(
        self,
        database: JournalDatabase,
        inbox: Inbox,
        *,
        number: int,
        key: str,
        user: str,
        launch: str,
        terms: LeaseTerms,
    ) -> None:
        self.key = key
        """Digest of the settings that determine the content; ids of trees derive from it."""
        self.blobs = RunBlobs(database, inbox, number)
        """Images and other bytes."""
        self._database = database
        self._inbox = inbox
        self._number = number
        self._user = user
        self._launch = launch
        self._terms = terms
        self._holders: set[str] = set()
        self._claims: dict[int, int] = {}
        self._opened: set[int] = set()
        self._postponed: set[int] = set()
        self._pages: dict[int, Page] = {}
        self._used_before: Mapping[str, Usage] | None = None
        self._saved_failures: Mapping[str, int] = {}

    async def add_seeds(
        self, seeds: Sequence[NewSeed], origin: str = "start", *, further: bool = False
    ) -> list[Seed]:
        """Add a list of seeds. The same list again adds nothing; a longer list adds its tail.

        :param further: of another list than before, add the seeds that the run does not have.
        :raises ConfigurationError: if the list of that origin began differently before, or an id can't be used.
        """
        return await self._inbox.change(
            lambda connection: add_seeds(connection, self._number, seeds, origin, further=further)
        )

    async def keep(self, key: str, value: T) -> T:
        """Store a record of the run itself, such as that of its beginning, and return the stored one, which never changes.

        `JournalReader.kept` returns it, too.
        """
        body = msgspec.json.encode(value)

        def write(connection: Connection) -> bytes:
            stored_body = select(entries.c.body).where(
                entries.c.run == self._number, entries.c.seed == RUN_PAGE, entries.c.key == key
            )
            if (stored := connection.scalar(stored_body)) is not None:
                return stored
            row = {"run": self._number, "seed": RUN_PAGE, "key": key, "ordinal": 0, "body": body}
            put(connection, entries, row)
            return body

        stored = await self._inbox.change(write)
        return (
            value
            if stored == body
            else decode_record(stored, type(value), self._database.backend.shown, f"the record {key}")
        )

    async def claim(self, owner: str, count: int) -> list[Seed]:
        """Claim up to `count` free seeds, lowest index first, for as long as the lease is renewed.

        A seed is free if nobody holds it, its lease has run out, or its owner was a process of this machine
        (see `this_process`) that has ended. Seeds that were postponed here are left to others, and those in work here are not
        claimed again, even if this process was suspended for longer than a lease.
        """
        without = tuple(self._postponed)

        def take(connection: Connection) -> list[_seeds.Claimed]:
            return _seeds.claim(
                connection,
                self._number,
                owner,
                count,
                self._terms,
                self._holders,
                held=self._claims,
                without=without,
            )

        claimed = await self._inbox.change(take, atomic=False)
        claimed_seeds = [self._database.decode(body, Seed, "a seed") for body, _ in claimed]
        self._claims |= {seed.index: claims for seed, (_, claims) in zip(claimed_seeds, claimed, strict=True)}
        return claimed_seeds

    async def renew(self, owner: str) -> None:
        """Extend all leases that this owner claimed here."""
        # Leases of a claim whose reply was lost are not extended: they run out.
        held = list(self._claims)

        def extend(connection: Connection) -> None:
            _seeds.renew(connection, self._number, owner, held, self._terms)

        await self._inbox.change(extend, atomic=False)

    async def release(self, owner: str) -> None:
        """Release this owner's unfinished seeds at once."""
        await self._inbox.change(lambda connection: _seeds.release(connection, self._number, owner))

    async def postpone(self, seed: Seed) -> None:
        """Release a claimed seed and keep its page. This object does not claim it again before `retry_postponed`."""
        if (page := self._pages.pop(seed.index, None)) is not None:
            await page.settle()
        held = self._claims.pop(seed.index, None)
        self._opened.discard(seed.index)
        self._postponed.add(seed.index)
        if held is not None:
            await self._inbox.change(
                lambda connection: _seeds.release_one(connection, self._number, seed.index, held)
            )

    async def clear_page(self, seed: Seed, kept: Sequence[str] = ()) -> None:
        """Delete the entries of a claimed seed's page, so that its effects are repeated.

        :param kept: beginnings of the keys of entries that stay.
        :raises SeedTaken: if another owner has claimed it.
        """
        if (page := self._pages.pop(seed.index, None)) is not None:
            await page.settle()
        held = self._claims.get(seed.index)

        def clear(connection: Connection) -> None:
            if held is not None and self._claims_of(connection, seed) != held:
                raise SeedTaken(seed.index)
            self._clear(connection, seed, kept)

        await self._inbox.change(clear)

    async def reopen(self, seed: Seed, kept: Sequence[str] = ()) -> None:
        """Make a finished seed unfinished: delete its result, and the entries of its page.

        :param kept: beginnings of the keys of entries that stay.
        """

        def begin(connection: Connection) -> None:
            this = (seeds.c.run == self._number, seeds.c.number == seed.index)
            # Another process may have reopened and claimed it.
            if connection.execute(update(seeds).where(*this, seeds.c.done).values(done=False)).rowcount:
                connection.execute(
                    delete(results).where(results.c.run == self._number, results.c.seed == seed.index)
                )
                self._clear(connection, seed, kept)

        await self._inbox.change(begin, durable=True)

    def _clear(self, connection: Connection, seed: Seed, kept: Sequence[str]) -> None:
        others = [~entries.c.key.startswith(prefix, autoescape=True) for prefix in kept]
        of_seed = (entries.c.run == self._number, entries.c.seed == seed.index)
        connection.execute(delete(entries).where(*of_seed, *others))

    def retry_postponed(self) -> None:
        """Let the postponed seeds be claimed again."""
        self._postponed.clear()

    async def postponed(self) -> int:
        """Return the number of seeds that were postponed here and are still unfinished."""
        numbers = tuple(self._postponed)
        if not numbers:
            return 0
        return await self._database.read(
            lambda connection: _seeds.count_open(connection, self._number, numbers)
        )

    async def open_page(self, seed: Seed) -> Page:
        """Open the seed's page with its entries. It is writable until another owner claims the seed."""
        held = self._claims.get(seed.index)

        def load(connection: Connection) -> tuple[int, int, dict[str, bytes]]:
            # Read the number of claims first: a later claim closes this page.
            claims = held if held is not None else self._claims_of(connection, seed)
            written, bodies = 0, dict[str, bytes]()
            for key, ordinal, body in connection.execute(
                select(entries.c.key, entries.c.ordinal, entries.c.body)
                .where(entries.c.run == self._number, entries.c.seed == seed.index)
                .order_by(entries.c.ordinal, entries.c.key)
            ):
                written, bodies[key] = ordinal, body
            return claims, written, bodies

        if (before := self._pages.pop(seed.index, None)) is not None:
            # An entry that could not be written is simply missing.
            with suppress(RunStopped):
                await before.settle()
        bodies: dict[str, bytes] = {}
        if held == 1 and seed.index not in self._opened:
            # The page of a seed that was never claimed is empty.
            claims, written = held, 0
        else:
            claims, written, bodies = await self._database.read(load)
        self._opened.add(seed.index)

        async def write(key: str, body: bytes) -> Writing:
            nonlocal written
            written += 1
            return await self._inbox.begin(EntryRow(self._number, seed.index, key, written, body, claims))

        page = self._pages[seed.index] = Page(bodies, write, self._database.backend.shown)
        return page

    async def read_page(self, seed: Seed, prefix: str = "") -> Page:
        """Return what is recorded on a seed's page under keys that start with a prefix, to read only."""

        def load(connection: Connection) -> dict[str, bytes]:
            chosen = select(entries.c.key, entries.c.body).where(
                entries.c.run == self._number,
                entries.c.seed == seed.index,
                entries.c.key.startswith(prefix, autoescape=True),
            )
            return {row[0]: row[1] for row in connection.execute(chosen.order_by(entries.c.ordinal))}

        return Page(await self._database.read(load), journal=self._database.backend.shown)

    async def finish(self, seed: Seed, result: bytes) -> None:
        """Mark the seed as finished and store its result; both survive a power loss.

        :raises SeedTaken: if another owner has claimed it.
        """
        if (page := self._pages.pop(seed.index, None)) is not None:
            await page.settle()
        held = self._claims.get(seed.index)

        def end(connection: Connection) -> None:
            claims = held if held is not None else self._claims_of(connection, seed)
            ended = connection.execute(
                _END, {"of_run": self._number, "of_seed": seed.index, "of_claim": claims}
            )
            if not ended.rowcount:
                raise SeedTaken(seed.index)
            put(connection, results, {"run": self._number, "seed": seed.index, "body": result})

        await self._inbox.change(end, durable=True)
        self._claims.pop(seed.index, None)
        self._opened.discard(seed.index)

    async def stored_results(self) -> AsyncIterator[tuple[Seed, bytes]]:
        """Iterate over the finished seeds and their results by index, a few at a time in memory."""
        last = -1
        while True:
            chunk = await self._database.read(lambda connection, last=last: self._finished(connection, last))
            for body, result in chunk:
                seed = self._database.decode(body, Seed, "a seed")
                last = seed.index
                yield seed, result
            if len(chunk) < _CHUNK:
                return

    async def results(self, kind: type[T]) -> AsyncGenerator[tuple[Seed, T]]:
        """Iterate over the finished seeds and their decoded results by index, a few at a time in memory."""
        async for seed, result in self.stored_results():
            yield seed, self._database.decode(result, kind, f"the result of {seed.id}")

    async def counts(self) -> Counts:
        """Count the seeds by state."""
        return await self._database.read(lambda connection: _seeds.count(connection, self._number))

    async def commands(self) -> RunCommands:
        """Return the commands for the processes of this launch."""
        of = {"of_run": self._number, "of_launch": self._launch}
        row = await self._database.read(lambda connection: connection.execute(_COMMANDS, of).one())
        return RunCommands(*row)

    async def load_usage(self) -> dict[str, Usage]:
        """Return the run's usage so far, by role, over all processes."""
        usage_by_role = await self._database.read(lambda connection: usage_of(connection, self._number))
        if self._used_before is None:
            self._used_before = usage_by_role
        return usage_by_role

    async def save_usage(self, by_role: Mapping[str, Usage]) -> None:
        """Store the usage so far: what the first `load_usage` returned plus this process's own."""
        before = self._used_before or {}
        own_usage = {role: _less(total, before.get(role, Usage())) for role, total in by_role.items()}

        def save(connection: Connection) -> None:
            for role, used in own_usage.items():
                body = msgspec.json.encode(used)
                row = {"run": self._number, "owner": self._user, "role": role, "body": body}
                put(connection, usage, row)

        await self._inbox.change(save)

    async def save_failures(self, by_kind: Mapping[str, int]) -> None:
        """Store this process's failures so far, by kind. `JournalReader.failures` adds those of all processes."""
        if by_kind == self._saved_failures:
            return
        row = {"run": self._number, "seed": RUN_PAGE, "key": f"{FAILURES}{self._user}", "ordinal": 0}
        body = msgspec.json.encode(by_kind)
        await self._inbox.change(lambda connection: put(connection, entries, {**row, "body": body}))
        self._saved_failures = dict(by_kind)

    async def reserve(self, name: str, interval: float) -> float:
        """Reserve the next free slot of a rate limit, which all runs of the database share; return the seconds until it.

        :param name: name of the limit.
        :param interval: seconds between two slots.
        """

        def take(connection: Connection) -> float:
            now = self._database.backend.now(connection)
            return max(0.0, reserve_slot(connection, name, now, interval) - now)

        return await self._inbox.change(take)

    def attach_blobs(self, contents: Mapping[str, bytes], *, json: bool) -> None:
        """Add bytes under their SHA-256 to the transaction of the next entry: one that names them is never without them.

        :param json: they are JSON objects, for `JournalReader.json`.
        """
        self._inbox.attached += [BlobRow(self._number, hash, data, json) for hash, data in contents.items()]

    def _claims_of(self, connection: Connection, seed: Seed) -> int:
        claims = connection.scalar(
            select(seeds.c.claims).where(seeds.c.run == self._number, seeds.c.number == seed.index)
        )
        if claims is None:
            raise KeyError(seed.id)
        return claims

    def _finished(self, connection: Connection, last: int) -> Sequence[tuple[bytes, bytes]]:
        rows = connection.execute(
            select(seeds.c.body, results.c.body)
            .join(results, (results.c.run == seeds.c.run) & (results.c.seed == seeds.c.number))
            .where(seeds.c.run == self._number, seeds.c.number > last, seeds.c.done)
            .order_by(seeds.c.number)
            .limit(_CHUNK)
        )
        return [(seed, result) for seed, result in rows]


def _less(total: Usage, before: Usage) -> Usage:
    return Usage(
        total.calls - before.calls,
        total.prompt_tokens - before.prompt_tokens,
        total.completion_tokens - before.completion_tokens,
        total.estimates - before.estimates or msgspec.UNSET,
    )


def usage_of(connection: Connection, run: int) -> dict[str, Usage]:
    """Return the usage of models in a run by role, over all processes."""
    usage_by_role: dict[str, Usage] = {}
    rows = connection.execute(
        select(usage.c.role, usage.c.body).where(usage.c.run == run).order_by(usage.c.role)
    )
    for role, body in rows:
        usage_by_role[role] = usage_by_role.get(role, Usage()) + msgspec.json.decode(body, type=Usage)
    return usage_by_role
