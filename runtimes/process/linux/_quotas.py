"""Quotas of the kernel that count all processes of a user, and of the users whose namespaces it made.

Without limits one sandbox could use up those of the user that runs the server, and of every other sandbox.
"""

import contextlib
import os
import resource
from typing import Final

LIMITS: Final = {"SIGPENDING": 1024, "MEMLOCK": 1 << 20, "MSGQUEUE": 200 << 10}
"""Resource limits of every sandboxed process. The kernel counts queued signals and timers, locked shared memory and
message queues per user, and so per sandbox."""

_UNCOUNTED: Final = {
    "kernel/msgmni": "128",
    "net/ipv4/tcp_rmem": "4096 65536 212992",
    "net/ipv4/tcp_wmem": "4096 16384 212992",
}
"""Number of System V message queues, of 16 KiB each; smallest, first and largest buffers of a TCP connection, the largest as
of other sockets."""

_WATCHES: Final = ("instances", "watches")
_PART: Final = 8
_FEWEST: Final = 8


def limit_process() -> None:
    """Set the limits of the calling process."""
    for name, value in LIMITS.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # A limit can always be lowered, except in gVisor's kernel, which does not have all of them.
        with contextlib.suppress(ValueError):
            resource.setrlimit(kind, (wanted, wanted))


def keep_half() -> None:
    """Lower the limits of the caller to half of this user's.

    A user namespace keeps those of its creator: they bound all sandboxes together, so that the other half stays with
    the server's user.
    """
    for name, value in LIMITS.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        soft, hard = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            resource.setrlimit(kind, (min(soft, max(soft // 2, value)), hard))


def limit_uncounted(memory_bytes: int) -> None:
    """Limit the memory that the caller's ipc and network namespaces can take outside of processes, for lack of a cgroup."""
    pages = max(1, memory_bytes // os.sysconf("SC_PAGE_SIZE"))
    for name, value in {"kernel/shmall": str(pages), **_UNCOUNTED}.items():
        # Before Linux 6.9, only root of the host may set those of the ipc namespace.
        with contextlib.suppress(OSError), open(f"/proc/sys/{name}", "w", encoding="utf-8") as file:
            file.write(value)


def limit_watches(proc: str, *, shared: bool) -> bool:
    """Limit the inotify instances and watches of each user of the current user namespace; return whether that worked.

    :param proc: mount point of a writable procfs.
    :param shared: all sandboxes have the same user, so that the limit is one for all of them.
    """
    with contextlib.suppress(OSError, ValueError):
        for name in _WATCHES:
            with open(f"{proc}/sys/fs/inotify/max_user_{name}", encoding="utf-8") as file:
                most = int(file.read())
            value = max(_FEWEST, most // (2 if shared else _PART))
            with open(f"{proc}/sys/user/max_inotify_{name}", "w", encoding="utf-8") as file:
                file.write(str(value))
        return True
    return False
