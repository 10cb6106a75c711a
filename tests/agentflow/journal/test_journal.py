"""Opening the journal and runs in it."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.journal import Journal, NewSeed, open_journal, this_process
from agentflow.trace import Usage
from tests._postgres import PostgresServer


@pytest.mark.promise("journal:run:settings")
async def test_a_run_opens_again_with_the_same_settings_in_any_order(journal: Journal) -> None:
    first = await journal.open_run("run", {"depth": 5, "tools": ["a", "b"]})
    again = await journal.open_run("run", {"tools": ["a", "b"], "depth": 5})
    elsewhere = await journal.open_run("other name", {"depth": 5, "tools": ["a", "b"]})
    assert first.key == again.key == elsewhere.key
    assert (await journal.open_run("third", {"depth": 6})).key != first.key


@pytest.mark.promise("journal:run:settings")
async def test_other_settings_are_refused_with_each_difference_on_one_line(url: str) -> None:
    async with open_journal(url) as journal:
        before = {"depth": 5, "roles": {"planner": "a", "judge": None}, "tips": "x" * 200, "gone": 1}
        await journal.open_run("run", before)
        now = {"depth": 5.0, "roles": {"planner": "b", "judge": None}, "tips": "y" * 200, "new": [1]}
        with pytest.raises(ConfigurationError) as refused:
            await journal.open_run("run", now)
    choice = "output_dir or run_name" if url.startswith("sqlite") else "run_name"
    assert str(refused.value) == (
        "run 'run' was made with other settings (depth: 5 -> 5.0; gone: 1 -> nothing; new: nothing -> [1]; "
        f'roles.planner: "a" -> "b"; tips: "{"x" * 58}… -> "{"y" * 58}…); '
        f"choose another {choice}, or go back to the old settings"
    )


@pytest.mark.promise("journal:run:settings")
@pytest.mark.parametrize("name", ["", "two\nlines", "\0"])
async def test_a_run_name_needs_printable_characters(journal: Journal, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^run_name: .*; write one line of visible signs$"):
        await journal.open_run(name, {})
    with pytest.raises(ConfigurationError, match=r"^lease_seconds: 0 is too short"):
        await journal.open_run("run", {}, lease_seconds=0)


@pytest.mark.promise("journal:address")
@pytest.mark.parametrize(
    "url", ["", "journal.db", "mysql://me:secret@host/db", "sqlite://", "sqlite:///:memory:", "postgresql+x"]
)
async def test_an_invalid_url_gives_one_line_without_the_url(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        async with open_journal(url):
            raise AssertionError
    assert str(refused.value) == (
        "journal: not an address that can be used; write sqlite:///FILE or postgresql://…"
    )


@pytest.mark.promise("journal:address")
async def test_a_foreign_file_gives_one_line_and_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database\n" * 100, encoding="utf-8")
    for url, reason in (
        (
            f"sqlite:///{file}",
            r"damaged \(file is not a database\), so that part of what was recorded may be lost",
        ),
        (f"sqlite:///{tmp_path}/nowhere/journal.db", "unable to open database file; mend it"),
    ):
        with pytest.raises(RunStopped, match=f"^journal {tmp_path}/.*: {reason}") as stopped:
            async with open_journal(url):
                raise AssertionError
        assert stopped.value.cause is StopCause.JOURNAL
        assert "\n" not in str(stopped.value)
    assert file.read_text(encoding="utf-8").startswith("not a database\n")


@pytest.mark.promise("journal:damaged")
@pytest.mark.parametrize("kept", [0.3, 0.5, 0.9])
async def test_a_journal_that_was_cut_is_not_said_to_be_whole(kept: float, tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    async with open_journal(file) as journal:
        run = await journal.open_run("run", {})
        await run.add_seeds([NewSeed("x" * 5000) for _ in range(100)])
    pages = file.stat().st_size // 8192
    left = int(pages * kept)
    os.truncate(file, left * 8192 + 100)
    with pytest.raises(RunStopped) as stopped:
        async with open_journal(file) as journal:
            await (await journal.open_run("run", {})).claim(this_process(), 100)
    assert stopped.value.cause is StopCause.JOURNAL
    line = str(stopped.value)
    assert line.startswith(f"journal {file}: damaged (pages left: {left} of {pages}), so that part of")
    assert "move it away to begin again" in line and "\n" not in line and "nothing" not in line


@pytest.mark.promise("journal:damaged")
async def test_a_journal_without_one_of_its_tables_is_not_said_to_be_whole(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    async with open_journal(file) as journal:
        await journal.open_run("run", {})
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DROP TABLE agentflow_entries")
    with pytest.raises(
        RunStopped, match=r"damaged \(no such table: agentflow_entries\), so that part"
    ) as stopped:
        async with open_journal(file) as journal:
            await (await journal.open_run("run", {})).keep("key", 1)
    assert "nothing" not in str(stopped.value)


@pytest.mark.promise("journal:damaged")
@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            "agentflow_entries",
            "the record plan/0 is damaged (Input data was truncated): it is lost, the rest can",
        ),
        (
            "agentflow_harvests",
            "the result of seed_001 is damaged (Input data was truncated): it is lost, the",
        ),
        (
            "agentflow_seeds",
            "a record is damaged (Input data was truncated), so that part of what was recorded is",
        ),
        (
            "agentflow_usage",
            "a record is damaged (Input data was truncated), so that part of what was recorded is",
        ),
    ],
)
async def test_a_damaged_record_ends_the_run_in_one_line_that_names_it(
    table: str, problem: str, tmp_path: Path
) -> None:
    file, harbour = tmp_path / "journal.db", [NewSeed("Explore the harbour")]
    async with open_journal(file) as journal:
        run = await journal.open_run("run", {})
        await run.add_seeds(harbour)
        (seed,) = await run.claim(this_process(), 1)
        await (await run.open_page(seed)).record("plan/0", {"goal": "a"})
        await run.finish(seed, b'{"answer": "a"}')
        await run.load_usage()
        await run.save_usage({"planner": Usage(1, 2, 3)})
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(f"UPDATE {table} SET body = substr(body, 1, length(body) - 1)")
    with pytest.raises(RunStopped) as stopped:
        async with open_journal(file) as journal:
            run = await journal.open_run("run", {})
            await run.load_usage()
            (seed,) = await run.add_seeds(harbour)
            (await run.read_page(seed)).recall("plan/0", dict[str, str])
            assert [found async for found in run.results(dict[str, str])] == []
    line = str(stopped.value)
    assert line.startswith(f"journal {file}: {problem}") and "\n" not in line
    assert stopped.value.cause is StopCause.JOURNAL


@pytest.mark.promise("journal:address")
async def test_a_path_may_contain_any_character(tmp_path: Path) -> None:
    file = tmp_path / "50% of #1? ünï & more.db"
    async with open_journal(file) as journal:
        await journal.open_run("run", {})
    assert file.exists()


@pytest.mark.promise("journal:address")
async def test_a_refused_connection_gives_one_line_without_the_password(postgres: PostgresServer) -> None:
    missing = postgres.new_database().replace("postgres@", "postgres:hunter2@") + "-not"
    with pytest.raises(RunStopped, match=r'database "test.*-not" does not exist; mend it') as stopped:
        async with open_journal(missing):
            raise AssertionError
    assert "hunter2" not in str(stopped.value)


@pytest.mark.promise("journal:address")
async def test_a_postgres_journal_accepts_sockets_and_libpq_options(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    async with open_journal(f"{url}?sslmode=disable") as journal:
        key = (await journal.open_run("run", {})).key
    async with open_journal(postgres.by_socket(url)) as journal:
        assert (await journal.open_run("run", {})).key == key


@pytest.mark.promise("journal:version")
async def test_tables_of_a_newer_version_are_refused_and_not_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    async with open_journal(url):
        pass
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("UPDATE agentflow_schema SET version = 99")
    database.close()
    with pytest.raises(ConfigurationError) as refused:
        async with open_journal(url):
            raise AssertionError
    assert str(refused.value) == (
        f"journal {tmp_path}/journal.db: its tables are of version 99, this program knows 7; "
        "use a newer AgentFlow, or another journal"
    )


@pytest.mark.promise("journal:version")
async def test_a_new_journal_can_be_opened_by_many_processes_at_once(url: str) -> None:
    keys: list[str] = []

    async def open_it() -> None:
        async with open_journal(url) as journal:
            keys.append((await journal.open_run("run", {"a": 1})).key)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(open_it)
    assert len(keys) == 8
    assert len(set(keys)) == 1


@pytest.mark.promise("journal:writer:closed")
async def test_a_closed_journal_gives_a_clear_error(url: str) -> None:
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
    with pytest.raises(RunStopped, match="it is closed"):
        await run.add_seeds([])
    with pytest.raises(RunStopped, match="it is closed"):
        await run.counts()
