"""A process child is a real process and leaves nothing behind. In real time."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest
from anyio.abc import Process as Subprocess

from agentflow.actors import ChildSpec, Process, ProcessEnded, Restart, StartFailed, Supervisor
from agentflow.actors._children import KEEPER
from agentflow.testing import EventRecorder

TREE = "setsid sh -c 'echo ready; sleep 600' & (sleep 600 & echo ready; sleep 600) & sleep 600"
"""A command with a child, a grandchild, and one that has left its group and session."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def spec(process: Process, restart: Restart = Restart.TEMPORARY, *, shutdown: float = 60.0) -> ChildSpec:
    return ChildSpec(id="process", start=lambda: process, restart=restart, shutdown=shutdown)


def family(pid: int) -> list[psutil.Process]:
    """Return a command's keeper and all its descendants."""
    keeper = psutil.Process(pid).parent()
    assert keeper is not None
    return [keeper, *keeper.children(recursive=True)]


class Word:
    """Pipe for the output of a command, so that tests wait for output instead of time."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()

    async def comes(self) -> bytes:
        """Return the next output of the command."""
        await anyio.wait_readable(self._reading)
        return os.read(self._reading, 4096)

    async def lines(self, count: int) -> list[bytes]:
        """Return the next lines of the command's output."""
        said = b""
        while said.count(b"\n") < count:
            said += await self.comes()
        return said.splitlines()

    async def ends(self) -> None:
        """Wait until every writer of the output has ended."""
        self._close_writing()
        while await self.comes():
            pass

    def close(self) -> None:
        os.close(self._reading)
        self._close_writing()

    def _close_writing(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1


@pytest.fixture
def word() -> Iterator[Word]:
    pipe = Word()
    yield pipe
    pipe.close()


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive


@pytest.mark.promise("actors:process:runs")
async def test_a_process_with_status_zero_ends_normally() -> None:
    events = EventRecorder()
    process = Process(["true"])
    with anyio.fail_after(60):
        async with Supervisor([spec(process)], observer=events):
            assert process.pid > 0
            await events.until_ended("process")
    assert events.ended() == [("process", "normal")]


@pytest.mark.promise("actors:process:input")
async def test_a_process_reads_its_given_input() -> None:
    word = Word()
    given, giving = os.pipe()
    try:
        process = Process(["cat"], stdin=given, stdout=word.writing)
        with anyio.fail_after(60):
            async with Supervisor([spec(process)]):
                os.write(giving, b"line\n")
                assert await word.lines(1) == [b"line"]
    finally:
        word.close()
        os.close(given)
        os.close(giving)


@pytest.mark.promise("actors:process:crash")
@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -KILL $$", -9), ("kill -TERM $$", -15)])
async def test_a_nonzero_status_is_a_crash_with_that_status(script: str, status: int) -> None:
    events = EventRecorder()
    with anyio.fail_after(60):
        async with Supervisor([spec(Process(["sh", "-c", script]))], observer=events):
            await events.until_ended("process")
    error = events.reason("process").error
    assert isinstance(error, ProcessEnded)
    assert error.status == status


@pytest.mark.promise("actors:process:restart")
async def test_a_killed_process_is_restarted() -> None:
    events = EventRecorder()
    child = ChildSpec(id="process", start=lambda: Process(["sleep", "600"]))
    with anyio.fail_after(60):
        async with Supervisor([child], observer=events) as supervisor:
            first = supervisor.child("process", Process).pid
            os.kill(first, signal.SIGKILL)
            await events.until_started("process", 2)
            assert supervisor.child("process", Process).pid != first


@pytest.mark.promise("actors:process:unknown-program")
async def test_a_missing_program_is_a_failed_start() -> None:
    with anyio.fail_after(60), pytest.raises(StartFailed, match="no-such-program can't be run: No such file"):
        async with Supervisor([spec(Process(["no-such-program"]))]):
            pytest.fail("it must not start")


@pytest.mark.promise("actors:process:stop")
async def test_a_process_is_asked_to_end_by_a_signal(word: Word) -> None:
    script = "trap 'echo asked; exit 1' TERM; echo ready; while :; do sleep 0.01; done"
    events = EventRecorder()
    process = Process(["sh", "-c", script], stdout=word.writing)
    with anyio.fail_after(60):
        async with Supervisor([spec(process)], observer=events):
            assert await word.comes() == b"ready\n"
        assert await word.comes() == b"asked\n"
    assert events.ended() == [("process", "shutdown")]


@pytest.mark.promise("actors:process:killed")
async def test_a_process_that_does_not_end_is_killed_with_everything_it_started(word: Word) -> None:
    script = "trap '' TERM INT HUP; " + TREE
    events = EventRecorder()
    with anyio.fail_after(60):
        process = Process(["sh", "-c", script], stdout=word.writing)
        async with Supervisor([spec(process, shutdown=0.2)], observer=events):
            await word.lines(2)
            processes = family(process.pid)
            assert len(processes) >= 5
    assert_gone(processes)
    assert events.ended() == [("process", "killed")]


@pytest.mark.promise("actors:process:nothing-left")
async def test_orphans_of_a_process_are_killed_when_it_ends(tmp_path: Path, word: Word) -> None:
    go = tmp_path / "go"
    script = TREE.replace("& sleep 600", f"& until [ -e {go} ]; do sleep 0.01; done")
    events = EventRecorder()
    with anyio.fail_after(60):
        process = Process(["sh", "-c", script], stdout=word.writing)
        async with Supervisor([spec(process)], observer=events):
            await word.lines(2)
            processes = family(process.pid)
            assert len(processes) >= 5
            go.touch()
            await events.until_ended("process")
            assert_gone(processes)
    assert events.ended() == [("process", "normal")]


@pytest.mark.promise("actors:process:group")
async def test_a_signal_reaches_the_whole_group(word: Word) -> None:
    inner = "trap 'echo inner' USR1; echo ready; while :; do sleep 0.01; done"
    process = Process(["sh", "-c", f'trap : USR1; sh -c "{inner}" & wait; wait'], stdout=word.writing)
    with anyio.fail_after(60):
        async with Supervisor([spec(process)]):
            assert await word.comes() == b"ready\n"
            process.send_signal(signal.SIGUSR1)
            assert await word.comes() == b"inner\n"
    process.send_signal(signal.SIGUSR1)


@pytest.mark.promise("actors:process:ready")
async def test_a_process_is_ready_once_its_probe_returns_and_ending_before_is_a_failed_start(
    word: Word,
) -> None:
    heard: list[bytes] = []

    async def probe() -> None:
        heard.append(await word.comes())

    with anyio.fail_after(60):
        started = Process(["sh", "-c", "echo ready; sleep 600"], stdout=word.writing, ready=probe)
        async with Supervisor([spec(started)]):
            assert heard == [b"ready\n"]
        with pytest.raises(StartFailed, match="status 4"):
            async with Supervisor([spec(Process(["sh", "-c", "exit 4"], ready=anyio.sleep_forever))]):
                pytest.fail("it must not start")


OWNER = """
import anyio, os, signal, sys
from agentflow.actors import ChildSpec, Process, Supervisor

async def main():
    process = Process(["sh", "-c", sys.argv[1]])
    async with Supervisor([ChildSpec(id="process", start=lambda: process)]):
        if sys.argv[2] == "forked" and not os.fork():
            signal.pause()
        os.write(1, b"%d\\n" % process.pid)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.promise("actors:process:owner-killed")
@pytest.mark.parametrize("owner_is", ["alone", "forked"])
async def test_no_process_outlives_a_killed_owner(word: Word, owner_is: str) -> None:
    """Even if a fork of the owner lives on and holds the owner's end of the socket."""
    script = "trap '' TERM INT HUP; " + TREE
    with anyio.fail_after(60):
        owner = await anyio.open_process(
            [sys.executable, "-c", OWNER, script, owner_is],
            stdin=subprocess.DEVNULL,
            stdout=word.writing,
            stderr=None,
        )
        async with owner:
            try:
                said = await word.lines(3)
                processes = family(next(int(line) for line in said if line != b"ready"))
                assert len(processes) >= 5
                keepers = {process.pid for process in processes}
                forks = [each for each in psutil.Process(owner.pid).children() if each.pid not in keepers]
            finally:
                owner.kill()
            await owner.wait()
        assert_gone(processes)
        assert len(forks) == (owner_is == "forked")
        for fork in forks:
            fork.kill()


async def keep(word: Word, line: socket.socket, owner: int) -> Subprocess:
    """Start a keeper alone, with a command that only `kill -9` ends."""
    script = "trap '' TERM INT HUP; " + TREE
    return await anyio.open_process(
        [sys.executable, str(KEEPER), str(line.fileno()), str(owner), "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=word.writing,
        stderr=None,
        start_new_session=True,
        pass_fds=[line.fileno()],
    )


@pytest.mark.promise("actors:process:owner-killed")
async def test_no_process_outlives_an_owner_that_died_before_its_keeper_watched_it(word: Word) -> None:
    """Even if a fork of the owner holds its end of the socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs, anyio.fail_after(60):
        async with await keep(word, theirs, owner=os.getppid()) as keeper:
            assert await keeper.wait() == -signal.SIGKILL
        await word.ends()


@pytest.mark.promise("actors:process:owner-killed")
async def test_no_process_outlives_an_owner_that_died_during_the_start(word: Word) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, anyio.fail_after(60):
        async with await keep(word, theirs, owner=os.getpid()) as keeper:
            await word.lines(2)
            await anyio.wait_readable(ours)
            ours.close()
            assert await keeper.wait() == -signal.SIGKILL
        await word.ends()


@pytest.mark.promise("actors:process:keeper-killed")
async def test_a_command_does_not_outlive_its_keeper() -> None:
    events = EventRecorder()
    process = Process(["sleep", "600"])
    with anyio.fail_after(60):
        async with Supervisor([spec(process)], observer=events):
            processes = family(process.pid)
            processes[0].kill()
            await events.until_ended("process")
        assert_gone(processes)
    assert events.ended() == [("process", "crashed")]


@pytest.mark.promise("actors:process:output")
async def test_output_goes_to_the_given_file_and_the_environment_is_the_given_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    events = EventRecorder()
    with anyio.fail_after(60), log.open("wb") as sink:
        process = Process(
            ["sh", "-c", "echo $WORD; pwd >&2"],
            env={"WORD": "hello", "PATH": os.environ["PATH"]},
            cwd=tmp_path,
            stdout=sink,
            stderr=sink,
        )
        async with Supervisor([spec(process)], observer=events):
            await events.until_ended("process")
    assert log.read_text(encoding="utf-8").splitlines() == ["hello", str(tmp_path)]
