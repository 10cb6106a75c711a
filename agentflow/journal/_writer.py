"""The single writer of a journal, and the queue in front of it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import anyio.lowlevel
from sqlalchemy import Connection, select

from agentflow.actors import Channel, ChannelClosed, ChannelEnded, Context, WouldBlock
from agentflow.errors import AgentFlowError, RunStopped, StopCause
from agentflow.journal._database import BlobRow, EntryRow, JournalDatabase
from agentflow.journal._schema import entries, seeds

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
                results = await self._database.write(
                    lambda connection: [change.make(connection) for change in changes], durable=durable
                )
                for change, result in zip(changes, results, strict=True):
                    if not change.answer.done():
                        change.answer.set_result(result)
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
