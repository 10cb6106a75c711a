"""Start a process of every kind and observe it, stopped, at each step that confines it. Run as a program.

An outer filter puts two calls to a listener in this process: the one that installs a filter, and the one that opens a
process's memory to other processes of its user. Landlock is hidden, as on a kernel without it.
"""

import errno
import json
import os
import platform
import stat
import struct
import sys
import threading
from dataclasses import asdict, dataclass

import anyio

from runtimes.process import ProcessRuntime
from runtimes.process.linux import _processes, _seccomp
from runtimes.process.linux import _syscalls as sc

_PRCTL = {"x86_64": 157, "aarch64": 167}[platform.machine()]
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NOTIFY, _MISSING = 0x7FFF0000, 0x7FC00000, 0x00050000 | errno.ENOSYS
_SET_FILTER, _NEW_LISTENER = 1, 8
_FREE = 150
_CONTROL = (3, 197)


@dataclass(frozen=True, slots=True)
class Step:
    """State of a process at one of the two calls."""

    call: str
    """`filter` or `open`."""
    filtered: bool
    """It has installed its filter before."""
    readable: bool
    """Other processes of its user may open its memory."""
    trusted: int
    """Number of its descriptors that lead to trusted processes and other sandboxes; 0 where they can't be seen."""


def _watch() -> int:
    """Install the outer filter on this thread; return its listener."""
    lines = [
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 1, sc.SYS_LANDLOCK_CREATE_RULESET),
        (_RETURN, 0, 0, _MISSING),
        (_EQUAL, 0, 3, sc.SYS["seccomp"]),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 5, 0, _SET_FILTER),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, _PRCTL),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 0, 2, sc.PR_SET_DUMPABLE),
        (_LOAD, 0, 0, 24),
        (_EQUAL, 1, 0, 1),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOTIFY),
    ]
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    if os.geteuid() != 0:
        sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    return _seccomp.install(code, listener=True)


def _trusted_descriptors(pid: int) -> int:
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        kind = stat.S_IFMT(os.stat(f"/proc/{pid}/fd/{name}").st_mode)
        count += int(name) not in (0, 1, 2, *_CONTROL) and kind in (stat.S_IFSOCK, stat.S_IFDIR)
    return count


class Observer:
    """Listener of the outer filter."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.armed = False
        """Record the steps; before that, only trusted processes start."""
        self._filtered: set[int] = set()
        self._installed = threading.Event()
        self._listener = -1
        self._silent, self._writer = os.pipe()
        threading.Thread(target=self._serve, daemon=True).start()

    def begin(self) -> None:
        """Watch the calling thread and all that it starts."""
        self._listener = _watch()
        self._installed.set()

    def _serve(self) -> None:
        self._installed.wait()
        while True:
            call = _seccomp.next_call(self._listener)
            if call is not None:
                self._answer(call)

    def _answer(self, call: _seccomp.SeccompNotification) -> None:
        is_filter = call.name == str(sc.SYS["seccomp"])
        users = _processes.status_fields(call.pid)["Uid"].split()[:3]
        # The kernel keeps a process with several users closed to each of them.
        if self.armed and len(set(users)) == 1:
            readable = os.stat(f"/proc/{call.pid}/mem").st_uid == int(users[0])
            trusted = _trusted_descriptors(call.pid) if os.geteuid() == 0 else 0
            kind = "filter" if is_filter else "open"
            self.steps.append(Step(kind, call.pid in self._filtered, readable, trusted))
        if is_filter:
            self._filtered.add(call.pid)
        if is_filter and call.args[1] & _NEW_LISTENER:
            # The kernel refuses a second listener; this one is never heard of.
            _seccomp.give_descriptor(self._listener, call, self._silent, _FREE)
            _seccomp.succeed(self._listener, call, _FREE)
        else:
            _seccomp.let_through(self._listener, call)


async def run(observer: Observer) -> list[Step]:
    """Start the processes."""
    observer.begin()
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        observer.armed = True
        instance = await runtime.start()
        await instance.exec(["true"])
        await instance.run("bash", "true")
        await instance.run("python", "1")
        if runtime.capabilities.root:
            await instance.exec(["true"], user="root")
        observer.armed = False
    return observer.steps


def main() -> None:
    """Print the steps."""
    steps = anyio.run(run, Observer())
    sys.stdout.write(json.dumps([asdict(step) for step in steps]))


if __name__ == "__main__":
    main()
