"""The one-way door: a trusted process becomes an untrusted one inside a sandbox.

The order matters. Namespaces and limits first, while there is power to set them; then identity; then the locks
that bind whoever runs afterwards. Nothing untrusted runs before the last step.
"""

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtimes.process.linux import _landlock, _seccomp
from runtimes.process.linux import _syscalls as sc

FORK_CAPABILITIES = 1 << sc.CAP_SETUID | 1 << sc.CAP_SETGID | 1 << sc.CAP_SYS_CHROOT | 1 << sc.CAP_SYS_ADMIN
"""What a live interpreter keeps, permitted but never effective, so that its fork can move to a sandbox of its own.

They count only in the runtime's user namespace; raising them is a gated call.
"""

NAMESPACE_KINDS = (sc.CLONE_NEWNS, sc.CLONE_NEWNET, sc.CLONE_NEWIPC, sc.CLONE_NEWUTS)
"""The kinds of a sandbox's namespace descriptors, in their order."""

ROOM = "/r"
"""Where the room's root is mounted in its namespace."""

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_INHERITED_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGCHLD,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGXFSZ,
)


IDS = 16
"""Ids in a sandbox's block: its inhabitant's, those of users made inside, and last the one that root inside has."""

_FIRST_MADE = 1000
_ROOT_INSIDE = (0, 1, 3, 4, 5, 6, 7, 31)
"""Capabilities of root inside, over its own block only: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setfcap."""


# Asked once: even an exception that is caught costs every session memory of its own.
_GROUPED_BY_SESSION = os.path.exists("/proc/self/autogroup")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a sandboxed process is."""

    uid: int
    """Its user and group id in the runtime's user namespace."""
    own_user_namespace: bool
    """It gets a user namespace of its own: where the runtime has no range of ids to give it one."""


@dataclass(frozen=True, slots=True)
class Locks:
    """What binds every sandboxed process; made once, before the first."""

    filter: bytes
    """The system-call filter of processes that can't be forked live."""
    gated_filter: bytes
    """The filter of those that can."""
    ruleset: int | None
    """The Landlock ruleset's descriptor."""


def join(namespaces: Sequence[int]) -> None:
    """Join mount, net, ipc and uts namespaces."""
    for fd, kind in zip(namespaces, NAMESPACE_KINDS, strict=True):
        sc.setns(fd, kind)


def begin_session(*, idle: bool) -> None:
    """Begin a session of its own, which (if it is idle) gets the processor only when nobody else wants it.

    Where the kernel groups processes by session (autogroup), idle priority counts inside the group only and each
    group gets an equal share, so the group's own priority must be lowered; inside a room that can't be done.
    """
    os.setsid()
    if idle and _GROUPED_BY_SESSION:
        group = os.open("/proc/self/autogroup", os.O_WRONLY)
        with contextlib.suppress(OSError):
            os.write(group, b"19")
        os.close(group)


def enter(namespaces: Sequence[int], identity: Identity) -> None:
    """Join a room's namespaces and make its root the root."""
    join(namespaces)
    if identity.own_user_namespace:
        # Before the root changes: the kernel makes none for a process in a changed root.
        _enter_own_user_namespace()
    enter_root()


def enter_root() -> None:
    """Make the room's root the root. It lies below the namespace's, where a Landlock rule can be anchored."""
    os.chroot(ROOM)
    os.chdir("/")


def id_map(uid: int) -> str:
    """How a block of ids looks from inside when a command runs there as another user than the inhabitant."""
    return f"0 {uid + IDS - 1} 1\n{_FIRST_MADE} {uid + 1} {IDS - 2}\n{uid} {uid} 1\n"


def become_user(uid: int, gid: int) -> None:
    """Become a user of a user namespace that maps one block only; root keeps power over that block."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    kept = 0 if uid else sum(1 << capability for capability in _ROOT_INSIDE)
    for capability in range(sc.CAP_LAST + 1):
        if not kept & 1 << capability:
            sc.drop_bounding(capability)
    os.setresuid(uid, uid, uid)
    sc.capset(effective=kept, permitted=kept)
    sc.prctl(sc.PR_SET_DUMPABLE, 1)


def set_limits(limits: Mapping[str, int | None]) -> None:
    """Set resource limits by name (`NPROC`, `FSIZE`, …), hard and soft."""
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        wanted = hard if value is None else value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become(identity: Identity, *, keep_for_fork: bool = False) -> None:
    """Give up the runtime's identity and all its power (but the permitted four, with `keep_for_fork`)."""
    sc.drop_bounding_set()
    if identity.own_user_namespace:
        sc.capset(effective=0, permitted=0)
        return
    uid = identity.uid
    try:
        sc.prctl(sc.PR_CAP_AMBIENT, sc.PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        # A kernel such as gVisor's, which knows no ambient capabilities, has none to clear.
        if error.errno != errno.EINVAL:
            raise
    if keep_for_fork:
        sc.prctl(sc.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if keep_for_fork:
        sc.capset(effective=0, permitted=FORK_CAPABILITIES)
        sc.prctl(sc.PR_SET_KEEPCAPS, 0)
    else:
        sc.capset(effective=0, permitted=0)
    sc.prctl(sc.PR_SET_DUMPABLE, 1)


def _enter_own_user_namespace() -> None:
    uid = 1000
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    sc.unshare(sc.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {outer_uid} 1"),
        ("gid_map", f"{uid} {outer_gid} 1"),
    ):
        with open(f"{ROOM}/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def lock(locks: Locks, *, gated: bool = False) -> int | None:
    """Bind this process and all that it starts; returns the supervisor's descriptor if `gated`."""
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    if locks.ruleset is not None:
        _landlock.apply(locks.ruleset)
    if gated:
        return _seccomp.install(locks.gated_filter, listener=True)
    _seccomp.install(locks.filter)
    return None


def settle(*, idle: bool, python: bool = False) -> None:
    """Make an ordinary process of it: default signals, its priority, a clean file mask.

    An interpreter goes on ignoring what interpreters ignore, to get errors instead.
    """
    for number in _INHERITED_SIGNALS:
        if not (python and number in _IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if idle:
        # gVisor's kernel has no priorities.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.umask(0o022)


def take_standard_streams(stdin: int | None, stdout: int, stderr: int) -> None:
    """Put descriptors in the places of the standard streams; no stdin means an empty one."""
    if stdin is None:
        stdin = os.open("/dev/null", os.O_RDONLY)
    high = [os.dup(fd) if fd < 3 else fd for fd in (stdin, stdout, stderr)]
    for target, fd in enumerate(high):
        os.dup2(fd, target)


def close_from(first: int, keep: Sequence[int] = ()) -> None:
    """Close every descriptor from `first` up, but those to keep."""
    start = first
    for fd in sorted(set(keep)):
        if fd >= start:
            os.closerange(start, fd)
            start = fd + 1
    os.closerange(start, 1 << 20)
