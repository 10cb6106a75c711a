"""Lock of an output directory, and paths that are refused as one."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentflow.cli import main
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.runs import check_output, lock_output
from tests.agentflow.cli._programs import environment

LOCK = ".lock"


def commands(folder: Path) -> dict[str, list[str]]:
    """Return a command of each kind of run, without a model."""
    tasks = folder / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "t", "question": "Who?", "answer": "Ada"}) + "\n", encoding="utf-8")
    return {
        "synth": ["synth", "max_depth=2", "number_of_seed=1", "control=false"],
        "rollout": ["rollout", f"--data={tasks}"],
        "train": ["train", f"tasks.data_path={tasks}", "policy.model=nowhere", "tasks.metric=exact_match"],
    }


@pytest.mark.promise("supervisor:lock")
@pytest.mark.parametrize("kind", ["synth", "rollout", "train"])
def test_a_second_start_of_an_active_run_is_refused_and_changes_nothing(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "control.json").write_text("{}", encoding="utf-8")
    with lock_output(out):
        assert main([*commands(tmp_path)[kind], f"output_dir={out}"]) == 2
        assert {path.name for path in out.iterdir()} == {"control.json", LOCK}
    said = capsys.readouterr()
    line = f"agentflow: output_dir: a run is active in {out} (pid {os.getpid()} on "
    [refusal] = [each for each in said.err.splitlines() if each.startswith("agentflow: ")]
    assert refusal.startswith(line)
    assert {path.name for path in out.iterdir()} == {"control.json"}


@pytest.mark.promise("supervisor:lock")
def test_a_killed_run_leaves_no_lock_even_if_a_process_that_it_forked_lives_on(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from agentflow.runs import lock_output
with lock_output(Path(sys.argv[1])):
    # The process that was forked speaks: it has given up the lock by then.
    if not os.fork():
        print(os.getpid(), flush=True)
    signal.pause()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        with pytest.raises(ConfigurationError, match=f"pid {holder.pid} on "), lock_output(tmp_path):
            pass
        holder.kill()
        holder.wait()
        assert (tmp_path / LOCK).exists()
        with lock_output(tmp_path):
            os.kill(child, 0)
        os.kill(child, signal.SIGKILL)
    assert not (tmp_path / LOCK).exists()


@pytest.mark.promise("supervisor:lock")
def test_of_many_starts_in_the_same_instant_one_wins(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    inside: list[int] = []
    most: list[int] = []

    def enter(number: int) -> None:
        for _ in range(50):
            start.wait()
            try:
                with lock_output(tmp_path):
                    inside.append(number)
                    most.append(len(inside))
                    inside.remove(number)
            except ConfigurationError:
                pass

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert not (tmp_path / LOCK).exists()


@pytest.mark.promise("supervisor:lock")
@pytest.mark.parametrize(
    ("number", "error", "match"),
    [
        (errno.EROFS, ConfigurationError, "can't be written: Read-only file system; name another"),
        (errno.EACCES, ConfigurationError, "can't be written: Permission denied; name another"),
        (errno.ENOSPC, RunStopped, "no room is left; make room, then run the same command again"),
    ],
)
def test_a_lock_that_can_not_be_made_is_one_line(
    number: int, error: type[Exception], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("agentflow.runs._directory.os.open", refuse)
    with pytest.raises(error, match=match) as refused, lock_output(tmp_path):
        pass
    assert "\n" not in str(refused.value)
    assert not isinstance(refused.value, RunStopped) or refused.value.cause is StopCause.JOURNAL


@pytest.mark.promise("supervisor:lock")
def test_a_full_disk_keeps_the_process_id_out_of_the_lock_but_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("agentflow.runs._directory.os.pwrite", full)
    refused = pytest.raises(ConfigurationError, match=f"a run is active in {tmp_path}; ")
    with lock_output(tmp_path), refused, lock_output(tmp_path):
        pass


@pytest.mark.promise("supervisor:lock")
def test_a_file_system_without_locks_is_used_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(held: int, operation: int) -> None:
        del held, operation
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with lock_output(tmp_path), lock_output(tmp_path):
        pass


PACKAGE = Path(__file__).parents[3] / "agentflow"
MEANT_OTHERWISE = {
    "/": "shared with other files",
    "/../": "shared with other files",
    "/tmp": "shared with other files",
    str(Path.home()): "shared with other files",
    "/etc/results": "a directory of the system",
    "/proc/self": "a directory of the system",
    "/dev/null": "not a directory",
    "/usr/bin/results": "a directory of the system",
    str(PACKAGE): "inside the package",
    "~/results": "~ is not expanded in settings; write ",
    "~nobody-at-all/results": "~ is not expanded in settings; write ",
    "a\nb": "no name of a directory",
    "a\0b": "no name of a directory",
    "a\ud800b": "no name of a directory",
}


@pytest.mark.promise("supervisor:output")
@pytest.mark.parametrize("path", MEANT_OTHERWISE)
def test_an_output_directory_that_can_not_be_meant_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^output_dir: ") as refused:
        check_output(Path(path))
    assert MEANT_OTHERWISE[path] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("supervisor:output")
def test_links_to_such_directories_are_refused_and_files_are(tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    for name, why in {"root": "shared", "file": "not a directory"}.items():
        with pytest.raises(ConfigurationError, match=why):
            check_output(tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"^output_dir: "):
        check_output(tmp_path / "loop")
    for fine in ("new/results", "."):
        check_output(tmp_path / fine)
    check_output(Path("/dev/shm/results"))


@pytest.mark.promise("supervisor:output")
@pytest.mark.parametrize("kind", ["synth", "rollout", "train"])
def test_every_kind_of_run_refuses_the_root_directory(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*commands(tmp_path)[kind], "output_dir=/"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("agentflow: ")]
    assert lines == [
        "agentflow: output_dir: / is shared with other files; name a directory for this run, such as ./results"
    ]
