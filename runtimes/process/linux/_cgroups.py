"""Limits on a whole sandbox by cgroups, version 1 or 2, where this user may make them.

Only groups that this module made are ever touched. The descriptors that it hands out keep the rights of whoever
opened them, so that a less privileged process can use them.
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_PREFIX = "agentflow-"
_V1 = {"memory": "memory", "pids": "pids", "cpu": "cpu"}


class Group(NamedTuple):
    """The descriptors of one sandbox's group, each -1 where the machine has none of that kind."""

    members: list[int]
    """`cgroup.procs` of every hierarchy: writing a pid moves that process in."""
    oom: int
    """A file with a line `oom_kill N`."""
    memory: int
    """Memory in use, bytes."""
    pids_events: int
    """A file with a line `max N`: how often the process limit was hit."""
    folder: int
    """The group's folder."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The folders in which groups can be made on this machine; empty where none can."""

    version: int
    """1 or 2; 0 where there is none."""
    folders: dict[str, str]
    """Controller -> folder of this server's own group."""


def _own_path(controller: str) -> str | None:
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            if (controller == "" and names == "") or controller in names.split(","):
                return path
    return None


def _v2_root() -> str | None:
    return "/sys/fs/cgroup" if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else None


def _make_v1(name: str, *, idle: bool) -> dict[str, str]:
    folders: dict[str, str] = {}
    for controller, mount in _V1.items():
        root = f"/sys/fs/cgroup/{mount}"
        own = _own_path(controller)
        if own is None or not os.path.exists(f"{root}/cgroup.procs"):
            continue
        folder = f"{root}{own.rstrip('/')}/{name}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        folders[controller] = folder
    if idle and "cpu" in folders:
        _make_idle(folders["cpu"])
    return folders


def _make_idle(folder: str) -> None:
    """Let everybody else go first, at once: a waking process outside never waits for the slice of one inside.

    A group holds what the kernel's own grouping by session would undo. A kernel before 5.15 has weights only.
    """
    for name, value in (("cpu.idle", "1"), ("cpu.shares", "2"), ("cpu.weight", "1")):
        with contextlib.suppress(OSError):
            _write(f"{folder}/{name}", value)
            return


def _make_v2(name: str, root: str, *, idle: bool) -> dict[str, str]:
    own = _own_path("")
    if own is None:
        return {}
    parent = root + own.rstrip("/")
    folder = f"{parent}/{name}"
    try:
        _write(f"{parent}/cgroup.subtree_control", "+memory +pids")
    except OSError:
        parent = root if os.access(f"{root}/cgroup.subtree_control", os.W_OK) else os.path.dirname(parent)
        folder = f"{parent}/{name}"
    try:
        os.mkdir(folder)
        _write(f"{folder}/cgroup.subtree_control", "+memory +pids")
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        return {}
    with contextlib.suppress(OSError):
        _write(f"{parent}/cgroup.subtree_control", "+cpu")
        _write(f"{folder}/cgroup.subtree_control", "+cpu")
        if idle:
            _make_idle(folder)
    return {"": folder}


def prepare(realm: str, server: str, *, idle: bool) -> Hierarchies:
    """Make this server's own groups, in which those of its sandboxes will lie; idle ones let everybody else go first."""
    name = f"{_PREFIX}{realm}-{server}"
    root = _v2_root()
    if root is not None:
        folders = _make_v2(name, root, idle=idle)
        return Hierarchies(2 if folders else 0, folders)
    folders = _make_v1(name, idle=idle)
    if "memory" not in folders:
        for folder in folders.values():
            os.rmdir(folder)
        return Hierarchies(0, {})
    return Hierarchies(1, folders)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _open(path: str, flags: int = os.O_RDONLY) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def make(hierarchies: Hierarchies, name: str, memory: int | None, processes: int | None) -> Group:
    """A group for one sandbox, with its limits set."""
    members: list[int] = []
    oom = usage = events = place = -1
    for controller, parent in hierarchies.folders.items():
        folder = f"{parent}/{name}"
        os.mkdir(folder)
        if controller in ("memory", "") and memory is not None:
            _limit_memory(folder, memory, hierarchies.version)
        if controller in ("pids", "") and processes is not None:
            _write(f"{folder}/pids.max", str(processes))
        members.append(_open(f"{folder}/cgroup.procs", os.O_WRONLY))
        if controller in ("memory", ""):
            place = _open(folder, os.O_RDONLY | os.O_DIRECTORY)
        if controller == "memory":
            oom, usage = _open(f"{folder}/memory.oom_control"), _open(f"{folder}/memory.usage_in_bytes")
        elif controller == "":
            oom, usage = _open(f"{folder}/memory.events"), _open(f"{folder}/memory.current")
        if controller in ("pids", ""):
            events = _open(f"{folder}/pids.events")
    return Group(members, oom, usage, events, place)


def _limit_memory(folder: str, memory: int, version: int) -> None:
    if version == 1:
        _write(f"{folder}/memory.limit_in_bytes", str(memory))
        with contextlib.suppress(OSError):
            _write(f"{folder}/memory.memsw.limit_in_bytes", str(memory))
        return
    _write(f"{folder}/memory.max", str(memory))
    with contextlib.suppress(OSError):
        _write(f"{folder}/memory.swap.max", "0")


def remove(hierarchies: Hierarchies, name: str) -> bool:
    """Remove one sandbox's group; `False` while something still runs in it."""
    done = True
    for parent in hierarchies.folders.values():
        try:
            os.rmdir(f"{parent}/{name}")
        except FileNotFoundError:
            continue
        except OSError:
            done = False
    return done


def remove_all(hierarchies: Hierarchies) -> None:
    """Remove this server's groups, those of its sandboxes first. Waits a little for dying processes."""
    for folder in hierarchies.folders.values():
        _remove_folder(folder, tries=200)


def _remove_folder(folder: str, tries: int) -> None:
    for _ in range(tries):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        with contextlib.suppress(OSError):
                            os.rmdir(entry.path)
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def sweep(realm: str, lives: Callable[[str], bool]) -> None:
    """Remove the groups of a realm's servers that are gone; each is found first, and then its server's life asked for."""
    prefix = f"{_PREFIX}{realm}-"
    root = _v2_root()
    own = _own_path("") if root else None
    parents = [root, f"{root}{own}"] if root else []
    for controller, mount in _V1.items():
        path = _own_path(controller)
        if not root and path is not None:
            parents.append(f"/sys/fs/cgroup/{mount}{path.rstrip('/')}")
    for parent in parents:
        if not os.path.isdir(parent):
            continue
        for name in os.listdir(parent):
            if name.startswith(prefix) and not lives(name.removeprefix(prefix)):
                _remove_folder(f"{parent}/{name}", tries=1)


def open_own(hierarchies: Hierarchies) -> int:
    """`cgroup.procs` of the group that this process is in, to write to; -1 where groups can't be made."""
    controller = "memory" if hierarchies.version == 1 else ""
    path = _own_path(controller) if hierarchies.version else None
    if path is None:
        return -1
    try:
        return os.open(
            f"/sys/fs/cgroup/{controller}{path.rstrip('/')}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC
        )
    except OSError:
        return -1


def attach(group: Group, pid: int = 0) -> None:
    """Move a process (0: the caller) into a group."""
    for fd in group.members:
        os.write(fd, str(pid).encode())


def processes(group: Group) -> list[int] | None:
    """The pids in a group, or `None` where there are no groups."""
    if group.folder < 0:
        return None
    # Opened anew each time: an open file of version 1 keeps its list for a while.
    fd = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=group.folder)
    try:
        return [int(line) for line in _read(fd).split()]
    finally:
        os.close(fd)


def counter(fd: int, name: str) -> int:
    """A counter in one of the group's files."""
    if fd < 0:
        return 0
    for line in _read(fd).splitlines():
        key, _, value = line.partition(b" ")
        if key == name.encode():
            return int(value)
    return 0


def number(fd: int) -> int:
    """A file that holds one number."""
    return int(_read(fd)) if fd >= 0 else 0


def _read(fd: int) -> bytes:
    pieces: list[bytes] = []
    position = 0
    while piece := os.pread(fd, 65536, position):
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)
