"""Run one command, and kill it with everything it started when its owner is gone.

A program of its own: `python _keeper.py FD OWNER PROGRAM ARGUMENT...`, with only the standard library, in its own
session. `FD` is a socket to the owner, whose process id is `OWNER`. Each byte from it is a signal for the command's
process group; its end means that the owner is gone, or wants an immediate end: everything is killed. The same happens
when the kernel reports the owner's death, because a fork of the owner may still hold its end of the socket. The keeper
adopts orphans (Linux), so it also finds processes that left the group. It exits with the status of the command.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
OWNER_DIED = signal.SIGHUP
DEFAULTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


def prctl(option: int, value: int) -> None:
    """Call Linux's `prctl`; a no-op on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def start(program: list[str]) -> tuple[int, str]:
    """Start the command as leader of its own session; return its process id, and the error if it can't run."""
    keeper = os.getpid()
    failure, fail = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == keeper:
                for number in DEFAULTS:
                    signal.signal(number, signal.SIG_DFL)
                os.execvp(program[0], program)
        except OSError as error:
            os.write(fail, (error.strerror or "?").encode())
        finally:
            os._exit(127)
    os.close(fail)
    with os.fdopen(failure, "rb") as reading:
        return pid, reading.read().decode()


def children() -> list[int]:
    """Return the processes whose parent is the keeper."""
    me = str(os.getpid())
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as listing:
            return [int(pid) for pid in listing.read().split()]
    except OSError:
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == me]


def parent_of(pid: str) -> str:
    """Return the parent of a process, for kernels without a list of children."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def kill_all(leader: int) -> None:
    """Kill the command's group and every orphan, until none is left."""
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    while True:
        with contextlib.suppress(OSError):
            for pid in children():
                os.kill(pid, signal.SIGKILL)
        try:
            # An orphan's children reach the keeper only when it is reaped: reap one, then look again.
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def do_nothing(number: int, frame: object) -> None:
    """Handle a signal; its arrival wakes `select` up."""


def watch(leader: int, line: socket.socket, owner: int) -> int:
    """Forward signals until the command or the owner ends; return the command's wait status."""
    wakeup, notify = socket.socketpair()
    wakeup.setblocking(False)
    notify.setblocking(False)
    signal.set_wakeup_fd(notify.fileno())
    signal.signal(signal.SIGCHLD, do_nothing)
    signal.signal(OWNER_DIED, do_nothing)
    prctl(PR_SET_PDEATHSIG, OWNER_DIED)
    try:
        # The kernel does not report the death of an owner that died before the request.
        while os.getppid() == owner:
            status = reap(leader)
            if status is not None:
                return status
            readable, _, _ = select.select([wakeup, line], [], [])
            if wakeup in readable:
                wakeup.recv(4096)
            if line in readable:
                signals = signals_from(line)
                if not signals:
                    return signal.SIGKILL
                for number in signals:
                    with contextlib.suppress(OSError):
                        os.killpg(leader, number)
        return signal.SIGKILL
    finally:
        signal.set_wakeup_fd(-1)


def signals_from(line: socket.socket) -> bytes:
    """Return the signals that the owner sent; empty once it is gone."""
    try:
        return line.recv(64)
    except OSError:
        # The owner went away without reading the greeting.
        return b""


def reap(leader: int) -> int | None:
    """Reap all ended processes, orphans too (they would stay zombies); return the command's wait status."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == leader:
                return ended[1]
    return None


def end_like(status: int) -> None:
    """Exit with the command's status, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    """Run one command."""
    line, owner = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    line.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    leader, failure = start(sys.argv[3:])
    with contextlib.suppress(OSError):
        line.send(f"failed {failure}".encode() if failure else f"started {leader}".encode())
    status = watch(leader, line, owner)
    kill_all(leader)
    end_like(status)


if __name__ == "__main__":
    main()
