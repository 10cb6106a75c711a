"""Who works on a seed, and whether they are still alive."""

import os
import socket
from functools import cache
from pathlib import Path

__all__ = ["has_died", "this_process"]


def this_process() -> str:
    """The name of this process as an owner of seeds: no other process, before or after, has the same."""
    pid = os.getpid()
    return f"{_place()}:{pid}:{_started(pid)}"


def has_died(owner: str) -> bool:
    """Whether that owner was a process of this machine and is no more. Of others nothing is known: not dead."""
    place, _, rest = owner.partition(":")
    pid, _, started = rest.partition(":")
    if place != _place() or not pid.isdecimal():
        return False
    return _started(int(pid)) != started


@cache
def _place() -> str:
    """Where numbers of processes mean the same: this start of this machine, this namespace of processes."""
    parts = [socket.gethostname().replace(":", "-")]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    except OSError:
        # No Linux: the machine's name has to do.
        pass
    return "/".join(parts)


def _started(pid: int) -> str:
    """When that process started; empty if there is none, or it waits for its parent to take note of its end."""
    try:
        # After the name of the program, which can hold anything but ends with the last parenthesis.
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
