"""Launches on this machine while databases, workers, tool servers, clocks and disks fail."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import psutil
import pytest

from agentflow.serving._server import kept_port
from tests._postgres import PostgresServer, postgres_server
from tests.agentflow.cli._programs import run_here, running, until_it_says
from tests.agentflow.launch._launched import (
    ROUNDS,
    Disturbances,
    Shared,
    ended,
    files,
    launched,
    let_pass,
    one_machine,
    pid_of,
    suspended,
    words,
)
from tests.system._flaky import FLAKY
from tests.system._supervised import endpoint, settings, wait_for

BEFORE = 4
"""Calls answered before two workers hold seeds."""
HOUR = 3600
NO_ROOM = "no room is left"


@pytest.fixture
def shared_folder() -> Generator[Path]:
    """Folder that the user of the database can enter."""
    with TemporaryDirectory(prefix="agentflow-chaos-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class FakeClock:
    """Clock of programs, which can be set while they run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
        self._environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
        }

    @contextmanager
    def used(self) -> Generator[None]:
        """Give it to the programs that are started meanwhile."""
        with patch.dict(os.environ, self._environment):
            yield

    def set(self, seconds: int) -> None:
        """Set it to so many seconds after the real time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n", encoding="ascii")
        new.chmod(0o644)
        # Replaced as a whole: a program that reads half a file would see another time.
        new.rename(self._file)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Generator[Path]:
    """Mount a small disk."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> None:
    """Fill a disk."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


@pytest.mark.promise("launch:database")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_database_is_waited_for_and_no_call_is_made_again(rounds: int, tmp_path: Path) -> None:
    seeds = 6 if rounds < 6 else 12
    whole, alone = one_machine("synth", seeds)
    last = BEFORE
    with postgres_server() as server, endpoint(hold_after=BEFORE) as at:
        shared = Shared(server.new_database())
        with launched(tmp_path, shared.url, words("synth", tmp_path, at, seeds)) as process:
            for number in range(rounds):
                shared.wait_for_holders(process, 2)
                at.wait_for(calls=last + 2)
                if number % 2:
                    server.stop("immediate")
                else:
                    server.kill()
                # Answers arrive while there is no database.
                at.release()
                last = at.hold(1)
                server.start()
            at.release()
            ended(process)
        counted = at.stats()
        assert shared.takeovers() == 0
    assert files(tmp_path / "out") == whole
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)


@pytest.mark.promise("launch:suspended")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_suspended_worker_leaves_what_others_took_over_and_takes_part_again(
    rounds: int, postgres: PostgresServer, tmp_path: Path
) -> None:
    seeds = 3 * rounds
    shared = Shared(postgres.new_database())
    whole, alone = one_machine("synth", seeds)
    disturbances = Disturbances(shared, tmp_path / "log")
    with endpoint(hold_after=BEFORE, log=tmp_path / "log") as at:
        with launched(tmp_path, shared.url, words("synth", tmp_path, at, seeds)) as process:
            for _ in range(rounds):
                (victim, *_) = shared.wait_for_holders(process, 2, at)
                with suspended([psutil.Process(pid_of(victim))]):
                    disturbances.add()
                    shared.end_lease(victim)
                    # Enough for the other one to finish its tree.
                    let_pass(at, 2 * alone["calls"] // seeds)
                    wait_for(lambda victim=victim: victim not in shared.holders())
                    at.hold()
            at.release()
            ended(process)
        counted = at.stats()
    assert shared.takeovers() == rounds
    assert files(tmp_path / "out") == whole
    assert counted["distinct_bodies"] == alone["distinct_bodies"]
    again, allowed = disturbances.repeated()
    assert again <= allowed


@pytest.mark.promise("launch:clock")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_clock_of_the_workers_that_jumps_changes_nothing(
    rounds: int, postgres: PostgresServer, tmp_path: Path
) -> None:
    seeds = 6 if rounds < 6 else 12
    shared = Shared(postgres.new_database())
    whole, alone = one_machine("synth", seeds)
    clock, last = FakeClock(tmp_path), BEFORE
    with endpoint(hold_after=BEFORE) as at:
        with ExitStack() as stack:
            with clock.used():
                command = words("synth", tmp_path, at, seeds)
                process = stack.enter_context(launched(tmp_path, shared.url, command))
            for number in range(rounds):
                shared.wait_for_holders(process, 2)
                at.wait_for(calls=last + 2)
                clock.set((HOUR, -HOUR, 0)[number % 3])
                at.release()
                last = at.hold(1)
            at.release()
            ended(process)
        counted = at.stats()
    assert shared.takeovers() == 0
    assert files(tmp_path / "out") == whole
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)


@pytest.mark.promise("launch:clock")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_clock_of_the_database_that_jumps_loses_nothing(
    rounds: int, shared_folder: Path, tmp_path: Path
) -> None:
    seeds = 2 * rounds
    whole, alone = one_machine("synth", seeds)
    clock, last = FakeClock(shared_folder), BEFORE
    with ExitStack() as stack:
        with clock.used():
            server = stack.enter_context(postgres_server())
        at = stack.enter_context(endpoint(hold_after=BEFORE, log=tmp_path / "log"))
        shared = Shared(server.new_database())
        disturbances = Disturbances(shared, tmp_path / "log")
        with launched(tmp_path, shared.url, words("synth", tmp_path, at, seeds)) as process:
            for number in range(rounds):
                shared.wait_for_holders(process, 2)
                at.wait_for(calls=last + 2)
                disturbances.add()
                clock.set((HOUR, -HOUR, 0)[number % 3])
                at.release()
                last = at.hold(1)
            at.release()
            ended(process)
        counted = at.stats()
    assert files(tmp_path / "out") == whole
    assert counted["distinct_bodies"] == alone["distinct_bodies"]
    again, allowed = disturbances.repeated()
    assert again <= allowed


@pytest.mark.promise("launch:disk")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_full_disk_of_the_database_ends_a_launch_with_one_line_and_the_same_command_resumes(
    rounds: int, shared_folder: Path, tmp_path: Path
) -> None:
    seeds = 6 if rounds < 6 else 12
    whole, alone = one_machine("synth", seeds)
    with (
        small_disk(shared_folder, 64) as disk,
        postgres_server() as server,
        endpoint(hold_after=BEFORE, log=tmp_path / "log") as at,
    ):
        (disk / "tables").mkdir()
        shared = Shared(server.new_database(disk / "tables"))
        disturbances = Disturbances(shared, tmp_path / "log")
        command = words("synth", tmp_path, at, seeds)
        for _ in range(rounds):
            with launched(tmp_path, shared.url, command) as process:
                shared.wait_for_holders(process, 2)
                fill(disk)
                at.release()
                said = ended(process, 3)
            lines = [line for line in said.splitlines() if line.startswith("agentflow: ")]
            assert len(lines) == 1
            assert NO_ROOM in lines[0]
            assert "run the same command again" in lines[0]
            assert "Traceback" not in said
            disturbances.add()
            (disk / "ballast").unlink()
            at.hold(BEFORE)
        at.release()
        with launched(tmp_path, shared.url, command) as process:
            ended(process)
        counted = at.stats()
    assert files(tmp_path / "out") == whole
    assert counted["distinct_bodies"] == alone["distinct_bodies"]
    again, allowed = disturbances.repeated()
    assert again <= allowed


@pytest.mark.promise("launch:disk")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_full_disk_of_the_workers_ends_a_launch_with_one_line_and_the_same_command_resumes(
    rounds: int, postgres: PostgresServer, tmp_path: Path
) -> None:
    whole, alone = one_machine("synth")
    for number in range(rounds):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        shared = Shared(postgres.new_database())
        with small_disk(folder, 4) as disk, endpoint(hold_after=BEFORE) as at:
            command = words("synth", folder, at)
            with (
                patch.dict(os.environ, {"TMPDIR": str(disk)}),
                launched(folder, shared.url, command) as process,
            ):
                # No run can end before its calls are released.
                wait_for(lambda disk=disk: len([*disk.glob("*/files/settings.yaml")]) == 2)
                fill(disk)
                at.release()
                said = ended(process, 3)
            reason = "can't be written: No space left on device; fix it and run the same command again"
            assert said.splitlines()[-1].endswith(reason)
            assert "Traceback" not in said
            (disk / "ballast").unlink()
            with launched(folder, shared.url, command) as process:
                ended(process)
            counted = at.stats()
        assert files(folder / "out") == whole
        assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)


@contextmanager
def tool_server(folder: Path, port: int) -> Generator[psutil.Process]:
    """Serve the tools of a launch while a block runs."""
    arguments = ("--http", f"127.0.0.1:{port}", "--log-level", "info")
    with running("mcp_servers", FLAKY, *arguments, cwd=folder, python=sys.executable) as process:
        until_it_says(process, "/mcp")
        yield psutil.Process(process.pid)


@pytest.mark.promise("launch:tools")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_tool_server_is_waited_for_and_no_failure_is_recorded(
    rounds: int, postgres: PostgresServer, tmp_path: Path
) -> None:
    seeds = 6 if rounds < 6 else 12
    shared, last = Shared(postgres.new_database()), BEFORE
    with kept_port("127.0.0.1") as port, ExitStack() as stack, ExitStack() as servers:
        servers.enter_context(tool_server(tmp_path, port))
        address = f"http://127.0.0.1:{port}"
        named = settings(tmp_path, seeds=seeds, resource_init_configs={}, sandbox_server_url=address)
        command = ["synth", *named, "max_open_trees=1"]
        # The address of the server is a part of the ids of trees.
        with endpoint() as calm:
            done = run_here(*command, *calm.words, "output_dir=alone", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            alone = calm.stats()
        at = stack.enter_context(endpoint(hold_after=BEFORE))
        with launched(tmp_path, shared.url, [*command, *at.words]) as process:
            for _ in range(rounds):
                shared.wait_for_holders(process, 2)
                at.wait_for(calls=last + 2)
                servers.close()
                # The next calls of tools find no server.
                at.release()
                last = at.hold(1)
                servers.enter_context(tool_server(tmp_path, port))
            at.release()
            ended(process)
        counted = at.stats()
    assert files(tmp_path / "out") == files(tmp_path / "alone")
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)
