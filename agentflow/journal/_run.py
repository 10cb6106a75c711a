"""One run in the journal: seeds, pages, harvests, blobs and usage."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, delete, select, update

from agentflow.errors import RunStopped
from agentflow.journal import _leases
from agentflow.journal._backend import BlobRow, EntryRow
from agentflow.journal._database import JournalDatabase
from agentflow.journal._leases import Counts
from agentflow.journal._page import Page, Writing
from agentflow.journal._schema import (
    blobs,
    entries,
    harvests,
    launches,
    put,
    reserve_slot,
    runs,
    seeds,
    usage,
)
from agentflow.journal._seeds import NewSeed, add_seeds
from agentflow.journal._writer import Inbox, SeedTaken
from agentflow.trace import Blob, Seed, Usage

T = TypeVar("T")
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
        lease_seconds: float,
        user: str,
        launch: str,
        host: str | None = None,
        now: Callable[[], float] | None,
    ) -> None:
        self.key = key
        """Digest of the settings that determine the content; ids of trees derive from it."""
        self.blobs = RunBlobs(database, inbox, number)
        """Images and other bytes."""
        self._database = database
        self._inbox = inbox
        self._number = number
        self._lease_seconds = lease_seconds
        self._user = user
        self._launch = launch
        self._host = host
        self._clock: ColumnElement[float] = (
            database.backend.clock() if now is None else bindparam("now", callable_=now)
        )
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

    async def keep(self, key: str, value: object) -> None:
        """Store a record of the run itself, such as that of its beginning; a stored one never changes.

        `JournalReader.kept` returns it.
        """
        body = msgspec.json.encode(value)

        def write(connection: Connection) -> None:
            stored_key = select(entries.c.key).where(
                entries.c.run == self._number, entries.c.seed == RUN_PAGE, entries.c.key == key
            )
            if connection.scalar(stored_key) is None:
                row = {"run": self._number, "seed": RUN_PAGE, "key": key, "ordinal": 0, "body": body}
                put(connection, entries, row)

        await self._inbox.change(write)

    async def claim(self, owner: str, count: int) -> list[Seed]:
        """Claim up to `count` free seeds, lowest index first, for as long as the lease is renewed.

        A seed is free if nobody holds it, its lease has run out, or its owner was a process of this machine
        (see `this_process`) that has ended. Seeds that were postponed here are left to others, and those in work here are not
        claimed again, even if this process was suspended for longer than a lease.
        """
        seconds, without = self._lease_seconds, tuple(self._postponed)

        def take(connection: Connection) -> list[_leases.Claimed]:
            return _leases.claim(
                connection,
                self._number,
                owner,
                count,
                self._clock,
                seconds,
                self._holders,
                held=self._claims,
                without=without,
                host=self._host,
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
            _leases.renew(connection, self._number, owner, held, self._clock, self._lease_seconds)

        await self._inbox.change(extend, atomic=False)

    async def release(self, owner: str) -> None:
        """Release this owner's unfinished seeds at once."""
        await self._inbox.change(lambda connection: _leases.release(connection, self._number, owner))

    async def postpone(self, seed: Seed) -> None:
        """Release a claimed seed and keep its page. This object does not claim it again before `retry_postponed`."""
        if (page := self._pages.pop(seed.index, None)) is not None:
            await page.settle()
        held = self._claims.pop(seed.index, None)
        self._opened.discard(seed.index)
        self._postponed.add(seed.index)
        if held is not None:
            await self._inbox.change(
                lambda connection: _leases.release_one(connection, self._number, seed.index, held)
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
                    delete(harvests).where(harvests.c.run == self._number, harvests.c.seed == seed.index)
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
            lambda connection: _leases.count_open(connection, self._number, numbers)
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
            put(connection, harvests, {"run": self._number, "seed": seed.index, "body": result})

        await self._inbox.change(end, durable=True)
        self._claims.pop(seed.index, None)
        self._opened.discard(seed.index)

    async def harvests(self) -> AsyncIterator[tuple[Seed, bytes]]:
        """Iterate over the finished seeds and their results by index, a few at a time in memory."""
        last = -1
        while True:
            chunk = await self._database.read(lambda connection, last=last: self._harvests(connection, last))
            for body, result in chunk:
                seed = self._database.decode(body, Seed, "a seed")
                last = seed.index
                yield seed, result
            if len(chunk) < _CHUNK:
                return

    async def results(self, kind: type[T]) -> AsyncGenerator[tuple[Seed, T]]:
        """Iterate over the finished seeds and their decoded results by index, a few at a time in memory."""
        async for seed, result in self.harvests():
            yield seed, self._database.decode(result, kind, f"the result of {seed.id}")

    async def counts(self) -> Counts:
        """Count the seeds by state."""
        return await self._database.read(lambda connection: _leases.count(connection, self._number))

    async def commands(self) -> RunCommands:
        """Return the commands for the processes of this launch."""
        of = {"of_run": self._number, "of_launch": self._launch}
        row = await self._database.read(lambda connection: connection.execute(_COMMANDS, of).one())
        return RunCommands(*row)

    async def load_usage(self) -> dict[str, Usage]:
        """Return the run's usage so far, by role, over all processes."""

        def load(connection: Connection) -> dict[str, Usage]:
            usage_by_role: dict[str, Usage] = {}
            rows = connection.execute(
                select(usage.c.role, usage.c.body).where(usage.c.run == self._number).order_by(usage.c.role)
            )
            for role, body in rows:
                usage_by_role[role] = usage_by_role.get(role, Usage()) + msgspec.json.decode(body, type=Usage)
            return usage_by_role

        usage_by_role = await self._database.read(load)
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

    def _harvests(self, connection: Connection, last: int) -> Sequence[tuple[bytes, bytes]]:
        rows = connection.execute(
            select(seeds.c.body, harvests.c.body)
            .join(harvests, (harvests.c.run == seeds.c.run) & (harvests.c.seed == seeds.c.number))
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
