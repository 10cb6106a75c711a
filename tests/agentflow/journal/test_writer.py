"""The writer and its queue."""

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from msgspec import Struct

from agentflow.actors import SYSTEM_CLOCK, ChildSpec, Supervisor
from agentflow.errors import ConfigurationError, RunStopped
from agentflow.journal import NewSeed, Run, open_journal
from agentflow.journal._database import BlobRow, EntryRow, JournalDatabase, backend_for, migrate
from agentflow.journal._run import Inbox, Writer
from agentflow.journal._seeds import LeaseTerms
from agentflow.testing import EventRecorder
from agentflow.trace import Seed


class Note(Struct, frozen=True):
    """Something to record."""

    text: str


class WatchedDatabase(JournalDatabase):
    """Notes how many entries each transaction wrote, and crashes where it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(backend_for(url), 1, SYSTEM_CLOCK)
        self.batches: list[int] = []
        self.crashes = 0

    async def insert(self, rows: Sequence[EntryRow], blobs: Sequence[BlobRow] = ()) -> int:
        """Write them, or crash before or after."""
        self.batches.append(len(rows))
        written = 0 if self.crashes % 2 else await super().insert(rows, blobs)
        if self.crashes:
            self.crashes -= 1
            raise ZeroDivisionError
        return written


def run_on(database: JournalDatabase, inbox: Inbox) -> Run:
    """The first run of that journal."""
    terms = LeaseTerms(database.backend.clock(), 30)
    return Run(database, inbox, number=1, key="", user="me", launch="me", terms=terms)


async def record(run: Run, numbers: range) -> None:
    """Record all of these at once on the page of the first seed."""
    page = await run.open_page((await run.add_seeds([NewSeed("a")]))[0])
    async with anyio.create_task_group() as tasks:
        for number in numbers:
            tasks.start_soon(page.record, f"act/{number}", Note(str(number)))


@pytest.mark.promise("journal:writer:batches")
async def test_waiting_entries_are_written_in_one_transaction(url: str) -> None:
    database, inbox = WatchedDatabase(url), Inbox()
    await migrate(database)
    async with Supervisor([ChildSpec(id="writer", start=lambda: Writer(database, inbox))]):
        await record(run_on(database, inbox), range(1000))
    await database.close()
    assert sum(database.batches) == 1000
    assert len(database.batches) <= 4


@pytest.mark.promise("journal:writer:crash")
async def test_a_writer_that_crashes_before_or_after_writing_neither_loses_nor_repeats_an_entry(
    url: str,
) -> None:
    database, inbox, events = WatchedDatabase(url), Inbox(), EventRecorder()
    await migrate(database)
    specs = [ChildSpec(id="writer", start=lambda: Writer(database, inbox))]
    async with Supervisor(specs, intensity=9, observer=events):
        database.crashes = 4
        await record(run_on(database, inbox), range(50))
        seed = (await run_on(database, inbox).add_seeds([NewSeed("a")]))[0]
        page = await run_on(database, inbox).open_page(seed)
        assert {page.recall(f"act/{number}", Note) for number in range(50)} == {
            Note(str(number)) for number in range(50)
        }
    await database.close()
    assert events.story().count("-writer crashed") == 4


@pytest.mark.promise("journal:writer:crash")
async def test_the_writer_can_be_a_child_of_any_supervisor(url: str) -> None:
    async with open_journal(url, hosted=False) as journal, Supervisor([journal.writer_spec()]):
        await record(await journal.open_run("run", {}), range(10))


@pytest.mark.promise("journal:writer:crash")
async def test_a_refused_entry_fails_only_its_own_caller(run: Run) -> None:
    refused: list[str] = []

    async def add_bad_seeds() -> None:
        try:
            await run.add_seeds([NewSeed("a", id="")], origin="bad")
        except ConfigurationError as error:
            refused.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add_bad_seeds)
        tasks.start_soon(record, run, range(20))
        tasks.start_soon(add_bad_seeds)
    assert len(refused) == 2
    assert await run.counts() == (1, 0, 0)


@pytest.mark.promise("journal:writer:cancelled")
async def test_a_cancelled_caller_does_not_prevent_entries_of_others(run: Run) -> None:
    seed = (await run.add_seeds([NewSeed("a")]))[0]
    page = await run.open_page(seed)
    for turns in range(6):
        async with anyio.create_task_group() as staying, anyio.create_task_group() as leaving:
            for number in range(10 * turns, 10 * turns + 10):
                leaving.start_soon(page.record, f"leaves/{number}", Note(str(number)))
                staying.start_soon(page.record, f"stays/{number}", Note(str(number)))
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            leaving.cancel_scope.cancel()
    again = await run.open_page(seed)
    assert [again.recall(f"stays/{number}", Note) for number in range(60)] == [
        Note(str(number)) for number in range(60)
    ]
    # What became of the others is either; asked for once more they are there.
    for number in range(60):
        await page.record(f"leaves/{number}", Note(str(number)))


@pytest.mark.promise("journal:writer:cancelled")
async def test_the_result_of_a_caller_cancelled_meanwhile_is_written(run: Run) -> None:
    seed = (await run.add_seeds([NewSeed("a")]))[0]
    page = await run.open_page(seed)
    for number in range(300):
        with anyio.CancelScope() as stopped:
            stopped.cancel()
            await page.note(f"act/{number}", Note(str(number)))
    again = await run.open_page(seed)
    assert len(list(again.keys())) == 300


@pytest.mark.promise("journal:writer:closed")
async def test_requested_entries_are_written_before_the_journal_closes(url: str) -> None:
    seed = Seed(index=0, id="seed_001", content="a")
    with anyio.CancelScope() as scope:
        async with open_journal(url) as journal, anyio.create_task_group() as tasks:
            run = await journal.open_run("run", {})
            await run.add_seeds([NewSeed("a")])
            page = await run.open_page(seed)

            async def last_words() -> None:
                with anyio.CancelScope(shield=True):
                    await page.record("act/0", Note("last words"))

            tasks.start_soon(last_words)
            await anyio.lowlevel.checkpoint()
            scope.cancel()
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        assert (await run.open_page(seed)).recall("act/0", Note) == Note("last words")


@pytest.mark.promise("journal:writer:closed")
async def test_callers_that_still_wait_when_the_writer_ends_get_an_error(tmp_path: Path) -> None:
    async with open_journal(f"sqlite:///{tmp_path}/journal.db", hosted=False) as journal:
        told: list[str] = []

        async def wait() -> None:
            try:
                await journal.open_run("run", {})
            except RunStopped as stopped:
                told.append(stopped.message)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            journal._inbox.abandon()  # pyright: ignore[reportPrivateUsage]
    assert told == ["journal: it is closed, so nothing more is written"]


@pytest.mark.promise("journal:writer:cancelled")
async def test_an_entry_that_fails_after_its_caller_left_logs_nothing() -> None:
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    inbox = Inbox()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(inbox.begin, EntryRow(run=1, seed=0, key="act/0", ordinal=0, body=b"", claims=0))
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    inbox.abandon()
    del inbox
    gc.collect()
    assert said == []
