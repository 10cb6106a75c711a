"""Behaviour specific to SQLite."""

import sqlite3
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from sqlalchemy import URL, Connection

from agentflow.actors import SYSTEM_CLOCK
from agentflow.errors import RunStopped
from agentflow.journal import NewSeed, open_journal
from agentflow.journal._database import EntryRow, JournalDatabase, migrate
from agentflow.journal._sqlite import Sqlite
from agentflow.testing import VirtualClock
from tests.agentflow.journal._recording import Note

FULL, NORMAL = 2, 1


def level(connection: Connection) -> int:
    """Return the transaction's `synchronous` level."""
    return int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())


@pytest.mark.promise("journal:durable")
async def test_only_a_durable_transaction_waits_for_the_disk(tmp_path: Path) -> None:
    backend = Sqlite(URL.create("sqlite", database=str(tmp_path / "journal.db")))
    database = JournalDatabase(backend, 1, SYSTEM_CLOCK)
    await migrate(database)
    assert await database.write(level) == NORMAL
    assert await database.write(level, durable=True) == FULL
    assert await database.write(level, durable=True) == FULL
    assert await database.write(level) == NORMAL
    await database.write(level, durable=True)
    assert await database.insert([EntryRow(1, 0, "key", 1, b"no such seed", 0)]) == 0
    assert await backend._writer.do(level) == NORMAL  # pyright: ignore[reportPrivateUsage]
    await database.close()


@pytest.mark.promise("journal:other-programs")
async def test_a_program_that_opens_a_journal_in_use_does_not_remove_its_log(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    # It writes as the last user of a database does when it closes it: what the log holds goes into the file, and the log away.
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA user_version'); c.close()"
    )

    def read() -> int:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as other:
            return int(other.execute("SELECT count(*) FROM agentflow_entries").fetchone()[0])

    async with open_journal(f"sqlite:///{file}") as journal:
        run = await journal.open_run("run", {})
        await run.add_seeds([NewSeed("one", {})], origin="a")
        [seed] = await run.claim("me", 1)
        page = await run.open_page(seed)
        await page.record("first", 1)
        # A query while a write is in progress opens a second connection.
        await run.counts()
        await anyio.run_process([sys.executable, "-c", program, str(file)])
        assert file.with_name("journal.db-wal").exists()
        await page.record("second", 2)
        assert await anyio.to_thread.run_sync(read) >= 2


@contextmanager
def held(file: Path) -> Generator[None]:
    """Block all other writers."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def impatient_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocked writer is refused after 20 ms."""
    monkeypatch.setattr("agentflow.journal._sqlite._BUSY_SECONDS", 0.02)


@pytest.mark.promise("journal:locked")
@pytest.mark.parametrize("entries", [3, 100])
@pytest.mark.usefixtures("impatient_driver")
async def test_writes_wait_for_a_locked_file_and_reads_continue(tmp_path: Path, entries: int) -> None:
    file = tmp_path / "journal.db"
    async with open_journal(file) as journal:
        run = await journal.open_run("run", {})
        (seed,) = await run.add_seeds([NewSeed("a")])
        page = await run.open_page(seed)
        async with anyio.create_task_group() as tasks:
            with held(file):
                for number in range(entries):
                    tasks.start_soon(page.record, f"act/{number}", Note(str(number)))
                for _ in range(100):
                    assert await run.counts() == (1, 0, 0)
                assert list(page.keys()) == []
        assert len(list((await run.open_page(seed)).keys())) == entries


@pytest.mark.promise("journal:locked")
@pytest.mark.usefixtures("impatient_driver")
async def test_a_file_that_stays_locked_ends_the_run_after_the_time_limit(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    async with open_journal(file, patience=0) as journal:
        run = await journal.open_run("run", {})
        with (
            held(file),
            pytest.raises(
                RunStopped, match=rf"^journal {file}: no answer for 0 s \(database is locked\); mend"
            ),
        ):
            await run.add_seeds([NewSeed("a")])
        assert len(await run.add_seeds([NewSeed("a")])) == 1


@pytest.mark.promise("journal:locked")
@pytest.mark.usefixtures("impatient_driver")
async def test_closing_fails_writes_that_wait_for_the_file(tmp_path: Path) -> None:
    file, clock, told = tmp_path / "journal.db", VirtualClock(), list[str]()
    async with anyio.create_task_group() as tasks:
        with ExitStack() as stack:
            async with open_journal(file, clock=clock) as journal:
                run = await journal.open_run("run", {})
                page = await run.open_page((await run.add_seeds([NewSeed("a")]))[0])
                stack.enter_context(held(file))

                async def record(number: int) -> None:
                    with pytest.raises(RunStopped) as stopped:
                        await page.record(f"act/{number}", Note(""))
                    told.append(str(stopped.value))

                async def pass_time() -> None:
                    while not told:
                        clock.advance(1)
                        await anyio.lowlevel.checkpoint()

                for number in range(3):
                    tasks.start_soon(record, number)
                tasks.start_soon(pass_time)
                await anyio.lowlevel.checkpoint()
    assert told == ["journal: it is closed, so nothing more is written"] * 3
    assert clock.now() < 60
    assert journal_threads() == []


def journal_threads() -> list[str]:
    """Return the threads of open journals."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("journal-")]


@pytest.mark.promise("journal:loop")
async def test_statements_run_in_threads_that_end_with_the_journal(tmp_path: Path) -> None:
    def where(_connection: Connection) -> str:
        return threading.current_thread().name

    async with open_journal(tmp_path / "journal.db") as journal:
        database = journal._database  # pyright: ignore[reportPrivateUsage]
        assert await database.write(where) == "journal-writer"
        assert await database.read(where) == "journal-reader"
        assert sorted(journal_threads()) == ["journal-reader", "journal-writer"]
    assert journal_threads() == []


@pytest.mark.promise("journal:loop")
async def test_a_change_cancelled_midway_is_completed_before_the_next_one(
    tmp_path: Path,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection) -> None:
        begun.set()
        go_on.wait()
        connection.exec_driver_sql("INSERT INTO agentflow_runs (name, settings) VALUES ('slow', x'')")

    def names(connection: Connection) -> list[str]:
        return list(connection.exec_driver_sql("SELECT name FROM agentflow_runs").scalars())

    async with open_journal(tmp_path / "journal.db") as journal:
        database = journal._database  # pyright: ignore[reportPrivateUsage]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(database.write, slow)
            while not begun.is_set():
                await anyio.lowlevel.checkpoint()
            assert await database.read(names) == []
            tasks.cancel_scope.cancel()
        go_on.set()
        assert await database.write(names) == ["slow"]
