"""Linux system calls that the standard library lacks, as plain functions that raise `OSError`.

Constants have the kernel's names.
"""

import ctypes
import errno
import fcntl
import os
import platform
import signal
import struct
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)
_MACHINE: Final = platform.machine()

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
CLONE_NEWTIME: Final = 0x00000080

PR_SET_PDEATHSIG: Final = 1
PR_GET_DUMPABLE: Final = 3
PR_SET_DUMPABLE: Final = 4
PR_SET_KEEPCAPS: Final = 8
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4

CAP_SETGID: Final = 6
CAP_SETUID: Final = 7
CAP_SYS_CHROOT: Final = 18
CAP_SYS_ADMIN: Final = 21
CAP_LAST: Final = 40

MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4
MOUNT_ATTR_NOEXEC: Final = 0x8

AT_FDCWD: Final = -100
AT_EMPTY_PATH: Final = 0x1000
AT_RECURSIVE: Final = 0x8000
OPEN_TREE_CLONE: Final = 1
OPEN_TREE_CLOEXEC: Final = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH: Final = 0x4
FSCONFIG_SET_FLAG: Final = 0
FSCONFIG_SET_STRING: Final = 1
FSCONFIG_CMD_CREATE: Final = 6

MOVE_MOUNT_T_EMPTY_PATH: Final = 0x40
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_IN_ROOT: Final = 0x10

KCMP_VM: Final = 1
KCMP_FILES: Final = 2
KCMP_FS: Final = 3

# The same number on every architecture since Linux 5.
SYS_OPEN_TREE: Final = 428
SYS_MOVE_MOUNT: Final = 429
SYS_FSOPEN: Final = 430
SYS_FSCONFIG: Final = 431
SYS_FSMOUNT: Final = 432
SYS_OPENAT2: Final = 437
SYS_MOUNT_SETATTR: Final = 442
SYS_LANDLOCK_CREATE_RULESET: Final = 444
SYS_LANDLOCK_ADD_RULE: Final = 445
SYS_LANDLOCK_RESTRICT_SELF: Final = 446

_NUMBERS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {"seccomp": 317, "capset": 126, "setns": 308, "pivot_root": 155, "kcmp": 312},
    "aarch64": {"seccomp": 277, "capset": 91, "setns": 268, "pivot_root": 41, "kcmp": 272},
}
SYS: Final = _NUMBERS.get(_MACHINE, _NUMBERS["x86_64"])
"""Numbers of system calls that differ between architectures."""

_CLONE_PARENT: Final = 0x00008000
_CLONE_CHILD_CLEARTID: Final = 0x00200000
_CLONE_CHILD_SETTID: Final = 0x01000000
_PR_GET_TID_ADDRESS: Final = 40

# clone, get_robust_list, set_robust_list; and the position of the thread id's address among clone's arguments.
_CLONE_CALLS: Final = {"x86_64": (56, 274, 273, 2), "aarch64": (220, 100, 99, 3)}

# Holds the GIL, so that the copied state belongs to one instant.
_locked_libc = ctypes.PyDLL(None, use_errno=True)
_interpreter = ctypes.pythonapi


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, number: int, *args: int | bytes | ctypes.c_void_p | None) -> int:
    """Make a raw system call."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _check(_libc.syscall(ctypes.c_long(number), *converted), name)


def unshare(flags: int) -> None:
    """Move the caller into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Join a namespace."""
    _check(_libc.setns(fd, kind), "setns")


def prctl(option: int, argument: int = 0) -> int:
    """Call `prctl(2)`."""
    zeros = [ctypes.c_ulong(0)] * 3
    return _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(argument), *zeros), "prctl")


def capset(*, effective: int, permitted: int, inheritable: int = 0) -> None:
    """Set the calling thread's capability sets (bit masks)."""
    header = struct.pack("=Ii", 0x20080522, 0)
    low = 0xFFFFFFFF
    sets = effective, permitted, inheritable
    data = struct.pack("=6I", *(bits & low for bits in sets), *(bits >> 32 for bits in sets))
    syscall("capset", SYS["capset"], header, data)


def drop_bounding(capability: int) -> None:
    """Remove one capability from the bounding set; no program executed later can gain it."""
    _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3)


def drop_bounding_set() -> None:
    """Empty the capability bounding set."""
    for capability in range(CAP_LAST + 1):
        drop_bounding(capability)


def set_filesystem_uid(uid: int) -> None:
    """Set the user id for checks of file permissions."""
    _libc.setfsuid(ctypes.c_uint(uid))


def set_filesystem_ids(uid: int, gid: int) -> None:
    """Set the ids for checks of file permissions; a uid other than 0 also drops the file capabilities."""
    _libc.setfsgid(ctypes.c_uint(gid))
    set_filesystem_uid(uid)


def mount_private() -> None:
    """Stop mount propagation of the mount namespace in both directions."""
    _check(
        _libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount --make-rprivate /"
    )


def unmount(path: str) -> None:
    """Detach a mount and everything below it; it is freed when its last user closes it."""
    _check(_libc.umount2(os.fsencode(path), MNT_DETACH), f"umount {path}")


def pivot_root(new: str, old: str) -> None:
    """Swap the root mount."""
    syscall("pivot_root", SYS["pivot_root"], os.fsencode(new), os.fsencode(old))


def new_mount(kind: str, attributes: int = 0, **options: str | bool) -> int:
    """Return a detached mount of a new file system, held only by the descriptor."""
    fs = syscall(f"fsopen {kind}", SYS_FSOPEN, kind.encode(), 1)
    try:
        for key, value in options.items():
            name = key.rstrip("_").encode()
            if value is True:
                syscall(f"{kind} {key}", SYS_FSCONFIG, fs, FSCONFIG_SET_FLAG, name, None, 0)
            elif value is not False:
                syscall(
                    f"{kind} {key}={value}", SYS_FSCONFIG, fs, FSCONFIG_SET_STRING, name, value.encode(), 0
                )
        syscall(f"mount {kind}", SYS_FSCONFIG, fs, FSCONFIG_CMD_CREATE, None, None, 0)
        return syscall(f"fsmount {kind}", SYS_FSMOUNT, fs, 1, attributes)
    finally:
        os.close(fs)


def clone_mount(path: str, *, recursive: bool = True) -> int:
    """Return a detached copy of the mount tree at a path."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return syscall(f"open_tree {path}", SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)


def attach_mount(fd: int, path: str) -> None:
    """Attach a detached mount to a path and close its descriptor."""
    try:
        name, target = f"move_mount to {path}", os.fsencode(path)
        syscall(name, SYS_MOVE_MOUNT, fd, b"", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(fd)


def attach_mount_to(fd: int, point: int) -> None:
    """Attach a detached mount to the folder of a descriptor; close both descriptors."""
    try:
        flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
        syscall("move_mount", SYS_MOVE_MOUNT, fd, b"", point, b"", flags)
    finally:
        os.close(fd)
        os.close(point)


def set_mount_attributes(fd: int, attributes: int, *, recursive: bool = True) -> None:
    """Add attributes (read-only, nosuid, …) to a mount tree."""
    attr = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    syscall("mount_setattr", SYS_MOUNT_SETATTR, fd, b"", flags, attr, len(attr))


_world_is_sandbox = False


def world_is_sandbox() -> None:
    """Declare that this process sees only the sandbox, so that paths may be resolved without `openat2`."""
    global _world_is_sandbox
    _world_is_sandbox = True


def open_beneath(root: int, path: str, flags: int, mode: int = 0, *, links: bool = True) -> int:
    """Open a path as if `root` were `/`: neither `..` nor a symlink leads out, even during concurrent changes.

    Without `links` a path through a symlink is refused.
    """
    if not flags & (os.O_CREAT | getattr(os, "O_TMPFILE", 0)):
        mode = 0
    resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (0 if links else RESOLVE_NO_SYMLINKS)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    number = _libc.syscall(
        ctypes.c_long(SYS_OPENAT2), ctypes.c_long(root), os.fsencode(path), how, ctypes.c_long(len(how))
    )
    if number < 0:
        code = ctypes.get_errno()
        if code == errno.ENOSYS and _world_is_sandbox:
            return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=root)
        raise OSError(code, os.strerror(code), path)
    return number


def share_resource(pid1: int, pid2: int, kind: int) -> bool:
    """Return whether two processes share memory (`KCMP_VM`), the descriptor table (`KCMP_FILES`) or the directory (`KCMP_FS`)."""
    return syscall("kcmp", SYS["kcmp"], pid1, pid2, kind, 0, 0) == 0


def set_hostname(name: str) -> None:
    """Set the host name of the current uts namespace."""
    _check(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def loopback_up() -> None:
    """Bring `lo` up in the current network namespace."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14s", b"lo", 0x1 | 0x40, b"")
        fcntl.ioctl(sock.fileno(), 0x8914, request)


def can_fork_sibling() -> bool:
    """Return whether `fork_sibling` works now: a single-threaded caller, so that no other thread holds a lock of libc."""
    return (
        platform.machine() in _CLONE_CALLS
        and len(os.listdir("/proc/self/task")) == 1
        and bool(_thread_id_address())
    )


def fork_sibling() -> bool:
    """Copy the calling single-threaded process as its sibling; return `True` in the copy.

    The usual way to a copy that is not a child takes two forks, each of which copies all page tables of an interpreter
    with its libraries: most of the cost of a fork. The kernel can do it with one, but libc has no function for it.

    Does the work of libc and Python around a fork: sets the thread's id and its list of robust locks, and calls Python's
    hooks. It does not call handlers of `pthread_atfork`, which are for locks that other threads hold.

    :raises OSError: if no more processes are allowed.
    """
    clone, get_list, set_list, position = _CLONE_CALLS[platform.machine()]
    robust, size = ctypes.c_void_p(), ctypes.c_size_t()
    _locked_call(get_list, ctypes.c_long(0), ctypes.byref(robust), ctypes.byref(size))
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    pointers = [ctypes.c_void_p(None)] * 3
    pointers[position - 1] = ctypes.c_void_p(_thread_id_address())
    _interpreter.PyOS_BeforeFork()
    pid = _locked_call(clone, ctypes.c_long(flags), ctypes.c_void_p(None), *pointers)
    if pid == 0:
        _locked_call(set_list, robust, size)
        _interpreter.PyOS_AfterFork_Child()
        return True
    error = ctypes.get_errno()
    _interpreter.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return False


def _locked_call(number: int, *arguments: object) -> int:
    return _locked_libc.syscall(ctypes.c_long(number), *arguments)


def _thread_id_address() -> int:
    """Return the address at which libc stores the calling thread's id; 0 if the kernel does not report it."""
    address = ctypes.c_void_p()
    zeros = [ctypes.c_ulong(0)] * 3
    failed = _locked_libc.prctl(ctypes.c_int(_PR_GET_TID_ADDRESS), ctypes.byref(address), *zeros)
    return 0 if failed else address.value or 0
