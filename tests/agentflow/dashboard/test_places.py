"""Finished, killed and active runs, in files and on Postgres: the same page, and no byte of them changes."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow import asynthesize
from agentflow.cli import main
from agentflow.dashboard import REPORT_PAGE, PageData, api_path
from agentflow.inspection import RunCollection, open_runs
from tests._postgres import PostgresServer
from tests.agentflow.cli._programs import running
from tests.agentflow.dashboard._access import opener_of
from tests.agentflow.dashboard.conftest import WORDS
from tests.system._supervised import endpoint


def answers(runs: RunCollection) -> Iterator[tuple[str, Any]]:
    """Yield every answer about the only run that the page can ask for, without the id of the run."""
    data = PageData(runs)

    def load(*parts: str, **query: str) -> Any:  # noqa: ANN401 - JSON
        return json.loads(data.load(api_path("r", run, *parts, **query)))

    run = json.loads(data.load("runs"))[0]["id"]
    for seed in load("seeds"):
        yield seed["id"], seed
        of_seed = ("s", seed["id"])
        skeleton = load(*of_seed, "skeleton")
        yield "skeleton", {**skeleton, "cursor": ""}
        for spot in skeleton["spots"]:
            node = load(*of_seed, "node", spot=spot)
            yield spot, node
            yield f"{spot} children", load(*of_seed, "children", spot=spot)
            yield from ((call["key"], load(*of_seed, "call", key=call["key"])) for call in node["calls"])
        yield "calls", load(*of_seed, "calls")
        yield "results", load(*of_seed, "results")
        yield "tokens", load(*of_seed, "tokens")
    yield "tools", load("tools")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.promise("view:same")
async def test_a_run_on_postgres_gives_the_page_of_the_same_run_in_a_file(
    finished: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    words = [*WORDS, f"journal={url}", f"output_dir={tmp_path / 'out'}"]
    await asynthesize(
        seeds=["Explore the ferries", "Explore the lighthouses"], overrides=words, progress=False
    )
    before = contents(finished)
    with open_runs(finished) as in_file:
        expected = list(answers(in_file))
    assert contents(finished) == before
    with open_runs(url) as on_postgres:
        assert list(answers(on_postgres)) == expected
    assert "Explore the ferries" in (tmp_path / "out" / REPORT_PAGE).read_text(encoding="utf-8")


@pytest.mark.promise("view:same")
@pytest.mark.promise("view:command")
def test_a_run_is_seen_while_it_is_active_and_after_it_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    small = ("max_depth=2", "depth_threshold=1", "number_of_seed=2", f"output_dir={folder}")
    with (
        endpoint(hold_after=7) as at,
        running("agentflow.supervisor", *at.words, *small, cwd=tmp_path) as process,
    ):
        at.wait_for(calls=8)
        with open_runs(folder) as runs:
            assert runs.runs()[0].state == "running"
            seen = dict(answers(runs))
        process.kill()
        process.wait()
    with open_runs(folder) as runs:
        assert runs.runs()[0].state == "stopped"
        killed = dict(answers(runs))
    assert {spot for spot, node in seen.items() if "tool" in node} <= killed.keys()
    assert killed["0"]["tool"]
    assert main(["ctl", "open", "--dir", str(tmp_path)]) == 1
    assert "no run is active" in capsys.readouterr().err

    with running("agentflow.cli", "view", str(folder), "--no-open", "--json", cwd=tmp_path) as viewer:
        assert viewer.stdout is not None
        link = json.loads(viewer.stdout.readline())["link"]
        assert "/r/" in link
        with opener_of(link).open(link) as page:
            assert b"<script" in page.read()
        # The next link, for another browser.
        assert json.loads(viewer.stdout.readline())["link"] != link
        viewer.send_signal(signal.SIGINT)
        assert viewer.wait() == 0
    assert main(["view", str(tmp_path / "nothing")]) == 2
    assert main(["view", str(folder), "--port", "99999"]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["agentflow", "agentflow"]
