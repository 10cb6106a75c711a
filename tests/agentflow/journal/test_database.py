"""Databases that are full, busy or away."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.exc import SQLAlchemyError

from agentflow.actors import SYSTEM_CLOCK
from agentflow.errors import RunStopped, StopCause
from agentflow.journal import NewSeed, Run, open_journal
from agentflow.journal._database import DatabaseFailure, JournalDatabase, backend_for, runs
from agentflow.journal._postgres import SERVER_SETTINGS, make_engine
from agentflow.testing import VirtualClock
from tests._postgres import PostgresServer, postgres_server
from tests.agentflow.journal._recording import Note

ROOT = Path(__file__).resolve().parents[3]


FULL = [
    """
    CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file'; END $$
    """,
    "CREATE TRIGGER fill BEFORE INSERT ON agentflow_entries EXECUTE FUNCTION fill()",
]


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that this test may stop."""
    with postgres_server() as server:
        yield server


@pytest.mark.promise("journal:full")
def test_a_full_disk_ends_the_run_at_once_and_keeps_acknowledged_entries(tmp_path: Path) -> None:
    script = (
        'mount -t tmpfs -o size=8m none "$1" && exec "$2" -m tests.agentflow.journal._recording "$3" "$1"'
    )
    done = subprocess.run(
        [
            *("unshare", "--mount", "--map-root-user"),
            *("sh", "-c", script, "sh", str(tmp_path), sys.executable, f"sqlite:///{tmp_path}/journal.db"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == (
        f"journal {tmp_path}/journal.db: no room is left (database or disk is full); make room, "
        "then run the same command again: nothing that was recorded is lost\nall there\n"
    )


@pytest.mark.promise("journal:full")
def test_a_disk_without_room_for_the_journal_s_side_files_counts_as_full(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=1m none "$1" && head -c 1000k /dev/zero > "$1/ballast" && exec "$2" -c "$3" "$1"'
    source = """
import sys, anyio
from agentflow.errors import RunStopped
from agentflow.journal import open_journal
async def main():
    async with open_journal(f"sqlite:///{sys.argv[1]}/journal.db"):
        pass
try:
    anyio.run(main)
except RunStopped as stopped:
    print(stopped.message)
"""
    done = subprocess.run(
        [
            *("unshare", "--mount", "--map-root-user"),
            *("sh", "-c", script, "sh", str(tmp_path), sys.executable, source),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert "no room is left" in done.stdout


@pytest.mark.promise("journal:full")
async def test_a_full_database_server_ends_the_run_at_once(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        page = await run.open_page((await run.add_seeds([NewSeed("a")]))[0])
        await page.record("before", Note("before"))
        await on_server(url, FULL)
        with pytest.raises(
            RunStopped, match=r"no room is left \(could not extend file\); make room"
        ) as stopped:
            await page.record("full", Note("full"))
        assert stopped.value.cause is StopCause.JOURNAL
        assert "full" not in page
        await on_server(url, ["DROP TRIGGER fill ON agentflow_entries"])
        await page.record("full", Note("again"))


async def on_server(url: str, statements: list[str]) -> None:
    """Run these statements."""
    database = JournalDatabase(backend_for(url), 1, SYSTEM_CLOCK)
    for statement in statements:
        await database.write(lambda connection, statement=statement: connection.exec_driver_sql(statement))
    await database.close()


async def use(run: Run, key: str) -> None:
    """Write and read in every way."""
    seed = (await run.add_seeds([NewSeed("a")]))[0]
    page = await run.open_page(seed)
    await page.record(key, Note(key))
    await run.blobs.put(key.encode(), "text/plain")
    await run.renew("me")
    assert (await run.open_page(seed)).recall(key, Note) == Note(key)
    assert [found async for found in run.stored_results()] == []


@pytest.mark.promise("journal:away")
async def test_a_restarting_server_is_waited_for(own_postgres: PostgresServer) -> None:
    async with open_journal(own_postgres.new_database(), patience=60) as journal:
        run = await journal.open_run("run", {})
        await use(run, "before")
        for number in range(2):
            await anyio.to_thread.run_sync(own_postgres.stop, "immediate")
            async with anyio.create_task_group() as tasks:
                for part in range(20):
                    tasks.start_soon(use, run, f"meanwhile {number} {part}")
                await anyio.lowlevel.checkpoint()
                await anyio.to_thread.run_sync(own_postgres.start)
        page = await run.open_page((await run.add_seeds([NewSeed("a")]))[0])
        assert len(list(page.keys())) == 41


@pytest.mark.promise("journal:away")
async def test_a_server_that_stays_away_ends_the_run_after_the_time_limit(
    own_postgres: PostgresServer,
) -> None:
    clock = VirtualClock()
    async with open_journal(own_postgres.new_database(), patience=30, clock=clock) as journal:
        run = await journal.open_run("run", {})
        page = await run.open_page((await run.add_seeds([NewSeed("a")]))[0])
        await anyio.to_thread.run_sync(own_postgres.stop, "immediate")
        told: list[RunStopped] = []

        async def record(number: int) -> None:
            try:
                await page.record(f"act/{number}", Note(""))
            except RunStopped as stopped:
                told.append(stopped)

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(record, number)
            while not told:
                clock.advance(1)
                await anyio.lowlevel.checkpoint()
        assert clock.now() >= 30
        assert len(told) == 5
        assert {stopped.cause for stopped in told} == {StopCause.JOURNAL}
        assert "no answer for 30 s (" in told[0].message
        assert "\n" not in told[0].message
        # Who asks once more is told at once, so that a run that ends does not wait for each of its last words.
        before = clock.now()
        with pytest.raises(RunStopped):
            await run.release("me")
        with pytest.raises(RunStopped):
            await run.counts()
        assert clock.now() == before
        await anyio.to_thread.run_sync(own_postgres.start)
        await use(run, "after")


@pytest.mark.promise("journal:away")
async def test_a_server_that_starts_after_the_run_is_waited_for(own_postgres: PostgresServer) -> None:
    url = own_postgres.new_database()
    own_postgres.stop("fast")
    async with anyio.create_task_group() as tasks:

        async def open_it() -> None:
            async with open_journal(url) as journal:
                await use(await journal.open_run("run", {}), "key")

        tasks.start_soon(open_it)
        await anyio.lowlevel.checkpoint()
        await anyio.to_thread.run_sync(own_postgres.start)


@pytest.mark.promise("journal:connections")
async def test_a_transaction_of_a_stopped_client_keeps_no_lock(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVER_SETTINGS, "idle_in_transaction_session_timeout", "100ms")
    url = own_postgres.new_database()
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        engine = make_engine(make_url(url), 1)
        connection = await engine.connect()
        lock = select(runs.c.id).with_for_update()
        await connection.execute(lock)
        # It waits for the lock until the server ends the idle transaction.
        assert len(await run.add_seeds([NewSeed("a")])) == 1
        with pytest.raises(SQLAlchemyError) as caught:
            await connection.execute(lock)
        assert backend_for(url).trouble(caught.value) is DatabaseFailure.PASSING
        await connection.invalidate()
        await engine.dispose()


@pytest.mark.promise("journal:connections")
async def test_both_ends_of_a_connection_look_for_a_peer_that_is_silent(own_postgres: PostgresServer) -> None:
    engine = make_engine(make_url(own_postgres.new_database()), 1)
    async with engine.connect() as connection:
        for name, value in (("tcp_keepalives_idle", "10"), ("tcp_user_timeout", "30000")):
            assert await connection.scalar(text(f"SHOW {name}")) == value
        raw: Any = (await connection.get_raw_connection()).driver_connection
        own: socket.socket = raw._transport.get_extra_info("socket")
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    await engine.dispose()
