"""`agentflow ctl watch PLACE`: runs of any kind, followed by their journals."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from agentflow.cli import _watch, main
from agentflow.journal import this_process
from agentflow.runs import JOURNAL_FILE, lock_output
from agentflow.trace import Usage
from tests._postgres import PostgresServer
from tests.agentflow.cli._programs import finish, running, until_it_says
from tests.agentflow.cli.test_ctl import SMALL, ProgressReader
from tests.agentflow.cli.test_terminal import CONTROLS
from tests.agentflow.inspection._journals import claimed, digests
from tests.agentflow.learner.test_token_page import write_run
from tests.system._supervised import endpoint

HARVEST = b'{"pairs":[],"tree":null}'
HOSTILE = "re\x1b]0;own\x07d\u202e\nrun"


def watch(place: str | Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """Return the exit status and the lines of the command."""
    status = main(["ctl", "watch", str(place), "--patience", "0", *words])
    return status, capsys.readouterr().out.splitlines()


async def begin(url: str | Path, *, finished: int) -> None:
    """Write the journal of a run of two seeds that was stopped or has ended."""
    async with claimed(url, ["a", "b"]) as (_, run, [seed]):
        await run.load_usage()
        await run.save_usage({"planner": Usage(3, 1000, 234)})
        await run.save_failures({f"tool {HOSTILE}": 2})
        if finished:
            for each in (seed, *await run.claim(this_process(), 1)):
                await run.finish(each, HARVEST)
        await run.release(this_process())


@pytest.mark.promise("supervisor:watch:place")
@pytest.mark.parametrize("killed", [False, True])
def test_a_run_without_a_control_server_is_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    folder = tmp_path / "out"
    with (
        endpoint(hold_after=0) as at,
        running(
            "agentflow.supervisor", *at.words, f"output_dir={folder}", *SMALL, "control=false", cwd=tmp_path
        ) as process,
    ):
        until_it_says(process, "growing")
        reader = ProgressReader(partial(signal.raise_signal, signal.SIGINT))
        monkeypatch.setattr(sys, "stdout", reader)
        assert main(["ctl", "watch", "--json", str(folder)]) == 130
        assert process.poll() is None

        def kill() -> None:
            process.kill()
            process.wait(60)

        reader = ProgressReader(kill if killed else at.release)
        monkeypatch.setattr(sys, "stdout", reader)
        status = main(["ctl", "watch", "--json", "--patience", "0", str(folder)])
        last = reader.lines()[-1]
        if killed:
            assert (status, last["phase"], last["killed"]) == (1, "stopped", True)
        else:
            assert (status, last["phase"], last["done"], last["total"]) == (0, "done", 2, 2)
            assert last["used"] > 0
            assert finish(process)[0] == 0


@pytest.mark.promise("supervisor:watch:place")
def test_the_end_of_a_run_is_one_line_whatever_ended_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_watch, "SETTLE_SECONDS", 0.0)
    folders = {name: tmp_path / name for name in ("done", "stopped", "killed", HOSTILE.replace("\n", " "))}
    for name, folder in folders.items():
        folder.mkdir()
        anyio.run(partial(begin, folder / JOURNAL_FILE, finished=2 if name in ("done", "killed") else 0))
    with lock_output(folders["killed"]):
        left = (folders["killed"] / ".lock").read_text(encoding="utf-8")
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    (folders["killed"] / ".lock").write_text(
        left.replace(str(os.getpid()), gone.stdout.decode().strip()), encoding="utf-8"
    )
    before = {name: digests(folder) for name, folder in folders.items()}
    shown = "1,234 tokens, failures: tool re]0;ownd run 2"
    assert watch(folders["done"], capsys) == (0, [f"done: done: 2 of 2 seeds done, {shown}"])
    resume = "run its command again to resume"
    assert watch(folders["stopped"], capsys) == (
        3,
        [f"stopped: was stopped: 0 of 2 seeds done, {shown}; {resume}"],
    )
    assert watch(folders["killed"], capsys) == (
        1,
        [f"killed: was killed or has crashed: 2 of 2 seeds done, {shown}; {resume}"],
    )
    status, lines = watch(tmp_path, capsys)
    assert (status, len(lines)) == (1, 4)
    assert not any(map(CONTROLS.search, lines))
    assert {name: digests(folder) for name, folder in folders.items()} == before


@pytest.mark.promise("supervisor:watch:place")
def test_runs_of_a_database_and_trainings_are_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], postgres: PostgresServer
) -> None:
    url = postgres.new_database()
    anyio.run(partial(begin, url, finished=2))
    assert watch(url, capsys) == (
        0,
        ["run: done: 2 of 2 seeds done, 1,234 tokens, failures: tool re]0;ownd run 2"],
    )
    folder = write_run(tmp_path / "training")
    (folder / "settings.yaml").write_text("schedule: {steps: 3}", encoding="utf-8")
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "episodes/failed_time": 2, "usage/calls": 2, "usage/prompt_tokens": 70, "usage/cost": 0.5}\n',
        encoding="utf-8",
    )
    status, lines = watch(folder, capsys, "--json")
    record = json.loads(lines[-1])
    assert (status, record["kind"], record["done"], record["total"]) == (3, "training", 1, 3)
    assert (record["failures"], record["killed"]) == ({"time": 2}, False)
    assert (record["used"], record["cost"]) == (70, 0.5)


@pytest.mark.promise("supervisor:watch:place")
def test_a_place_without_a_run_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "watch", str(tmp_path / "none")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
    assert main(["ctl", "watch", str(tmp_path), "--url", "http://127.0.0.1:9/mcp"]) == 2
    assert "--url" in capsys.readouterr().err
    assert main(["ctl", "watch", str(tmp_path), "--patience", "-1"]) == 2
    assert "--patience" in capsys.readouterr().err
