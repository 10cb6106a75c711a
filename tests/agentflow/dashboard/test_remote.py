"""Runs on another machine, through ssh."""

import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from agentflow.cli import main
from agentflow.dashboard import PageData, api_path
from agentflow.inspection import open_runs
from agentflow.journal import open_journal
from tests._postgres import PostgresServer
from tests.agentflow.cli._programs import running
from tests.agentflow.dashboard._access import opener_of
from tests.agentflow.dashboard._far_machine import far_machine
from tests.behaviour._tree import ROOT
from tests.system._supervised import wait_for

if TYPE_CHECKING:
    import subprocess

AGENTFLOW = f"env PYTHONPATH={ROOT} {sys.executable} -m agentflow.cli"


@contextmanager
def far_view(
    folder: Path, cwd: Path, *options: str
) -> Generator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """View a folder of the other machine; yield the process with the first line that it prints."""
    words = (f"ssh://far{folder}", "--no-open", "--json", "--command", AGENTFLOW, *options)
    with running("agentflow.cli", "view", *words, cwd=cwd) as viewer:
        assert viewer.stdout is not None
        yield viewer, json.loads(viewer.stdout.readline())


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a client that knows another machine."""
    return far_machine(tmp_path_factory.mktemp("far") / "machine")


@pytest.fixture(autouse=True)
def far(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put that client on the path."""
    monkeypatch.setenv("PATH", f"{ssh}:{os.environ['PATH']}")


@pytest.mark.promise("view:remote")
def test_a_run_on_another_machine_gives_the_same_page_and_its_viewer_ends_with_the_command(
    finished: Path, tmp_path: Path
) -> None:
    with open_runs(finished) as runs:
        data = PageData(runs)
        run = runs.runs()[0].id
        paths = ["runs", api_path("r", run), api_path("r", run, "seeds"), api_path("r", run, "tools")]
        for seed in runs.run(run).seeds():
            of_seed = ("r", run, "s", seed.id)
            paths += [api_path(*of_seed, what) for what in ("skeleton", "results", "tokens")]
            spots = runs.run(run).skeleton(seed.id).spots
            paths += [api_path(*of_seed, "node", spot=spot) for spot in spots]
        with far_view(finished, tmp_path) as (viewer, shown):
            opener = opener_of(shown["link"])
            for path in paths:
                with opener.open(f"{shown['url']}/api/{path}") as answer:
                    assert answer.read() == data.load(path), path
            # The next link, for another browser.
            assert viewer.stdout is not None
            assert json.loads(viewer.stdout.readline())["link"] != shown["link"]
            viewer.send_signal(signal.SIGINT)
            assert viewer.wait() == 0
            wait_for(lambda: not psutil.pid_exists(int(shown["pid"])))


@pytest.mark.promise("view:remote")
async def test_a_viewer_of_a_database_on_another_machine_ends_when_the_command_was_killed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    # The other machine reaches sockets of files, but not the loopback address of this one.
    url = postgres.by_socket(postgres.new_database())
    async with open_journal(url) as journal:
        await journal.open_run("ferries", {})
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.yaml").write_text(f"journal: {url}\nrun_name: ferries\n", encoding="utf-8")
    with far_view(folder, tmp_path, "--journal", url) as (viewer, shown):
        assert psutil.pid_exists(int(shown["pid"]))
        with opener_of(shown["link"]).open(f"{shown['url']}/api/runs") as answer:
            assert [run["name"] for run in json.load(answer)] == ["run"]
        viewer.kill()
        wait_for(lambda: not psutil.pid_exists(int(shown["pid"])))


@pytest.mark.promise("view:remote")
def test_a_place_on_another_machine_that_can_not_be_shown_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = f"ssh://far{tmp_path}/nothing"
    assert main(["view", nothing, "--no-open", "--command", AGENTFLOW]) == 2
    assert capfd.readouterr().err == (
        f"agentflow: {tmp_path}/nothing: no such file or folder; name the output_dir of a run\n"
    )
    assert main(["view", nothing, "--no-open", "--command", "agentfloww"]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == (
        f"agentflow: {nothing}: there is no program 'agentfloww' there; name it with --command"
    )
    assert main(["view", "ssh://127.0.0.1:1/runs", "--no-open"]) == 1
    assert "agentflow: ssh://127.0.0.1:1/runs: no connection, or it was lost" in capfd.readouterr().err
    for place in ("ssh://", "ssh:///runs", "ssh://me:secret@far/runs"):
        assert main(["view", place, "--no-open"]) == 2
        err = capfd.readouterr().err
        assert "name a machine: ssh://[USER@]HOST[:PORT]/PATH, without a password" in err
        assert "secret" not in err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["view", nothing, "--no-open"]) == 2
    assert "ssh can't be started" in capfd.readouterr().err
