"""Which host ids the runtime's user namespace maps: a range where there is one, else the caller alone."""

import fcntl
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass

SIZE = 65536
_ROOT_FIRST = 0x70000000
_ROOT_SLOTS = 2048


@dataclass(frozen=True, slots=True)
class IdMap:
    """A plan for mapping ids."""

    first: int
    """First host id of the range; -1 where there is none."""
    helpers: bool
    """`newuidmap` and `newgidmap` write the maps (for an ordinary user)."""
    note: str
    """What is missing for a range, and how to get it."""

    @property
    def single_user(self) -> bool:
        """There is one id only."""
        return self.first < 0


def _claim_slot(folder: str) -> int:
    """A range that no other server of root's is using; held by a file lock for this process's life."""
    os.makedirs(folder, 0o700, exist_ok=True)
    for slot in range(_ROOT_SLOTS):
        fd = os.open(f"{folder}/ids-{slot}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            continue
        os.set_inheritable(fd, False)
        return _ROOT_FIRST + slot * SIZE
    raise OSError("every range of user ids is taken by another server")


def _subordinate_range(path: str, user: str, uid: int) -> int:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, first, size = line.strip().split(":")
                if name in (user, str(uid)) and int(size) >= SIZE - 1:
                    return int(first)
    except (OSError, ValueError):
        pass
    return -1


def plan(lock_folder: str) -> IdMap:
    """The best map that this user may have."""
    uid = os.geteuid()
    if uid == 0:
        return IdMap(_claim_slot(lock_folder), False, "")
    how = "install the package uidmap and give the user a line in /etc/subuid and /etc/subgid"
    if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
        return IdMap(
            -1, False, f"one user id only, so no forks of live sessions: newuidmap is missing; {how}"
        )
    user = pwd.getpwuid(uid).pw_name
    first = _subordinate_range("/etc/subuid", user, uid)
    if first < 0 or _subordinate_range("/etc/subgid", user, uid) < 0:
        return IdMap(-1, False, f"one user id only, so no forks of live sessions: no range for {user}; {how}")
    return IdMap(first, True, "")


def write(idmap: IdMap, pid: int) -> None:
    """Write the maps of a process that has just made a user namespace.

    :raises OSError: if the kernel or a helper refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    if idmap.single_user:
        _write(pid, "setgroups", "deny")
        _write(pid, "uid_map", f"0 {uid} 1")
        _write(pid, "gid_map", f"0 {gid} 1")
    elif idmap.helpers:
        user = pwd.getpwuid(uid).pw_name
        for tool, own, first in (
            ("newuidmap", uid, idmap.first),
            ("newgidmap", gid, _subordinate_range("/etc/subgid", user, uid)),
        ):
            _run([tool, str(pid), "0", str(own), "1", "1", str(first), str(SIZE - 1)])
    else:
        _write(pid, "uid_map", f"0 {idmap.first} {SIZE}")
        _write(pid, "gid_map", f"0 {idmap.first} {SIZE}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


def _write(pid: int, name: str, text: str) -> None:
    with open(f"/proc/{pid}/{name}", "w", encoding="utf-8") as file:
        file.write(text)
