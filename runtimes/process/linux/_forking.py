"""A fork whose parent is the caller's own parent.

The usual way to a copy that is nobody's child takes two forks, and each of them copies all page tables of an interpreter
with its libraries: most of what a fork costs. The kernel can do it with one, but libc has no function for it.
"""

import ctypes
import os
import platform
import signal
from typing import Final

__all__ = ["can_fork_sibling", "fork_sibling"]

_CLONE_PARENT: Final = 0x00008000
_CLONE_CHILD_CLEARTID: Final = 0x00200000
_CLONE_CHILD_SETTID: Final = 0x01000000
_PR_GET_TID_ADDRESS: Final = 40

# clone, get_robust_list, set_robust_list; and the place of the thread id's address among clone's arguments.
_CALLS: Final = {"x86_64": (56, 274, 273, 2), "aarch64": (220, 100, 99, 3)}

# The interpreter's lock is kept: what it looks after must be of one instant.
_libc = ctypes.PyDLL(None, use_errno=True)
_python = ctypes.pythonapi


def can_fork_sibling() -> bool:
    """Whether `fork_sibling` works here and now: nobody but the caller's one thread can hold a lock of libc's."""
    return (
        platform.machine() in _CALLS
        and len(os.listdir("/proc/self/task")) == 1
        and bool(_thread_id_address())
    )


def fork_sibling() -> bool:
    """Copy the calling process, which has one thread; `True` in the copy.

    Does what libc and Python do around a fork of their own: the thread's id and its list of robust locks are set, Python's
    hooks are called. Handlers of `pthread_atfork` are not: they are for locks that other threads hold.

    :raises OSError: if there can be no more processes.
    """
    clone, get_list, set_list, place = _CALLS[platform.machine()]
    robust, size = ctypes.c_void_p(), ctypes.c_size_t()
    _call(get_list, ctypes.c_long(0), ctypes.byref(robust), ctypes.byref(size))
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    pointers = [ctypes.c_void_p(None)] * 3
    pointers[place - 1] = ctypes.c_void_p(_thread_id_address())
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
    """Where libc keeps the calling thread's id; 0 where the kernel does not tell."""
    address = ctypes.c_void_p()
    failed = _libc.prctl(
        ctypes.c_int(_PR_GET_TID_ADDRESS),
        ctypes.byref(address),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    return 0 if failed else address.value or 0
