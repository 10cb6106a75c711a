"""Servers that start at the same time don't remove each other's files."""

import fcntl
import multiprocessing
import os
import stat
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from runtimes.process import ProcessRuntime
from runtimes.process.linux import _cgroups
from runtimes.process.trusted import _server_folder

STARTS = 40


def begin(folder: str) -> bool:
    """Start and end a server; return whether its folder and its groups existed meanwhile."""
    realm, parent = _server_folder.realm(folder), os.path.dirname(folder)
    _server_folder.claim(folder)
    _cgroups.sweep(realm, lambda server: _server_folder.is_held(f"{parent}/{server}"))
    hierarchies = _cgroups.prepare(realm, os.path.basename(folder), idle=False)
    try:
        for number in range(20):
            _cgroups.make(hierarchies, str(number), None, None)
            _cgroups.remove(hierarchies, str(number))
        return os.path.exists(f"{folder}/lock")
    finally:
        _cgroups.remove_all(hierarchies)
        _server_folder.remove(folder)


@pytest.mark.promise("kill:sweep")
def test_servers_that_start_and_stop_concurrently_do_not_remove_each_others_files(tmp_path: Path) -> None:
    with ProcessPoolExecutor(8, multiprocessing.get_context("forkserver")) as pool:
        kept = list(pool.map(begin, [str(tmp_path / f"server{number}") for number in range(STARTS)]))
    assert kept == [True] * STARTS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("kill:sweep")
def test_a_lock_file_gets_its_name_only_after_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    take = fcntl.flock

    def watched(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            seen.append((tmp_path / "mine" / "lock").exists())
            seen.append(_server_folder.is_held(str(tmp_path / "mine")))
        take(fd, operation)

    monkeypatch.setattr(fcntl, "flock", watched)
    _server_folder.claim(str(tmp_path / "mine"))
    assert seen == [False, True]
    assert _server_folder.is_held(str(tmp_path / "mine"))
    _server_folder.remove(str(tmp_path / "mine"))
    assert not _server_folder.is_held(str(tmp_path / "mine"))


@pytest.mark.promise("kill:sweep")
def test_concurrent_checks_of_a_dead_server_both_find_it_dead(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    with (folder / "lock").open("w") as asked_by_another:
        fcntl.flock(asked_by_another, fcntl.LOCK_SH)
        assert not _server_folder.is_held(str(folder))


@pytest.mark.promise("kill:sweep")
def test_a_folder_without_a_lock_is_removed_after_a_minute(tmp_path: Path) -> None:
    folder = tmp_path / "half_made"
    folder.mkdir()
    _server_folder.claim(str(tmp_path / "first"))
    assert folder.exists()
    os.utime(folder, (0, 0))
    _server_folder.claim(str(tmp_path / "second"))
    assert not folder.exists()
    for name in ("first", "second"):
        _server_folder.remove(str(tmp_path / name))


START = """
import anyio
from runtimes.process import ProcessRuntime

async def start() -> None:
    async with ProcessRuntime(preload=()) as runtime:
        instance = await runtime.start()
        print((await instance.exec(["echo", "started"])).stdout.decode().strip())

anyio.run(start)
"""
FOLDER = "from runtimes.process.trusted import _server_folder; print(_server_folder.parent_folder())"


def output(program: str, temporary: Path, runtime_folder: str = "") -> str:
    """Return the output of a program with a directory for temporary files."""
    variables = os.environ | {"TMPDIR": str(temporary), "XDG_RUNTIME_DIR": runtime_folder}
    return subprocess.check_output([sys.executable, "-c", program], env=variables, encoding="utf-8").strip()


def test_servers_start_beside_a_file_that_has_the_name_of_their_folder(tmp_path: Path) -> None:
    foreign = tmp_path / f"agentflow-{os.geteuid()}"
    foreign.touch()
    assert output(START, tmp_path) == "started"
    (folder,) = (path for path in tmp_path.iterdir() if path != foreign)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # The next server shares it, so that it can remove what a killed one left.
    assert output(FOLDER, tmp_path) == str(folder)


@pytest.mark.parametrize("kind", ["link", "open to others", "another user's"])
def test_a_folder_that_others_could_change_is_not_used(kind: str, tmp_path: Path) -> None:
    foreign = tmp_path / f"agentflow-{os.geteuid()}"
    (tmp_path / "target").mkdir(0o700)
    if kind == "link":
        foreign.symlink_to(tmp_path / "target")
        (tmp_path / f"{foreign.name}-link").symlink_to(tmp_path / "target")
    else:
        foreign.mkdir(0o755 if kind == "open to others" else 0o700)
    if kind == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(foreign, 12345, 12345)
        assert output(FOLDER, tmp_path, str(foreign)).startswith(f"{foreign}-")
    folder = Path(output(FOLDER, tmp_path))
    assert folder.name.startswith(f"{foreign.name}-")
    assert not folder.is_symlink()


async def test_sandboxes_work_for_a_user_whose_files_are_private_by_default() -> None:
    before = os.umask(0o077)
    try:
        async with ProcessRuntime(preload=()) as runtime:
            instance = await runtime.start()
            result = await instance.exec(["sh", "-c", "echo fine > file && cat file"])
    finally:
        os.umask(before)
    assert (result.exit_code, result.stdout) == (0, b"fine\n")
