"""Runs that vanish, are locked or damaged, and a full disk, while pages show them; the routes that do more than read."""

import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentflow import synthesize
from agentflow.dashboard import PageData, PageDataError, api_path
from agentflow.inspection import open_runs
from agentflow.journal import open_journal
from agentflow.synthesis.pipeline import CONTROL_FILE
from tests._postgres import PostgresServer
from tests.agentflow.cli._programs import running, until_it_says
from tests.agentflow.dashboard._chromium import grown_tree
from tests.agentflow.dashboard.conftest import WORDS, browser
from tests.system._supervised import endpoint


@pytest.fixture
def two_runs(finished: Path, tmp_path: Path) -> Path:
    """Return a folder of two runs with the same name and settings."""
    for place in ("monday", "tuesday"):
        shutil.copytree(finished, tmp_path / "runs" / place / "out")
    return tmp_path / "runs"


def break_journal(file: Path, outage: str) -> bytes:
    """Break the journal of a run, and return its content before."""
    content = file.read_bytes()
    if outage == "deleted":
        shutil.rmtree(file.parent)
    else:
        begin = 0 if outage == "no database" else 4096
        file.write_bytes(content[:begin] + b"\xff" * (len(content) - begin))
    return content


def restore(file: Path, content: bytes) -> None:
    """Write it again."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)


async def ask(client: aiohttp.ClientSession, path: str) -> tuple[int, Any]:
    """Return the status and the JSON of an answer."""
    async with client.get(f"/api/{path}") as answer:
        return answer.status, await answer.json()


@pytest.mark.promise("view:outage")
@pytest.mark.parametrize("outage", ["deleted", "damaged", "no database"])
async def test_a_run_that_can_not_be_read_any_more_is_one_line_and_the_other_runs_stay(
    two_runs: Path, outage: str
) -> None:
    with open_runs(two_runs) as runs:
        async with browser(runs) as (_, client):
            _, (lost, kept) = await ask(client, "runs")
            assert Path(lost["folder"]).parent.name == "monday"
            file = Path(lost["folder"], "journal.db")
            content = break_journal(file, outage)
            status, (first, second) = await ask(client, "runs")
            assert status == 200
            assert first["id"] == lost["id"]
            assert first["trouble"].startswith(f"{file}: can't be read: ")
            assert second == kept
            for path in (api_path("r", lost["id"]), api_path("r", lost["id"], "seeds")):
                status, answer = await ask(client, path)
                assert status == 400, answer
                assert "can't be read" in answer["error"]
                assert "\n" not in answer["error"]
            assert (await ask(client, api_path("r", kept["id"], "seeds")))[0] == 200
            # Back again: nothing has to be restarted.
            restore(file, content)
            assert (await ask(client, api_path("r", lost["id"], "seeds")))[0] == 200


@pytest.mark.promise("view:outage")
async def test_a_journal_that_a_writer_holds_alone_is_shown_as_it_was_committed(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    async with grown_tree(file, "Lighthouses") as tree:
        await tree.grow("0", "It is lit.")
        with open_runs(file) as runs:
            run = runs.runs()[0].id
            async with browser(runs) as (_, client):
                with closing(sqlite3.connect(file, isolation_level=None)) as writer:
                    writer.execute("BEGIN EXCLUSIVE")
                    writer.execute("DELETE FROM agentflow_entries")
                    status, shape = await ask(client, api_path("r", run, "s", "seed_001", "skeleton"))
                    assert (status, shape["spots"]) == (200, ["", "0"])
                    writer.execute("ROLLBACK")


@pytest.mark.promise("view:outage")
async def test_a_damaged_record_is_one_line_and_its_neighbours_are_shown(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with closing(sqlite3.connect(folder / "journal.db")) as writer, writer:
        writer.execute("UPDATE agentflow_entries SET body = '{' WHERE key = 'act/0' AND seed = 0")
    with open_runs(folder) as runs:
        run = runs.runs()[0].id
        async with browser(runs) as (_, client):
            status, answer = await ask(client, api_path("r", run, "s", "seed_001", "node", spot="0"))
            assert status == 503
            assert answer["error"].startswith("a record of the run is damaged: ")
            assert (await ask(client, api_path("r", run, "s", "seed_001", "skeleton")))[0] == 200
            assert (await ask(client, api_path("r", run, "s", "seed_002", "node", spot="0")))[0] == 200


@pytest.mark.promise("view:command")
def test_links_of_runs_of_one_command_lead_to_the_same_run_after_another_was_added(tmp_path: Path) -> None:
    def make(place: str) -> None:
        words = [*WORDS, f"output_dir={tmp_path / place / 'out'}"]
        synthesize(seeds=["Explore the ferries"], overrides=words, progress=False)

    make("monday")
    make("tuesday")
    with open_runs(tmp_path) as runs:
        before = {run.folder: run.id for run in runs.runs()}
        assert len(set(before.values())) == 2
        with pytest.raises(KeyError):
            runs.run("out")
    make("earlier")
    with open_runs(tmp_path) as runs:
        after = {run.folder: run.id for run in runs.runs()}
    assert len(set(after.values())) == 3
    assert before.items() <= after.items()


EXPORTS: tuple[tuple[object, Mapping[str, str], int, str], ...] = (
    ({"format": "openai"}, {"Content-Type": "text/plain"}, 415, "asked for in JSON"),
    ({"format": "../../etc"}, {}, 400, "is none of"),
    ({"format": "openai", "folder": "/"}, {}, 400, "unknown field"),
    ({"take": "all"}, {}, 400, "format"),
    ({"format": "x" * 100_000}, {}, 413, "at most 65536 bytes"),
    ({"format": "openai", "take": "some"}, {}, 400, "take"),
)


@pytest.mark.promise("view:export")
async def test_the_button_writes_an_export_into_the_folder_of_the_run(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with open_runs(folder) as runs:
        async with browser(runs) as (view, client):
            path, own = f"/api/r/{runs.runs()[0].id}/export", {"Origin": view.url}

            async def export(
                body: object, headers: Mapping[str, str], at: str = path
            ) -> tuple[int, dict[str, Any]]:
                sent = {"Content-Type": "application/json", **own, **headers}
                async with client.post(at, data=json.dumps(body), headers=sent) as answer:
                    return answer.status, await answer.json()

            status, manifest = await export({"format": "openai", "take": "all"}, {})
            target = Path(manifest["folder"])
            assert (status, target) == (200, folder / "exports/openai")
            assert manifest["rows"] and (target / "README.md").is_file()
            for body, headers, expected, words in EXPORTS:
                status, answer = await export(body, headers)
                assert (status, words in answer["error"]) == (expected, True), answer
            assert (await export({"format": "openai"}, {}, "/api/r/unknown/export"))[0] == 404
            async with client.post(path, json={"format": "openai"}) as refused:
                assert refused.status == 403
            before = (target / "manifest.json").read_bytes()

            def full(*_: object, **__: object) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr("agentflow.exports._writing.make_private_folder", full)
            status, answer = await export({"format": "openai", "take": "all"}, {})
            assert (status, answer) == (
                400,
                {"error": f"{target}: can't be written: No space left on device"},
            )
            assert (target / "manifest.json").read_bytes() == before
            assert (await ask(client, "runs"))[0] == 200


@pytest.mark.promise("view:export")
async def test_a_run_without_a_folder_here_is_not_exported(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    async with open_journal(url) as journal:
        await journal.open_run("far", {})
    with open_runs(url) as runs, pytest.raises(PageDataError, match="no output directory on this machine"):
        PageData(runs).export(runs.runs()[0].id, "openai")


@pytest.mark.promise("view:status")
def test_the_actors_of_an_active_run_are_shown_and_a_planted_address_is_not_asked(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    small = ("max_depth=2", "depth_threshold=1", "number_of_seed=2", f"output_dir={folder}")
    with (
        endpoint(hold_after=0) as at,
        running("agentflow.supervisor", *at.words, *small, cwd=tmp_path) as process,
    ):
        until_it_says(process, "control server")
        at.wait_for(calls=1)
        with open_runs(folder) as runs:
            data, status = PageData(runs), api_path("r", runs.runs()[0].id, "status")
            shown = json.loads(data.load(status))
            assert shown["actors"]
            file = folder / CONTROL_FILE
            known = json.loads(file.read_text(encoding="utf-8"))
            for url in ("http://192.0.2.1/mcp", "http://127.0.0.1:9/mcp", "file:///etc/passwd", "http://["):
                file.write_text(json.dumps({**known, "url": url}), encoding="utf-8")
                with pytest.raises(PageDataError, match="not active"):
                    data.load(status)
            file.write_text(json.dumps(known), encoding="utf-8")
            process.kill()
            process.wait()
            with pytest.raises(PageDataError, match="not active"):
                data.load(status)
