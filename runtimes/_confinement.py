"""Confinement of a worker process that handles untrusted data: limits, files by Landlock, system calls by seccomp.

Everything is irrevocable and applies to the calling thread and those it starts later, so call it before any thread. It
imports only the standard library, because workers load it at their start. See docs/security.md.
"""

import errno
import os
import resource
from collections.abc import Mapping, Sequence

from runtimes.process.linux import _landlock, _seccomp
from runtimes.process.linux import _syscalls as sc

_COMPUTING = [
    "brk", "clock_gettime", "clock_nanosleep", "close", "exit", "exit_group", "fcntl", "fstat", "futex",
    "getpid", "getrandom", "gettimeofday", "lseek", "madvise", "membarrier", "mmap", "mprotect", "mremap",
    "munmap", "newfstatat", "read", "restart_syscall", "rseq", "rt_sigaction", "rt_sigprocmask",
    "rt_sigreturn", "sched_getaffinity", "sched_yield", "sysinfo", "write", "writev",
]  # fmt: skip
_USING_FILES = [
    "access",
    "faccessat",
    "faccessat2",
    "fallocate",
    "fadvise64",
    "fdatasync",
    "fsync",
    "fstatfs",
    "ftruncate",
    "getcwd",
    "getdents64",
    "getegid",
    "geteuid",
    "getgid",
    "getrusage",
    "gettid",
    "getuid",
    "lstat",
    "open",
    "openat",
    "pipe2",
    "poll",
    "ppoll",
    "pread64",
    "preadv",
    "pselect6",
    "pwrite64",
    "pwritev",
    "readlink",
    "readlinkat",
    "readv",
    "rename",
    "renameat",
    "renameat2",
    "select",
    "sched_getparam",
    "sched_getscheduler",
    "sendfile",
    "set_robust_list",
    "sigaltstack",
    "stat",
    "statfs",
    "statx",
    "times",
    "uname",
    "unlink",
    "unlinkat",
]


def set_limit(kind: int, value: int) -> None:
    """Set a resource limit of this process, at most the one that it has.

    Example::

        set_limit(resource.RLIMIT_CORE, 0)
    """
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def restrict_files(*, readable: Sequence[str] = (), writable: Sequence[str] = (), folder: str = "") -> bool:
    """Refuse opening other files, and starting programs.

    Directories in `readable` count with their contents. Missing files are skipped, and symbolic links not followed.

    :param writable: existing files to read and write.
    :param folder: directory in which files may be created, read, changed and removed.
    :return: `False` if the kernel has no Landlock, and nothing is restricted.

    Example::

        restrict_files(readable=["/data/a.db"])
    """
    rights = dict.fromkeys(readable, _landlock.READ) | dict.fromkeys(
        writable, _landlock.READ | _landlock.WRITE
    )
    if folder:
        rights[folder] = _landlock.READ | _landlock.WRITE | _landlock.CHANGE_FOLDER
    return _restrict(rights, refuse_reading=True)


def refuse_changes() -> bool:
    """Refuse changing, creating and removing files, and starting programs; return `False` without Landlock.

    Example::

        refuse_changes()
    """
    return _restrict({}, refuse_reading=False)


def _restrict(rights: Mapping[str, int], *, refuse_reading: bool) -> bool:
    if not _landlock.version():
        return False
    ruleset = _landlock.make_file_ruleset(refuse_reading=refuse_reading)
    try:
        for path, permitted in rights.items():
            _landlock.permit(ruleset, path, permitted)
        sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
        _landlock.apply(ruleset)
    finally:
        os.close(ruleset)
    return True


def restrict_calls(*, files: bool = False) -> None:
    """Refuse all system calls but those for computing with open files.

    It ends opening files, connecting, and starting and signalling processes.

    :param files: allow also to open, rename and remove files, and to start threads.
    :raises OSError: if this machine does not support it.

    Example::

        restrict_calls(files=True)
    """
    code = _seccomp.build_allowlist(
        [*_COMPUTING, *(_USING_FILES if files else ())], errno.EACCES, threads=files
    )
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    _seccomp.install(code)
