"""`agentflow ctl ACTION PLACE`: runs that can't be commanded, and journals that can't be reached."""

import sqlite3
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text

from agentflow.cli import main
from agentflow.journal import NewSeed, open_journal, open_reader, this_process
from tests._postgres import PostgresServer, postgres_server
from tests.agentflow.inspection._journals import digests
from tests.agentflow.learner.test_token_page import write_run

ACTIONS = ("pause", "resume", "stop", "add")


async def begin(place: str | Path, name: str, *, done: bool = False, **settings: object) -> None:
    """Write a run of one seed into a journal."""
    async with open_journal(place) as journal:
        run = await journal.open_run(name, settings)
        await run.add_seeds([NewSeed("a")])
        for seed in await run.claim(this_process(), 1):
            if done:
                await run.finish(seed, b'{"pairs":[],"tree":null}')
        await run.release(this_process())


def refused(capsys: pytest.CaptureFixture[str], action: str, place: str | Path, *words: str) -> str:
    """Return the one line with which a command is refused."""
    seeds = ["Explore the harbour"] if action == "add" else []
    status = main(["ctl", action, str(place), *seeds, *words])
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (status, out) == (2, "")
    return line.removeprefix("agentflow: ")


@pytest.mark.promise("supervisor:commands:refused")
def test_a_run_that_can_not_be_commanded_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "journal.db"
    url = f"sqlite:///{file}"

    async def empty() -> None:
        async with open_journal(url):
            pass

    anyio.run(empty)
    assert refused(capsys, "pause", url) == "pause: the journal has no run; its runs: none"
    anyio.run(partial(begin, url, "ended", done=True))
    before = digests(tmp_path)
    for action in ACTIONS:
        assert refused(capsys, action, url) == f"{action}: ended has ended"
        named = refused(capsys, action, url, "--run", "other")
        assert named == f"{action}: the journal has no run other; its runs: ended"
    assert digests(tmp_path) == before
    anyio.run(partial(begin, url, "first"))
    assert main(["ctl", "pause", url]) == 0
    anyio.run(partial(begin, url, "second"))
    capsys.readouterr()
    for action in ACTIONS:
        line = refused(capsys, action, url)
        assert line == f"{action}: name one of these runs with --run: first, second"
    assert main(["ctl", "pause", url, "--run", "second"]) == 0
    assert capsys.readouterr().out.startswith("run              second\n")
    assert "--url: leave it out" in refused(capsys, "stop", url, "--url", "http://127.0.0.1:9/mcp")


@pytest.mark.promise("supervisor:commands:refused")
def test_an_evaluation_is_commanded_as_one_and_takes_no_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    for name in ("night/aime24/a", "night/aime24/b", "day"):
        anyio.run(partial(begin, url, name, evaluation_metric="exact_match"))
    assert main(["ctl", "pause", url, "--run", "night"]) == 0
    with open_reader(url) as journal:
        assert [journal.paused(run.number) for run in journal.runs()] == [True, True, False]
    assert capsys.readouterr().out.count("rollout") == 2
    for run in ("night", "day"):
        assert "is no synthesis, which alone takes seeds" in refused(capsys, "add", url, "--run", run)
    assert main(["ctl", "status", url]) == 0
    assert capsys.readouterr().out.count("rollout") == 3


@pytest.mark.promise("supervisor:commands:refused")
def test_a_training_and_a_journal_of_an_earlier_version_take_no_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = write_run(tmp_path / "training")
    assert "training: takes no commands" in refused(capsys, "pause", training)
    file = tmp_path / "journal.db"
    anyio.run(partial(begin, file, "run"))
    with sqlite3.connect(file) as database:
        database.execute("ALTER TABLE agentflow_runs DROP COLUMN paused")
        database.execute("DROP TABLE agentflow_launches")
        database.execute("UPDATE agentflow_schema SET version = 4")
    database.close()
    assert "takes no commands; it is a training, or was begun by an earlier" in refused(capsys, "stop", file)
    assert main(["ctl", "status", str(file)]) == 0


@pytest.mark.promise("launch:commands")
def test_a_command_for_a_run_without_processes_tells_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    anyio.run(partial(begin, url, "run"))
    waits = "paused: no process works on it; one that is started waits for resume"
    for action, note in (
        ("status", None),
        ("stop", "no process works on it"),
        ("pause", waits),
        ("status", waits),
        ("resume", "no process works on it"),
    ):
        assert main(["ctl", action, url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line.startswith("note")] == (
            [f"{'note':<16} {note}"] if note else []
        )


@pytest.mark.promise("supervisor:commands:refused")
def test_an_empty_database_is_no_journal(
    postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.new_database()
    assert "is no journal; no run was begun in this database" in refused(capsys, "pause", url)


@pytest.mark.promise("supervisor:commands:refused")
def test_a_journal_that_can_not_be_reached_is_one_line_without_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no such file or folder" in refused(capsys, "pause", tmp_path / "none")
    assert "--run: name the journal" in _refused_without_place(capsys)
    with postgres_server() as server:
        url = server.new_database()
        anyio.run(partial(begin, url, "run"))
        server.require_password("locked", "s3cret")
        wrong = url.replace("postgres@", "locked:hunter2@")
        line = refused(capsys, "pause", wrong)
        assert 'password authentication failed for user "locked"' in line
        assert "hunter2" not in line
        server.stop()
        line = refused(capsys, "stop", wrong)
        server.start()
    assert "can't be read" in line
    assert "hunter2" not in line


def _refused_without_place(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["ctl", "stop", "--run", "run"]) == 2
    return capsys.readouterr().err


@pytest.mark.promise("supervisor:commands:refused")
def test_seeds_that_can_not_be_used_are_refused_and_none_is_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], postgres: PostgresServer
) -> None:
    url = postgres.new_database()
    anyio.run(partial(begin, url, "run"))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"content": "Explore the light"}\n{"content": ""}\n', encoding="utf-8")
    assert "bad.jsonl:2: has no content" in refused(capsys, "add", url, str(bad))
    bad.write_text('{"content": "Explore the light", "id": "seed_001"}\n', encoding="utf-8")
    assert "two have the id 'seed_001'" in refused(capsys, "add", url, str(bad))
    with open_reader(url) as journal:
        assert journal.counts(1)[0] == (1, 0, 0)
        assert (
            journal.read(lambda connection: connection.scalar(text("SELECT count(*) FROM agentflow_seeds")))
            == 1
        )
    status = main(["ctl", "add", url])
    assert (status, capsys.readouterr().err) == (2, "agentflow: add: name the seeds after the journal\n")
