"""Limits on whole sandboxes by cgroups, version 1 or 2, where this user may create them.

Only cgroups created here are ever touched, and of a delegated cgroup the setting that makes it distribute resources. The descriptors returned keep the rights of the process that opened them, so
that a less privileged process can use them.
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from runtimes.process.linux import _processes

_PREFIX = "agentflow-"
# Where the last two are one hierarchy, the last one is left out.
_V1 = {"memory": "memory", "pids": "pids", "cpu": "cpu", "cpuacct": "cpuacct"}
_LIMITS = "+memory +pids"
_SERVER = "agentflow.server"
_ROUNDS = 3
_USUAL_SHARES = 1024
_USUAL_WEIGHT = 100
_MAX_SHARES = 262_144
_MAX_WEIGHT = 10_000


class Cgroup(NamedTuple):
    """Descriptors of one sandbox's cgroup; -1 for files that this machine lacks."""

    members: list[int]
    """`cgroup.procs` of each hierarchy; writing a pid moves that process in."""
    oom: int
    """File with a line `oom_kill N`."""
    memory: int
    """File with the memory in use, in bytes."""
    pids_events: int
    """File with a line `max N`, which counts hits of the process limit."""
    folder: int
    """Folder of the cgroup."""
    cpu: int = -1
    """File with the CPU time of all processes so far, also of those that have ended."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Folders in which this server can create cgroups; empty if it can't."""

    version: int
    """1 or 2; 0 without cgroups."""
    folders: dict[str, str]
    """Folder of this server's own cgroup, by controller."""

    @property
    def share_cpu(self) -> bool:
        """All sandboxes together have one share of the CPU."""
        files = ("cpu.shares", "cpu.weight")
        return any(os.path.exists(f"{folder}/{name}") for folder in self.folders.values() for name in files)


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
        path = _own_path(controller)
        if path is None or not os.path.exists(f"{root}/cgroup.procs"):
            continue
        folder = f"{root}{path.rstrip('/')}/{name}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        folders[controller] = folder
    if "cpu" in folders:
        _set_priority(folders["cpu"], idle=idle)
    return folders


def _set_priority(folder: str, *, idle: bool) -> None:
    """Give a cgroup idle priority, or on every CPU the weight of one ordinary process."""
    if idle:
        _make_idle(folder)
        return
    # The kernel divides a group's weight by the number of CPUs that it uses.
    cpus = os.cpu_count() or 1
    shares = min(cpus * _USUAL_SHARES, _MAX_SHARES)
    weight = min(cpus * _USUAL_WEIGHT, _MAX_WEIGHT)
    for name, value in (("cpu.shares", shares), ("cpu.weight", weight)):
        if os.path.exists(f"{folder}/{name}"):
            with contextlib.suppress(OSError):
                _write(f"{folder}/{name}", str(value))


def _make_idle(folder: str) -> None:
    """Give a cgroup idle priority, so that a waking process outside never waits for a time slice of one inside.

    Priorities of single processes would be undone by autogroups. Kernels before 5.15 have only weights.
    """
    for name, value in (("cpu.idle", "1"), ("cpu.shares", "2"), ("cpu.weight", "1")):
        with contextlib.suppress(OSError):
            _write(f"{folder}/{name}", value)
            return


def _own_folder(root: str) -> str | None:
    """Return the folder of this process's own cgroup of version 2, or of the delegated one around it."""
    path = _own_path("")
    if path is None:
        return None
    folder = root + path.rstrip("/")
    return os.path.dirname(folder) if os.path.basename(folder) == _SERVER else folder


def parent_for_servers(server_folder: str, root: str) -> str | None:
    """Return a cgroup of version 2 in which this user may create others with limits, or `None`.

    A cgroup that distributes resources must not contain processes. So in a delegated one, which is this server's alone,
    the server moves into a cgroup of its own.
    """
    for folder in dict.fromkeys((server_folder, root, os.path.dirname(server_folder))):
        if _distributes(folder):
            return folder
    return server_folder if _move_processes(server_folder) and _distributes(server_folder) else None


def _distributes(folder: str) -> bool:
    try:
        _write(f"{folder}/cgroup.subtree_control", _LIMITS)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _move_processes(folder: str) -> bool:
    """Move the processes of a cgroup into one below it, if each is an ancestor or a descendant of the server."""
    inner = f"{folder}/{_SERVER}"
    try:
        if not _only_this_server(_members(folder)):
            return False
        with contextlib.suppress(FileExistsError):
            os.mkdir(inner)
        # Some may be starting others meanwhile.
        for _ in range(_ROUNDS):
            for pid in _members(folder):
                with contextlib.suppress(ProcessLookupError):
                    _write(f"{inner}/cgroup.procs", str(pid))
        return not _members(folder)
    except OSError:
        return False


def _members(folder: str) -> list[int]:
    with open(f"{folder}/cgroup.procs", encoding="utf-8") as file:
        return [int(line) for line in file]


def _only_this_server(pids: list[int]) -> bool:
    server = os.getppid()
    ancestors = _ancestors(server)
    return all(pid in ancestors or server in _ancestors(pid) for pid in pids)


def _ancestors(pid: int) -> list[int]:
    """Return a process and its ancestors."""
    pids: list[int] = []
    while pid and (info := _processes.read_process(pid)) is not None:
        pids.append(pid)
        pid = info.parent
    return pids


def _make_v2(name: str, root: str, *, idle: bool) -> dict[str, str]:
    own_folder = _own_folder(root)
    parent = parent_for_servers(own_folder, root) if own_folder is not None else None
    if parent is None:
        return {}
    folder = f"{parent}/{name}"
    try:
        os.mkdir(folder)
        _write(f"{folder}/cgroup.subtree_control", _LIMITS)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        return {}
    with contextlib.suppress(OSError):
        _write(f"{parent}/cgroup.subtree_control", "+cpu")
        _write(f"{folder}/cgroup.subtree_control", "+cpu")
        _set_priority(folder, idle=idle)
    return {"": folder}


def prepare(realm: str, server: str, *, idle: bool) -> Hierarchies:
    """Create this server's own cgroups, the parents of its sandboxes' cgroups.

    All sandboxes together get the weight of one ordinary process on every CPU, or with `idle`, idle priority.
    """
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


def make(hierarchies: Hierarchies, name: str, memory: int | None, processes: int | None) -> Cgroup:
    """Create a cgroup for one sandbox and set its limits."""
    members: list[int] = []
    oom = usage = events = directory = cpu = -1
    for controller, parent in hierarchies.folders.items():
        folder = f"{parent}/{name}"
        os.mkdir(folder)
        if controller in ("memory", "") and memory is not None:
            _limit_memory(folder, memory, hierarchies.version)
        if controller in ("pids", "") and processes is not None:
            _write(f"{folder}/pids.max", str(processes))
        members.append(_open(f"{folder}/cgroup.procs", os.O_WRONLY))
        if controller in ("memory", ""):
            directory = _open(folder, os.O_RDONLY | os.O_DIRECTORY)
        if controller == "memory":
            oom, usage = _open(f"{folder}/memory.oom_control"), _open(f"{folder}/memory.usage_in_bytes")
        elif controller == "":
            oom, usage = _open(f"{folder}/memory.events"), _open(f"{folder}/memory.current")
        if controller in ("pids", ""):
            events = _open(f"{folder}/pids.events")
        if cpu < 0 and controller in ("cpu", "cpuacct", ""):
            cpu = _open(f"{folder}/{'cpu.stat' if controller == '' else 'cpuacct.usage'}")
    return Cgroup(members, oom, usage, events, directory, cpu)


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
    """Remove one sandbox's cgroup; return `False` while processes are still in it."""
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
    """Remove this server's cgroups, its sandboxes' first; wait up to two seconds for dying processes."""
    for folder in hierarchies.folders.values():
        _remove_folder(folder, tries=200)


def _remove_folder(folder: str, tries: int) -> None:
    """Remove a cgroup and those directly in it; try again every 10 ms while processes are dying."""
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
    """Remove the cgroups of dead servers of a realm; each cgroup is found before its server is checked."""
    prefix = f"{_PREFIX}{realm}-"
    root = _v2_root()
    parents = [root, _own_folder(root) or root] if root else []
    for controller, mount in _V1.items():
        path = _own_path(controller)
        if not root and path is not None:
            parents.append(f"/sys/fs/cgroup/{mount}{path.rstrip('/')}")
    remove_dead(parents, prefix, lives, tries=1)


def remove_dead(parents: list[str], prefix: str, lives: Callable[[str], bool], *, tries: int) -> None:
    """Remove the cgroups that are named after a prefix and a server that is not alive; there may be no such parent."""
    for parent in filter(os.path.isdir, parents):
        for name in os.listdir(parent):
            if name.startswith(prefix) and not lives(name.removeprefix(prefix)):
                _remove_folder(f"{parent}/{name}", tries)


def open_own(hierarchies: Hierarchies) -> int:
    """Open `cgroup.procs` of this process's own cgroup for writing; return -1 without cgroups."""
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


def attach(group: Cgroup, pid: int = 0) -> None:
    """Move a process (0: the caller) into a cgroup."""
    for fd in group.members:
        os.write(fd, str(pid).encode())


def processes(group: Cgroup) -> list[int] | None:
    """Return the pids in a cgroup, or `None` without cgroups."""
    if group.folder < 0:
        return None
    # Reopened each time: an open file of version 1 caches its list for a while.
    fd = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=group.folder)
    try:
        return [int(line) for line in _read(fd).split()]
    finally:
        os.close(fd)


def counter(fd: int, name: str) -> int:
    """Return a counter from one of the cgroup's files; 0 without the file."""
    if fd < 0:
        return 0
    for line in _read(fd).splitlines():
        key, _, value = line.partition(b" ")
        if key == name.encode():
            return int(value)
    return 0


def cpu_seconds(fd: int) -> float | None:
    """Return the CPU time in one of the cgroup's files; `None` without the file."""
    if fd < 0:
        return None
    text = _read(fd)
    # Version 1 has a plain number of nanoseconds.
    return int(text) / 1e9 if text.strip().isdigit() else counter(fd, "usage_usec") / 1e6


def number(fd: int) -> int:
    """Return the number in a file; 0 without the file."""
    return int(_read(fd)) if fd >= 0 else 0


def _read(fd: int) -> bytes:
    pieces: list[bytes] = []
    position = 0
    while piece := os.pread(fd, 65536, position):
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)
