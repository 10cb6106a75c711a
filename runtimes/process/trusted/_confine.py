"""Turn a trusted process irrevocably into an untrusted one inside a sandbox.

The order matters: namespaces and limits first, while the process has the capabilities to set them; then identity;
then Landlock and seccomp, which also bind everything executed afterwards. Nothing untrusted runs before the last step.
"""

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtimes.process.linux import _landlock, _quotas, _seccomp
from runtimes.process.linux import _syscalls as sc

FORK_CAPABILITIES = 1 << sc.CAP_SETUID | 1 << sc.CAP_SETGID | 1 << sc.CAP_SYS_CHROOT | 1 << sc.CAP_SYS_ADMIN
"""Capabilities that a live interpreter keeps, permitted but never effective, so that its fork can move to a new sandbox.

They count only in the runtime's user namespace, and raising them needs the seccomp broker's permission.
"""

NAMESPACE_KINDS = (sc.CLONE_NEWNS, sc.CLONE_NEWNET, sc.CLONE_NEWIPC, sc.CLONE_NEWUTS)
"""Kinds of a sandbox's namespace descriptors, in order."""
NAMESPACE_NAMES = ("mnt", "net", "ipc", "uts")
"""Their names in `/proc/<pid>/ns`."""

ROOT_MOUNT = "/r"
"""Mount point of the sandbox's root in its mount namespace."""

LIBRARY_SETTINGS = {
    "MPLBACKEND": "Agg",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}
"""Environment with which libraries start no threads, so that an interpreter can fork."""

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
"""Size of a sandbox's block of ids: the sandbox user, users created inside, and as the last one root inside."""

_FIRST_MADE = 1000
_ROOT_INSIDE = (0, 1, 3, 4, 5, 6, 7, 31)
"""Capabilities of root inside, over its own block of ids only: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setfcap."""


# Checked once: even a caught exception would cost every session private memory.
_GROUPED_BY_SESSION = os.path.exists("/proc/self/autogroup")


@dataclass(frozen=True, slots=True)
class Identity:
    """User of a sandboxed process."""

    uid: int
    """User and group id in the runtime's user namespace."""
    own_user_namespace: bool
    """Create a separate user namespace for it, because the runtime has no range of ids."""


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Seccomp filters and Landlock ruleset of every sandboxed process; built once."""

    filter: bytes
    """Seccomp filter of processes that can't be forked live."""
    notify_filter: bytes
    """Seccomp filter of processes that can: it notifies the broker of calls that change identity."""
    ruleset: int | None
    """Descriptor of the Landlock ruleset; `None` if the kernel has no Landlock."""


def join(namespaces: Sequence[int]) -> None:
    """Join mount, net, ipc and uts namespaces."""
    for fd, kind in zip(namespaces, NAMESPACE_KINDS, strict=True):
        sc.setns(fd, kind)


def open_namespaces() -> list[int]:
    """Open the mount, net, ipc and uts namespaces of this process."""
    return [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACE_NAMES]


def begin_session(*, idle: bool) -> None:
    """Start a new POSIX session; with `idle`, lower the priority of its autogroup.

    Where the kernel groups processes by session (autogroup), idle priority counts only inside the group and each
    group gets an equal share, so the group's nice value must be raised; that is impossible inside a sandbox.
    """
    os.setsid()
    if idle and _GROUPED_BY_SESSION:
        group = os.open("/proc/self/autogroup", os.O_WRONLY)
        with contextlib.suppress(OSError):
            os.write(group, b"19")
        os.close(group)


def enter(namespaces: Sequence[int], identity: Identity) -> None:
    """Join a sandbox's namespaces and change to its root."""
    join(namespaces)
    if identity.own_user_namespace:
        # Before the chroot: the kernel refuses to create a user namespace in a changed root.
        _enter_own_user_namespace()
    enter_root()


def enter_root() -> None:
    """Change to the sandbox's root. It lies below the namespace's root, where a Landlock rule can be anchored."""
    os.chroot(ROOT_MOUNT)
    os.chdir("/")


def id_map(uid: int) -> str:
    """Return the id map of a command that runs as another user than the sandbox user."""
    return f"0 {uid + IDS - 1} 1\n{_FIRST_MADE} {uid + 1} {IDS - 2}\n{uid} {uid} 1\n"


def own_next_namespace(uid: int) -> None:
    """Let a user, whom no process outside of it has, own the user namespace that this process creates next.

    The kernel counts what is used inside for the owner too, so it must be one of the sandbox and not root of the runtime.
    """
    os.setresuid(-1, uid, -1)
    # The id map is written from outside. The real user is still root: only root can open this process.
    sc.prctl(sc.PR_SET_DUMPABLE, 1)


def become_user(uid: int, gid: int) -> None:
    """Become a user of a user namespace that maps one block of ids; root keeps its capabilities over that block."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    kept = 0 if uid else sum(1 << capability for capability in _ROOT_INSIDE)
    for capability in range(sc.CAP_LAST + 1):
        if not kept & 1 << capability:
            sc.drop_bounding(capability)
    os.setresuid(uid, uid, uid)
    sc.prctl(sc.PR_SET_DUMPABLE, 0)
    sc.capset(effective=kept, permitted=kept)


def set_limits(limits: Mapping[str, int | None]) -> None:
    """Set resource limits by name (`NPROC`, `FSIZE`, …), hard and soft."""
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        wanted = hard if value is None else value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _quotas.limit_process()


def drop_privileges(identity: Identity, *, keep_for_fork: bool = False) -> None:
    """Drop the runtime's identity and all capabilities (except the permitted four, with `keep_for_fork`).

    Other processes of the new user can't open this one's memory until it executes a program or calls `open_to_user`:
    they could rewrite it while it has no filter yet and still holds descriptors of trusted processes.
    """
    sc.drop_bounding_set()
    sc.prctl(sc.PR_SET_DUMPABLE, 0)
    if identity.own_user_namespace:
        sc.capset(effective=0, permitted=0)
        return
    uid = identity.uid
    try:
        sc.prctl(sc.PR_CAP_AMBIENT, sc.PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        # gVisor's kernel has no ambient capabilities to clear.
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
    # The kernel's setting for a changed user may be another one.
    sc.prctl(sc.PR_SET_DUMPABLE, 0)


def open_to_user() -> None:
    """Make this process an ordinary one of its user; the last step, after the filter and after closing descriptors."""
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
        with open(f"{ROOT_MOUNT}/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def restrict(restrictions: Restrictions, *, notify: bool = False) -> int | None:
    """Apply Landlock and seccomp to this process and its descendants; return the notify descriptor if `notify`."""
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    if restrictions.ruleset is not None:
        _landlock.apply(restrictions.ruleset)
    if notify:
        return _seccomp.install(restrictions.notify_filter, listener=True)
    _seccomp.install(restrictions.filter)
    return None


def reset_process_state(*, idle: bool, python: bool = False) -> None:
    """Reset signals, priority and file mask to those of an ordinary process.

    An interpreter keeps ignoring SIGPIPE and SIGXFSZ, so that it gets errors instead.
    """
    for number in _INHERITED_SIGNALS:
        if not (python and number in _IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if idle:
        # gVisor's kernel has no scheduling policies.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.umask(0o022)


def set_standard_streams(stdin: int | None, stdout: int, stderr: int) -> None:
    """Replace the standard streams; without `stdin`, by `/dev/null`."""
    if stdin is None:
        stdin = os.open("/dev/null", os.O_RDONLY)
    high = [os.dup(fd) if fd < 3 else fd for fd in (stdin, stdout, stderr)]
    for target, fd in enumerate(high):
        os.dup2(fd, target)


def close_from(first: int, keep: Sequence[int] = ()) -> None:
    """Close every descriptor from `first` up except those in `keep`."""
    start = first
    for fd in sorted(set(keep)):
        if fd >= start:
            os.closerange(start, fd)
            start = fd + 1
    os.closerange(start, 1 << 20)
