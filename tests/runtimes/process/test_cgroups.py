"""Sandboxes get cgroups in a delegated cgroup, and the server's processes make room for them."""

import errno
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtimes.process.linux import _cgroups


class CgroupFiles:
    """Files that behave like cgroups of version 2, with one delegated to this user."""

    def __init__(self, root: Path, pids: list[int]) -> None:
        self.root = root
        self.server_folder = root / "slice" / "delegated"
        self.server_folder.mkdir(parents=True)
        self._members = {self.server_folder: [str(pid) for pid in pids]}
        self._show()

    def write(self, path: str, text: str) -> None:
        """Write to a file as the kernel does."""
        folder, name = Path(path).parent, Path(path).name
        if not folder.is_relative_to(self.server_folder):
            raise PermissionError(errno.EACCES, path)
        if name == "cgroup.procs":
            for members in self._members.values():
                members[:] = [pid for pid in members if pid != text]
            self._members.setdefault(folder, []).append(text)
            self._show()
        elif self.members(folder):
            raise OSError(errno.EBUSY, path)

    def members(self, folder: Path) -> list[str]:
        return self._members.get(folder, [])

    def _show(self) -> None:
        for folder, members in self._members.items():
            (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in members), encoding="utf-8")


@contextmanager
def stranger() -> Generator[int]:
    """Run a process that is neither an ancestor nor a descendant of the server."""
    script = "sleep 1000 > /dev/null 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout)
    try:
        yield pid
    finally:
        os.kill(pid, 9)


@pytest.mark.promise("containment:fair")
def test_a_server_alone_in_a_delegated_cgroup_moves_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = [os.getppid(), os.getpid()]
    files = CgroupFiles(tmp_path, pids)
    monkeypatch.setattr(_cgroups, "_write", files.write)
    assert _cgroups.parent_for_servers(str(files.server_folder), str(tmp_path)) == str(files.server_folder)
    assert files.members(files.server_folder / "agentflow.server") == [str(pid) for pid in pids]
    # The next server starts in the inner one and uses the same.
    assert _cgroups.parent_for_servers(str(files.server_folder), str(tmp_path)) == str(files.server_folder)


@pytest.mark.promise("containment:fair")
def test_processes_of_other_programs_are_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stranger() as pid:
        files = CgroupFiles(tmp_path, [os.getpid(), pid])
        monkeypatch.setattr(_cgroups, "_write", files.write)
        assert _cgroups.parent_for_servers(str(files.server_folder), str(tmp_path)) is None
        assert files.members(files.server_folder) == [str(os.getpid()), str(pid)]
