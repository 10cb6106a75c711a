"""How a live interpreter's fork moves from its parent's sandbox into its own. Runs inside, in the copy.

Memory comes along by itself. Everything that would still lead back to the parent is replaced: open files are
opened again by path at their offsets, deleted and shared memory is copied, pipes and sockets are closed and
reported.
"""

import ctypes
import fcntl
import mmap
import os
import resource
import stat
import sys
import threading
from typing import NamedTuple

from runtimes.process.inside import _native_threads
from runtimes.process.linux import _forking, _mappings
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine, _seccomp_broker

_HANGS_AFTER_FORK = {"polars": "polars", "grpc": "grpc"}
_NEW_FLAGS = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW
_F_DUPFD_QUERY = 1027
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]


class _OpenFile(NamedTuple):
    fd: int
    path: str
    mode: int
    flags: int
    offset: int
    named: bool
    source: int


def obstacle() -> str:
    """Why this interpreter can't be forked now; empty if it can."""
    for module, name in _HANGS_AFTER_FORK.items():
        if module in sys.modules:
            return f"{name} is imported, and its threads would hang in a fork"
    unknown = _native_threads.unknown_threads()
    if unknown:
        return f"threads of a native library are running ({unknown}), and a fork could hang without them"
    return ""


def unmovable_threads() -> list[str]:
    """One line for each Python thread, which a fork does not carry."""
    return [f"thread {t.name!r}" for t in threading.enumerate() if t is not threading.main_thread()]


def fork_away() -> bool:
    """Fork so that the copy is nobody's child here. `True` in the copy."""
    copy = _forking.fork_sibling() if _forking.can_fork_sibling() else _fork_twice()
    if copy:
        os.setsid()
    return copy


def _fork_twice() -> bool:
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        if status:
            raise OSError(os.waitstatus_to_exitcode(status), "no more processes allowed")
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        os._exit(error.errno or 1)
    return True


def move(uid: int, control: int) -> list[str]:
    """Go to the room that waits for this copy; returns one line for each thing left behind."""
    folder = os.readlink("/proc/self/cwd")
    files = [file for fd in _descriptors() if fd > 2 and fd != control and (file := _describe(fd))]
    files = [_made_readable(file) for file in files]
    twins = _twins(files)
    shared = _mappings.shared_mappings("self")
    _go_through_the_gate(uid)
    null = os.open("/dev/null", os.O_RDWR)
    left_behind: list[str] = [line for mapping in shared if (line := _remap(mapping))]
    for fd in (0, 1, 2, control):
        os.dup2(null, fd)
    for file in files:
        if file.fd in twins:
            os.dup2(twins[file.fd], file.fd, inheritable=os.get_inheritable(file.fd))
        elif line := _reopen(file, null):
            left_behind.append(line)
        if file.source != file.fd:
            os.close(file.source)
    os.close(null)
    try:
        os.chdir(folder)
    except OSError:
        os.chdir("/home/agent")
        left_behind.append(f"the working directory {folder}, which is gone")
    channels = _seccomp_broker.channel_place(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sc.setns(-1, 0)
    for offset, fd in enumerate((control, 1, 2)):
        os.dup2(channels + offset, fd, inheritable=fd != control)
        os.close(channels + offset)
    return left_behind


def _go_through_the_gate(uid: int) -> None:
    capabilities = _confine.FORK_CAPABILITIES
    place = _seccomp_broker.namespace_place(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sc.capset(effective=capabilities, permitted=capabilities)
    for offset, kind in enumerate(_confine.NAMESPACE_KINDS):
        sc.setns(place + offset, kind)
    _confine.enter_root()
    os.closerange(place, place + len(_confine.NAMESPACE_KINDS))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    sc.capset(effective=0, permitted=capabilities)
    sc.prctl(sc.PR_SET_DUMPABLE, 1)


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _describe(fd: int) -> _OpenFile | None:
    try:
        info = os.fstat(fd)
        mode = info.st_mode
        path = os.readlink(f"/proc/self/fd/{fd}")
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError:
        return None
    offset = os.lseek(fd, 0, os.SEEK_CUR) if stat.S_ISREG(mode) else 0
    return _OpenFile(fd, path, mode, flags, offset, info.st_nlink > 0, fd)


def _made_readable(file: _OpenFile) -> _OpenFile:
    """Open what has no name for reading, if it is not: the file belongs to the user who is left behind."""
    if file.named or not stat.S_ISREG(file.mode) or file.flags & os.O_ACCMODE != os.O_WRONLY:
        return file
    return file._replace(source=os.open(f"/proc/self/fd/{file.fd}", os.O_RDONLY | os.O_CLOEXEC))


def _twins(files: list[_OpenFile]) -> dict[int, int]:
    """Descriptors that share place and flags with a lower one, as `dup` makes them, and which that is."""
    found: dict[int, int] = {}
    for number, file in enumerate(files):
        for other in files[:number]:
            if (
                other.path == file.path
                and other.offset == file.offset
                and _same_description(other.fd, file.fd)
            ):
                found[file.fd] = other.fd
                break
    return found


def _same_description(one: int, other: int) -> bool:
    try:
        return fcntl.fcntl(one, _F_DUPFD_QUERY, other) == 1
    except OSError:
        # A kernel older than 6.10 can't tell.
        return False


def _reopen(file: _OpenFile, null: int) -> str:
    """Replace one descriptor; returns what could not be carried."""
    inheritable = os.get_inheritable(file.fd)
    new = -1
    if stat.S_ISREG(file.mode):
        new = _open_again(file) if file.named else -1
        if new < 0:
            new = _copy_unnamed(file)
    elif stat.S_ISDIR(file.mode) or file.path in (
        "/dev/null",
        "/dev/zero",
        "/dev/urandom",
        "/dev/random",
        "/dev/full",
    ):
        new = _open_again(file)
    line = ""
    if new < 0:
        line = f"descriptor {file.fd} ({_kind(file)})"
        new = os.dup(null)
    os.dup2(new, file.fd, inheritable=inheritable)
    os.close(new)
    return line


def _open_again(file: _OpenFile) -> int:
    try:
        fd = os.open(file.path, file.flags & ~_NEW_FLAGS)
    except OSError:
        return -1
    if stat.S_IFMT(os.fstat(fd).st_mode) != stat.S_IFMT(file.mode):
        os.close(fd)
        return -1
    if file.offset:
        os.lseek(fd, file.offset, os.SEEK_SET)
    return fd


def _copy_unnamed(file: _OpenFile) -> int:
    """A file without a name (deleted, or never named): copy what it holds."""
    try:
        fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
        position = 0
        while piece := os.pread(file.source, 1 << 20, position):
            position += os.pwrite(fd, piece, position)
        os.lseek(fd, file.offset, os.SEEK_SET)
    except OSError:
        return -1
    if file.flags & os.O_ACCMODE == os.O_RDWR:
        return fd
    narrowed = os.open(f"/proc/self/fd/{fd}", file.flags & ~_NEW_FLAGS & ~getattr(os, "O_TMPFILE", 0))
    os.lseek(narrowed, file.offset, os.SEEK_SET)
    os.close(fd)
    return narrowed


def _kind(file: _OpenFile) -> str:
    kinds = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFREG: "a file that is gone"}
    return kinds.get(stat.S_IFMT(file.mode), file.path)


def _remap(mapping: _mappings.Mapping) -> str:
    """Map the new room's file, or a copy of the content, where the parent's was."""
    address, length, protection, offset, _, path = mapping
    fd = -1
    flags = mmap.MAP_SHARED | 0x10
    if path and not path.endswith(b" (deleted)"):
        try:
            fd = os.open(path, os.O_RDWR if protection & mmap.PROT_WRITE else os.O_RDONLY)
        except OSError:
            fd = -1
    if fd >= 0:
        _libc.mmap(address, length, protection, flags, fd, offset)
        os.close(fd)
        return ""
    if not protection & mmap.PROT_READ:
        _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
        return f"shared memory at {address:#x}"
    content = ctypes.string_at(address, length)
    # A file of the new room: that memory is shared with nobody outside of it can be seen from there.
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.truncate(fd, length)
    _libc.mmap(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    os.close(fd)
    ctypes.memmove(address, content, length)
    return ""
