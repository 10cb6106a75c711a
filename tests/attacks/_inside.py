"""Program that tries attacks inside a sandbox: each in a process of its own, with its outcome as JSON.

It is sent to sandboxes as text, so it uses the standard library only. An attack is Python source that ends with an
expression; its outcome is the value of that expression, or the name of the error.
"""

import ast
import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

SECONDS: Final = 20
libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int | bytes | None) -> str:
    """Make a system call by number; return `done` or the name of its error."""
    if number < 0:
        return "ENOSYS"
    values = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(ctypes.c_long(number), *values)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def attempt(function: Callable[..., object], *arguments: object) -> str:
    """Call a function; return `done` or the name of its error."""
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    return "done"


def attempt_open(path: str, flags: int = os.O_RDONLY) -> str:
    """Open a file; return `done` or the name of the error."""
    return attempt(os.open, path, flags)


def attempt_write(path: str, text: str) -> str:
    """Write to an existing file; return `done` or the name of the error."""

    def write() -> None:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, text.encode())

    return attempt(write)


def connect(family: int, address: object, kind: int = socket.SOCK_STREAM) -> str:
    """Connect a socket; return `done` or the name of the error."""
    with socket.socket(family, kind) as sock:
        sock.settimeout(5)
        return attempt(sock.connect, address)


def prctl(*arguments: int) -> str:
    """Call prctl; return `done` or the name of the error."""
    result = libc.prctl(*[ctypes.c_ulong(one) for one in arguments])
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def count(make: Callable[[], object], most: int) -> int:
    """Make and keep objects until an error; return their number."""
    kept: list[object] = []
    try:
        while len(kept) < most:
            kept.append(make())
    except (OSError, RuntimeError, MemoryError):
        pass
    return len(kept)


def others() -> list[str]:
    """Return the processes that are not this one or its relatives in the attack."""
    own = {str(os.getpid()), str(os.getppid())}
    return [name for name in os.listdir("/proc") if name.isdigit() and name not in own]


def number(x86: int, arm: int) -> int:
    """Return the number of a system call on this machine."""
    return x86 if os.uname().machine == "x86_64" else arm


NAMES: Final[dict[str, object]] = {
    name: value for name, value in globals().items() if not name.startswith("_")
}


def evaluate(code: str) -> str:
    """Run the source; return the value of its last expression as text."""
    body = ast.parse(code).body
    last = body.pop()
    assert isinstance(last, ast.Expr), code
    names = dict(NAMES)
    try:
        exec(compile(ast.Module(body, []), "attack", "exec"), names)
        return str(eval(compile(ast.Expression(last.value), "attack", "eval"), names))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    except BaseException as error:  # boundary: any error of an attack is its outcome
        return f"{type(error).__name__}: {error}"


def outcome(code: str) -> str:
    """Run the source in a process of its own; return its outcome, or the signal that ended it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        os.close(reader)
        seen = evaluate(code)
        try:
            os.write(writer, seen.encode("utf-8", "replace")[:60_000] + b"\0")
        finally:
            os._exit(0)
    os.close(writer)
    text = b""
    while not text.endswith(b"\0") and (piece := os.read(reader, 65_536)):
        text += piece
    os.close(reader)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return text[:-1].decode("utf-8", "replace") if text else f"signal {-ended}"


def try_all(table: dict[str, str]) -> dict[str, str]:
    """Return the outcome of each attack by id."""
    return {id: outcome(code) for id, code in table.items()}


def main(table: str, report: str) -> None:
    """Try the attacks of a JSON file and write the outcomes to another."""
    with open(table, encoding="utf-8") as file:
        seen = try_all(json.load(file))
    with open(report, "w", encoding="utf-8") as file:
        json.dump(seen, file)


_ = (fcntl, mmap, resource, select, stat, struct, subprocess, threading, time)
"""Modules that attacks use."""

if __name__ == "__main__":
    main(*sys.argv[1:])
