"""Whose the threads of native libraries are. Runs inside a session, before its interpreter forks.

A fork carries no thread but its own. Some libraries start theirs again when needed; of any other, a lock that a
thread held would stay locked for ever. Which library a thread belongs to is told by its stack: the function that
the thread began with lies in that library's code.
"""

import os
import re
import threading

_FORKS_WELL = re.compile(r"/[^/]*(arrow|parquet|duckdb|jemalloc)[^/]*\.so[^/]*$")
_STACK_BYTES = 1 << 14


def unknown_threads() -> int:
    """How many threads there are that neither Python knows nor a library that is fine with forks started."""
    # The main thread's number comes first: in a forked interpreter Python remembers that of its parent.
    known = {os.getpid(), *(thread.native_id for thread in threading.enumerate())}
    others = [number for number in map(int, os.listdir("/proc/self/task")) if number not in known]
    if not others:
        return 0
    code = _code_that_forks_well()
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return sum(not _runs(number, code, memory) for number in others)
    finally:
        os.close(memory)


def _code_that_forks_well() -> list[range]:
    found: list[range] = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            place, rights, *_, path = line.rstrip("\n").split(" ")
            if "x" in rights and _FORKS_WELL.search(path):
                start, end = place.split("-")
                found.append(range(int(start, 16), int(end, 16)))
    return found


def _runs(number: int, code: list[range], memory: int) -> bool:
    """Whether an address of that code is on a waiting thread's stack."""
    try:
        with open(f"/proc/self/task/{number}/syscall", encoding="ascii") as file:
            stack = int(file.read().split()[-2], 16)
        words = memoryview(os.pread(memory, _STACK_BYTES, stack)).cast("Q")
    except FileNotFoundError:
        # It has ended since.
        return True
    except (OSError, IndexError, ValueError):
        return False
    return any(word in part for word in words for part in code)
