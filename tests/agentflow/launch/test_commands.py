"""`agentflow ctl` commands for runs of several processes, through their journal."""

import json
import re
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentflow.cli import main
from tests._postgres import PostgresServer
from tests.agentflow.cli._programs import finish, run_here, running, until_it_says
from tests.agentflow.launch._launched import (
    COMMANDS,
    Shared,
    ended,
    files,
    kill,
    launched,
    one_machine,
    pid_of,
    words,
)
from tests.system._supervised import endpoint, wait_for

BEFORE = 4
"""Calls answered before two workers hold seeds."""
ADDED = ("Explore the harbour of Orm", "Explore the ferry of Sund", "--name", "more")
PAUSED = ('"command": "pause"', '"in_flight": ')
STOPPED = "stopped: requested by agentflow ctl; run the same command again to resume"


def ctl(action: str, place: str | Path, *arguments: str) -> dict[str, Any]:
    """Return the answer to a command for a journal that has one run."""
    done = run_here("ctl", action, "--json", str(place), *arguments, cwd=Path())
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def refused(*arguments: str) -> str:
    """Return the line with which a command is refused."""
    done = run_here("ctl", *arguments, cwd=Path())
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line.removeprefix("agentflow: ")


def wait_until_logged(pids: Iterable[int], *words: str) -> None:
    """Wait until workers have logged a line with these words, or have ended."""
    for pid in pids:
        with suppress(FileNotFoundError):
            log = Path(f"/proc/{pid}/fd/2")
            wait_for(lambda log=log: re.search(".*".join(words), log.read_text(encoding="utf-8")))


def workers_below(parent: int) -> set[int]:
    """Return the process ids of the run processes of a launch."""
    found = set[int]()
    for child in psutil.Process(parent).children():
        with suppress(psutil.Error):  # it has just ended
            if any(word.startswith("launch_id=") for word in child.cmdline()):
                found.add(child.pid)
    return found


@pytest.mark.promise("launch:commands")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_paused_launch_begins_no_call_and_writes_the_files_of_an_undisturbed_run(
    command: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    whole, alone = one_machine(command)
    with endpoint(hold_after=BEFORE) as at:
        with launched(tmp_path, url, words(command, tmp_path, at)) as process:
            pids = [*map(pid_of, Shared(url).wait_for_holders(process, 2))]
            at.wait_for(calls=BEFORE + 2)
            assert ctl("status", url)["phase"] == "growing"
            paused = ctl("pause", url)
            assert paused["phase"] == "paused"
            assert "its calls in flight still complete" in paused["note"]
            wait_until_logged(pids, *PAUSED)
            at.release()
            wait_until_logged(pids, *PAUSED, "0")
            calls = at.stats()["calls"]
            status = ctl("status", url)
            assert (status["phase"], status["done"]) == ("paused", 0)
            assert at.stats()["calls"] == calls
            assert ctl("resume", url)["phase"] == "growing"
            ended(process)
        counted = at.stats()
    assert files(tmp_path / "out") == whole
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)


@pytest.mark.promise("launch:commands:kills")
def test_a_worker_that_is_restarted_stays_paused(postgres: PostgresServer, tmp_path: Path) -> None:
    shared = Shared(postgres.new_database())
    whole, alone = one_machine("synth")
    with endpoint(hold_after=BEFORE) as at:
        with launched(tmp_path, shared.url, words("synth", tmp_path, at)) as process:
            (victim, other) = shared.wait_for_holders(process, 2)
            old = {pid_of(victim), pid_of(other)}
            at.wait_for(calls=BEFORE + 2)
            ctl("pause", shared.url)
            wait_until_logged(old, *PAUSED)
            at.release()
            wait_until_logged(old, *PAUSED, "0")
            calls = at.stats()["calls"]
            wait_for(lambda: shared.recorded_calls() == calls)
            kill(victim)
            wait_for(lambda: workers_below(process.pid) - old)
            wait_until_logged(workers_below(process.pid) - old, *PAUSED, "0")
            assert at.stats()["calls"] == calls
            ctl("resume", shared.url)
            ended(process)
        counted = at.stats()
    assert files(tmp_path / "out") == whole
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)


@pytest.mark.promise("launch:commands")
@pytest.mark.parametrize(("command", "killed"), [*((one, False) for one in COMMANDS), ("synth", True)])
def test_a_stopped_launch_ends_with_its_reason_and_the_same_command_resumes(
    command: str, killed: bool, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    whole, _ = one_machine(command)
    with endpoint(hold_after=BEFORE) as at:
        run = words(command, tmp_path, at)
        with launched(tmp_path, url, run) as process:
            (victim, other) = Shared(url).wait_for_holders(process, 2)
            if killed:
                # The worker is restarted, and the stop is for its launch.
                kill(victim)
            ctl("stop", url)
            wait_until_logged((pid_of(one) for one in (victim, other)[killed:]), '"command": "stop"')
            at.release()
            said = ended(process, 3)
        assert said.splitlines()[-1].endswith(STOPPED)
        assert said.count("agentflow: ") == 1
        assert set(Shared(url).holders()) <= ({victim} if killed else set())
        assert ctl("status", url)["phase"] == "stopped"
        with launched(tmp_path, url, run) as process:
            ended(process)
    assert files(tmp_path / "out") == whole


@pytest.mark.promise("launch:commands:add")
def test_added_seeds_are_grown_once_and_the_files_are_those_of_one_process(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    for folder in (alone, shared):
        folder.mkdir()
    with endpoint(hold_after=BEFORE) as at:
        run = [*words("synth", alone, at), "output_dir=out", "control=true"]
        with running("agentflow.cli", *run, cwd=alone, python=sys.executable) as process:
            until_it_says(process, "control server")
            assert main(["ctl", "add", "--dir", str(alone / "out"), *ADDED]) == 0
            at.release()
            assert finish(process)[0] == 0
        by_one = at.stats()
    with endpoint(hold_after=BEFORE) as at:
        with launched(shared, url, words("synth", shared, at)) as process:
            Shared(url).wait_for_holders(process, 2)
            added = ctl("add", url, *ADDED)
            assert (added["ids"], added["origin"]) == (["seed_007", "seed_008"], "control/more")
            assert ctl("add", url, *ADDED) == added
            assert "control/more" in refused("add", url, "Explore something else", "--name", "more")
            assert ctl("status", url)["total"] == 8
            at.release()
            ended(process)
        counted = at.stats()
    assert files(shared / "out") == files(alone / "out")
    for number in ("calls", "repeated_bodies"):
        assert counted[number] == by_one[number], (
            "two trees may ask the same from memory; no process asks it again"
        )


@pytest.mark.promise("launch:commands")
def test_processes_started_by_hand_obey_together(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()
    whole, _ = one_machine("synth")
    with endpoint(hold_after=BEFORE) as at:
        run = ["agentflow.cli", *words("synth", tmp_path, at), f"journal={url}"]
        for command in ("stop", ""):
            with ExitStack() as stack:
                processes = [
                    stack.enter_context(
                        running(*run, f"output_dir=out{number}", cwd=tmp_path, python=sys.executable)
                    )
                    for number in range(2)
                ]
                if command:
                    Shared(url).wait_for_holders(processes[0], 2)
                    ctl(command, url)
                    for process in processes:
                        until_it_says(process, f'"command": "{command}"')
                    at.release()
                for process in processes:
                    status, _, err = finish(process)
                    assert status == (3 if command else 0), err
                    assert (STOPPED in err) == bool(command)
    assert files(tmp_path / "out0") == files(tmp_path / "out1") == whole


@pytest.mark.promise("launch:commands")
def test_a_run_with_a_journal_of_its_own_obeys_by_its_folder(tmp_path: Path) -> None:
    whole, _ = one_machine("synth")
    folder = tmp_path / "out"
    with endpoint(hold_after=BEFORE) as at:
        run = ["agentflow.cli", *words("synth", tmp_path, at), "output_dir=out"]
        with running(*run, cwd=tmp_path, python=sys.executable) as process:
            at.wait_for(calls=BEFORE + 1)
            assert ctl("pause", folder)["phase"] == "paused"
            until_it_says(process, '"command": "pause"')
            at.release()
            until_it_says(process, '"in_flight": 0')
            calls = at.stats()["calls"]
            assert ctl("status", folder)["phase"] == "paused"
            assert at.stats()["calls"] == calls
            ctl("resume", f"sqlite:///{folder}/journal.db")
            assert finish(process)[0] == 0
    assert files(folder) == whole
