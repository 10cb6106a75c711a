"""Owners of seeds: identity and liveness of processes."""

import os
import socket
from functools import cache
from pathlib import Path


def this_process() -> str:
    """Return this process's name as an owner; no earlier or later process has the same name.

    See docs/journal.md for an example.
    """
    pid = os.getpid()
    return f"{_place()}:{pid}:{_started(pid)}"


def has_died(owner: str) -> bool:
    """Return whether an owner was a process of this machine and has ended. Owners elsewhere count as alive."""
    place, _, rest = owner.partition(":")
    pid, _, started = rest.partition(":")
    if place != _place() or not pid.isdecimal():
        return False
    return _started(int(pid)) != started


@cache
def _place() -> str:
    """Return the scope in which process ids are unique: this boot of this machine, this pid namespace."""
    parts = [socket.gethostname().replace(":", "-")]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    except OSError:
        # Outside Linux the host name is the best scope available.
        pass
    return "/".join(parts)


def _started(pid: int) -> str:
    """Return the start time of a process; empty if there is none or it is a zombie."""
    try:
        # The program's name may contain anything; it ends at the last parenthesis.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return "" if fields[0] in "ZX" else fields[19]
    except OSError:
        return "" if Path("/proc/self").exists() or not _answers(pid) else "alive"


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
