"""Launches on this machine."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentflow.cli import main
from agentflow.journal import NewSeed, open_journal, open_reader
from agentflow.launch import LaunchedRuns
from agentflow.serving._server import kept_port
from tests._postgres import PostgresServer
from tests.agentflow.cli._programs import run_here
from tests.agentflow.launch._launched import (
    COMMANDS,
    ROUNDS,
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


@pytest.mark.promise("launch:local")
@pytest.mark.parametrize("command", COMMANDS)
def test_two_processes_share_a_run_and_the_files_are_those_of_one(
    command: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    whole, alone = one_machine(command)
    with endpoint(hold_after=BEFORE) as at:
        with launched(tmp_path, url, words(command, tmp_path, at)) as process:
            assert len(Shared(url).wait_for_holders(process, 2)) == 2
            at.release()
            ended(process)
        counted = at.stats()
    assert files(tmp_path / "out") == whole
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)


@pytest.mark.promise("launch:local:kills")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_killed_workers_are_restarted_and_no_recorded_call_is_made_again(
    rounds: int, postgres: PostgresServer, tmp_path: Path
) -> None:
    shared = Shared(postgres.new_database())
    seeds = 6 if rounds < 6 else 12
    whole, alone = one_machine("synth", seeds)
    unrecorded, last = 0, BEFORE
    with endpoint(hold_after=BEFORE) as at:
        with launched(tmp_path, shared.url, words("synth", tmp_path, at, seeds)) as process:
            for _ in range(rounds):
                (victim, *_) = shared.wait_for_holders(process, 2)
                # Two calls are held back: everything before them is answered.
                at.wait_for(calls=last + 2)
                kill(victim)
                wait_for(lambda victim=victim: victim not in shared.holders())
                unrecorded += last - shared.recorded_calls()
                at.release()
                last = at.hold(1)
            at.release()
            ended(process)
        counted = at.stats()
    assert files(tmp_path / "out") == whole
    assert counted["distinct_bodies"] == alone["distinct_bodies"]
    assert counted["repeated_bodies"] - alone["repeated_bodies"] <= unrecorded


@pytest.mark.promise("launch:statuses")
def test_an_interrupt_stops_the_workers_in_order_and_the_same_command_resumes(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    whole, _ = one_machine("synth")
    with endpoint(hold_after=BEFORE) as at:
        command = words("synth", tmp_path, at)
        with launched(tmp_path, url, command) as process:
            Shared(url).wait_for_holders(process, 2)
            # The calls are released only afterwards: otherwise the runs could end before the signal reaches them.
            process.send_signal(signal.SIGINT)
            said = ended(process, 130)
        assert said.splitlines()[-1] == (
            "agentflow: stopped: received SIGINT; run the same command again to resume"
        )
        assert Shared(url).holders() == {}
        at.release()
        with launched(tmp_path, url, command) as process:
            ended(process)
    assert files(tmp_path / "out") == whole


@pytest.mark.promise("launch:statuses")
def test_a_used_up_budget_ends_a_launch_with_its_reason(postgres: PostgresServer, tmp_path: Path) -> None:
    with endpoint() as at:
        command = [*words("synth", tmp_path, at), "max_total_tokens=10"]
        with launched(tmp_path, postgres.new_database(), command) as process:
            said = ended(process, 3)
    assert "the budget of 10 tokens is used up" in said.splitlines()[-1]


@pytest.mark.promise("launch:statuses")
def test_a_worker_that_can_not_begin_ends_a_launch_with_its_reason(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with endpoint() as at:
        command = [*words("synth", tmp_path, at), "available_tools=[no_such_tool]"]
        with launched(tmp_path, postgres.new_database(), command) as process:
            said = ended(process, 2)
    assert "no_such_tool" in said.splitlines()[-1]


@pytest.mark.promise("launch:nothing-left")
def test_a_killed_launch_leaves_no_worker(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()
    with (
        endpoint(hold_after=BEFORE) as at,
        launched(tmp_path, url, words("synth", tmp_path, at)) as process,
    ):
        holders = Shared(url).wait_for_holders(process, 2)
        process.kill()
        wait_for(lambda: not any(Path(f"/proc/{pid_of(owner)}").exists() for owner in holders))


@pytest.mark.promise("launch:nothing-left")
def test_a_launch_removes_the_temporary_folders_of_a_killed_one_and_no_others(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    url = postgres.new_database()
    with endpoint(hold_after=BEFORE) as at:
        command = words("synth", tmp_path, at)
        with launched(tmp_path, url, command) as process:
            Shared(url).wait_for_holders(process, 2)
            process.kill()
            process.communicate()
        abandoned = worker_folders(temporary)
        assert len(abandoned) == 2
        with launched(tmp_path, url, command) as process:
            # The killed workers may still hold the seeds, so holders alone don't tell that the new ones have begun.
            wait_for(lambda: len(worker_folders(temporary) - abandoned) == 2)
            wait_for(lambda: worker_folders(temporary).isdisjoint(abandoned))
            Shared(url).wait_for_holders(process, 2)
            kept = worker_folders(temporary)
            with launched(tmp_path, postgres.new_database(), [*command, "available_tools=[none]"]) as other:
                ended(other, 2)
            assert worker_folders(temporary) == kept
            at.release()
            ended(process)
    assert worker_folders(temporary) == set()


def worker_folders(temporary: Path) -> set[Path]:
    """Return the folders of workers."""
    return set(temporary.glob("agentflow-worker-*"))


@pytest.mark.promise("launch:secrets")
def test_no_worker_has_the_password_of_the_journal_among_its_arguments(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    secret = url.replace("@", ":pass-of-the-journal@")
    with (
        endpoint(hold_after=BEFORE) as at,
        launched(tmp_path, secret, words("synth", tmp_path, at)) as process,
    ):
        Shared(url).wait_for_holders(process, 2)
        shown = [b" ".join(path.read_bytes().split(b"\0")) for path in _command_lines(process.pid)]
    assert len(shown) >= 4
    assert not any(b"pass-of-the-journal" in line for line in shown)


def _command_lines(parent: int) -> Iterator[Path]:
    """Yield the command lines of all processes below one."""
    for child in psutil.Process(parent).children(recursive=True):
        yield Path(f"/proc/{child.pid}/cmdline")


@pytest.mark.promise("launch:refused")
@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            ["--on", "local", "synth"],
            "launch: the workers need a journal that all of them reach; set journal=postgresql://user@host/database",
        ),
        (
            ["--on", "local", "rollout", "journal=sqlite:///journal.db"],
            "launch: the workers need a journal that all of them reach; set journal=postgresql://user@host/database",
        ),
        (["--on", "local"], "launch: name one of synth, rollout, eval, train after the options"),
        (
            ["--on", "local", "train"],
            "launch: a training is one process on one machine of a Ray cluster; name the cluster, without --workers",
        ),
        (
            ["--on", "auto", "--workers", "2", "train"],
            "launch: a training is one process on one machine of a Ray cluster; name the cluster, without --workers",
        ),
        (
            ["--on", "auto", "train", "--backbone=debug"],
            "launch: the backbone debug prints rollouts and trains nothing; run agentflow train",
        ),
        (
            ["--on", "auto", "train", "policy.model=m", "tasks.benchmark_name=bamboogle", "output_dir=run"],
            "launch: the training may run on any machine; set output_dir to an absolute path that all of them see",
        ),
        (
            ["--on", "moon", "synth", "journal=postgresql://h/d"],
            "--on: moon is no place; name local, k8s, auto, HOST:PORT or ray://HOST:PORT",
        ),
        (
            ["--on", "local", "synth", "--resume", "never", "journal=postgresql://h/d"],
            "launch: --resume can't be chosen; the same command resumes a launched run",
        ),
        (
            ["--on", "local", "--label", "a=b", "synth", "journal=postgresql://h/d"],
            "launch: --working-dir and --label are options of Ray clusters",
        ),
        (
            ["--on", "k8s", "--working-dir", ".", "synth"],
            "launch: --working-dir and --label are options of Ray clusters",
        ),
        (
            ["--on", "auto", "--label", "a", "synth", "journal=postgresql://h/d"],
            "--label: 'a' is no label; write KEY=VALUE",
        ),
        (
            ["--on", "auto", "--working-dir", "nowhere", "synth", "journal=postgresql://h/d"],
            "--working-dir: nowhere is no folder",
        ),
    ],
)
def test_a_launch_that_can_not_be_used_is_refused_in_one_line(
    given: list[str], line: str, tmp_path: Path
) -> None:
    done = run_here("launch", *given, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (2, f"agentflow: {line}\n", "")
    assert os.listdir(tmp_path) == []


@pytest.mark.promise("launch:refused")
def test_a_launch_without_the_driver_of_its_journal_is_refused_before_a_worker_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_none(_: str) -> None: ...

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agentflow.cli._launch.find_spec", find_none)
    assert main(["launch", "--on", "local", "synth", "journal=postgresql://h/d"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("agentflow: journal: Postgres needs the extra postgres: ")


@pytest.mark.promise("launch:statuses")
def test_the_last_line_of_a_launch_counts_everything_that_was_finished(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with (
        endpoint() as at,
        launched(tmp_path, postgres.new_database(), words("synth", tmp_path, at)) as process,
    ):
        lines = [json.loads(line) for line in ended(process).splitlines() if line.startswith("{")]
    (last,) = (line for line in lines if line["event"] == "ended" and "done_by_host" in line)
    assert (last["phase"], last["done"], last["total"]) == ("done", 6, 6)


@pytest.mark.promise("launch:database")
async def test_a_journal_that_does_not_answer_is_reported_once_while_the_workers_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def sleep(_: float) -> None:
        nonlocal tries
        tries += 1
        if tries == 9:
            raise TimeoutError

    with kept_port("127.0.0.1") as port:
        monkeypatch.setattr("agentflow.launch._status.anyio.sleep", sleep)
        with pytest.raises(TimeoutError):
            await LaunchedRuns(f"postgresql://user@127.0.0.1:{port}/database", {"run"}).follow()
    (record,) = (record for record in caplog.records if "no progress can be read" in record.getMessage())
    assert "Connect call failed" in record.getMessage()


@pytest.mark.promise("journal:hosts")
async def test_the_host_of_a_seed_is_kept_when_it_is_finished(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    async with open_journal(url) as journal:
        for host, count in (("north", 2), ("south", 1)):
            run = await journal.open_run("run", {}, host=host)
            await run.add_seeds([NewSeed(str(number)) for number in range(3)])
            for seed in await run.claim(host, count):
                if seed.index != 1:
                    await run.finish(seed, b"")
        with open_reader(url) as reader:
            hosts = reader.hosts(1)
    assert {host: (counts.leased, counts.done) for host, counts in hosts.items()} == {
        "north": (1, 1),
        "south": (0, 1),
    }
