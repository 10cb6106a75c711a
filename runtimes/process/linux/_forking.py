"""Fork whose child is a sibling of the caller.

The usual way to a copy that is not a child takes two forks, each of which copies all page tables of an interpreter with
its libraries: most of the cost of a fork. The kernel can do it with one, but libc has no function for it.
"""

import ctypes
import os
import platform
import signal
from typing import Final

_CLONE_PARENT: Final = 0x00008000
_CLONE_CHILD_CLEARTID: Final = 0x00200000
_CLONE_CHILD_SETTID: Final = 0x01000000
_PR_GET_TID_ADDRESS: Final = 40

# clone, get_robust_list, set_robust_list; and the position of the thread id's address among clone's arguments.
_CALLS: Final = {"x86_64": (56, 274, 273, 2), "aarch64": (220, 100, 99, 3)}

# Holds the GIL, so that the copied state belongs to one instant.
_libc = ctypes.PyDLL(None, use_errno=True)
_python = ctypes.pythonapi


def can_fork_sibling() -> bool:
    """Return whether `fork_sibling` works now: a single-threaded caller, so that no other thread holds a lock of libc."""
    return (
        platform.machine() in _CALLS
        and len(os.listdir("/proc/self/task")) == 1
        and bool(_thread_id_address())
    )


def fork_sibling() -> bool:
    """Copy the calling single-threaded process; return `True` in the copy.

    Does the work of libc and Python around a fork: sets the thread's id and its list of robust locks, and calls Python's
    hooks. It does not call handlers of `pthread_atfork`, which are for locks that other threads hold.

    :raises OSError: if no more processes are allowed.
    """
    clone, get_list, set_list, position = _CALLS[platform.machine()]
    robust, size = ctypes.c_void_p(), ctypes.c_size_t()
    _call(get_list, ctypes.c_long(0), ctypes.byref(robust), ctypes.byref(size))
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    pointers = [ctypes.c_void_p(None)] * 3
    pointers[position - 1] = ctypes.c_void_p(_thread_id_address())
    _python.PyOS_BeforeFork()
    pid = _call(clone, ctypes.c_long(flags), ctypes.c_void_p(None), *pointers)
    if pid == 0:
        _call(set_list, robust, size)
        _python.PyOS_AfterFork_Child()
        return True
    error = ctypes.get_errno()
    _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return False


def _call(number: int, *arguments: object) -> int:
    return _libc.syscall(ctypes.c_long(number), *arguments)


def _thread_id_address() -> int:
    """Return the address at which libc stores the calling thread's id; 0 if the kernel does not report it."""
    address = ctypes.c_void_p()
    failed = _libc.prctl(
        ctypes.c_int(_PR_GET_TID_ADDRESS),
        ctypes.byref(address),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    return 0 if failed else address.value or 0
