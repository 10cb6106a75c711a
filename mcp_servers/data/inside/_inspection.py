"""Inspection of a directory: its data files and the links between their columns."""

import json
import math
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import duckdb

from mcp_servers.data.inside._sources import UnreadableData, connect

Work: TypeAlias = Callable[[duckdb.DuckDBPyConnection], dict[str, Any]]
"""Work that returns JSON values."""
READ = 1 << 16
OVERHEAD = 1 << 30
"""Address space used by the interpreter and the libraries."""
WAITING = 3
"""Wall-clock limit of a process, as a multiple of its CPU limit."""
_TOO_LONG = "reading it takes longer than {:g} seconds, or gives too much"
LARGEST = 64 << 20
"""Largest reply in bytes."""


def alone(work: Work, *, seconds: float, left: float, memory: int) -> dict[str, Any]:
    """Run `work` in its own process with its own database; return its result or `{"unreadable": reason}`.

    :param seconds: of work; where others work too it may take longer.
    """
    if left <= 0:
        return {"unreadable": "not looked at: the time was up"}
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(work, writing, seconds, memory)
    os.close(writing)
    try:
        data = _read(reading, time.monotonic() + min(left, WAITING * seconds))
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if data is None:
        return {"unreadable": _TOO_LONG.format(seconds)}
    try:
        return json.loads(data)
    except ValueError:
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return {"unreadable": _TOO_LONG.format(seconds)}
        return {"unreadable": f"its reader broke off (status {status}); it may be damaged or too large"}


def _work(work: Work, writing: int, seconds: float, memory: int) -> None:
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory + OVERHEAD, memory + OVERHEAD))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            answer = work(connect(memory))
        except UnreadableData as error:
            answer = {"unreadable": str(error)}
        except (MemoryError, duckdb.OutOfMemoryException):
            answer = {"unreadable": "reading it needs too much memory"}
        except Exception as error:  # boundary: any error of a file is reported, and the next one is read
            answer = {"unreadable": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
        data = json.dumps(answer).encode()
        while data:
            data = data[os.write(writing, data) :]
        status = 0
    finally:
        os._exit(status)


def _read(descriptor: int, ends: float) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while size <= LARGEST:
        ready, _, _ = select.select([descriptor], [], [], max(ends - time.monotonic(), 0))
        if not ready:
            return None
        part = os.read(descriptor, READ)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    return None
