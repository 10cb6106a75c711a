"""Processes as `/proc` reports them: users, start times, parents."""

import os
import time
from collections.abc import Callable, Container
from functools import partial
from typing import Final, NamedTuple

_PF_EXITING = 0x4


class ProcessInfo(NamedTuple):
    """One process."""

    pid: int
    """Pid in the reader's pid namespace."""
    name: str
    """Name of its program."""
    parent: int
    """Pid of its parent; 0 if the parent is outside the namespace."""
    state: str
    """State letter; `Z` is a zombie."""
    started: int
    """Start time in clock ticks since boot."""
    cpu_ticks: int
    """User and system time including reaped children, in clock ticks."""
    threads: int
    """Number of threads."""
    flags: int
    """Flags of the kernel."""


def read_process(pid: int) -> ProcessInfo | None:
    """Read `/proc/<pid>/stat`; return `None` if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessInfo(
        pid,
        text[text.index(b"(") + 1 : text.rindex(b")")].decode("utf-8", "replace"),
        int(fields[1]),
        fields[0].decode(),
        int(fields[19]),
        sum(map(int, fields[11:15])),
        int(fields[17]),
        int(fields[6]),
    )


def is_ending(pid: int) -> bool:
    """Return whether a process is dead, dying or gone. A killed init process dies only after all others of its namespace."""
    info = read_process(pid)
    return info is None or bool(info.flags & _PF_EXITING)


def pids_in_namespace(namespace: int, uids: Container[int]) -> list[int]:
    """Return the pids of all processes of some users in one pid namespace."""
    wanted = os.fstat(namespace).st_ino
    pids: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}/ns/pid").st_ino == wanted and real_uid(int(name)) in uids:
                    pids.append(int(name))
            except OSError:
                continue
    return pids


def real_uid(pid: int) -> int:
    """Return the real user id of a process.

    :raises OSError: if the process is gone.
    """
    return int(status_fields(pid)["Uid"].split()[0])


def memory_of(pids: list[int]) -> int:
    """Return the total resident memory of processes in bytes; shared pages count for each."""
    pages = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                pages += int(file.read().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def status_fields(pid: int) -> dict[str, str]:
    """Return the fields of `/proc/<pid>/status`."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


uptime: Final[Callable[[], float]] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Returns the seconds since boot."""


def ticks(seconds: float) -> int:
    """Convert seconds since boot to clock ticks, the unit of `started`."""
    return int(seconds * os.sysconf("SC_CLK_TCK"))


def lineage(processes: dict[int, ProcessInfo], pid: int) -> list[int]:
    """Return a process and its ancestors, nearest first, up to the first that is not in `processes`."""
    chain: list[int] = []
    while pid in processes and pid not in chain:
        chain.append(pid)
        pid = processes[pid].parent
    return [*chain, pid]
