"""Keeps one command, and everything that it starts, from outliving whoever asked for it.

Run as a program of its own: `python _keeper.py FD OWNER PROGRAM ARGUMENT...`, with only the standard library, in a
session of its own. `FD` is a socket to the owner, whose process id is `OWNER`: each byte that comes is a signal for the
command's process group; its end means that the owner is gone, or wants the end now: everything is killed. So it is when
the kernel says that the owner has died, since a fork of the owner may still hold its end of the line. The keeper adopts
orphans (Linux), so that a process which left the group is found too. It ends as the command ended.
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
    """Ask the Linux kernel; elsewhere nothing can be asked."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def start(program: list[str]) -> tuple[int, str]:
    """Start the command as the leader of its own session; gives its id, and why it can't run if it can't."""
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
    """Processes whose parent is the keeper."""
    me = str(os.getpid())
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as listing:
            return [int(pid) for pid in listing.read().split()]
    except OSError:
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == me]


def parent_of(pid: str) -> str:
    """The parent of a process, where the kernel has no list of children."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def kill_all(leader: int) -> None:
    """Kill the command's group and every orphan, until nobody is left."""
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    while True:
        with contextlib.suppress(OSError):
            for pid in children():
                os.kill(pid, signal.SIGKILL)
        try:
            # An orphan's own children come to the keeper only when it is reaped, so: reap one, look again.
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def do_nothing(number: int, frame: object) -> None:
    """Handle a signal by waking `select` up, which having a handler does."""


def watch(leader: int, line: socket.socket, owner: int) -> int:
    """Pass signals on until the command or the owner ends; gives the command's wait status."""
    wakeup, notify = socket.socketpair()
    wakeup.setblocking(False)
    notify.setblocking(False)
    signal.set_wakeup_fd(notify.fileno())
    signal.signal(signal.SIGCHLD, do_nothing)
    signal.signal(OWNER_DIED, do_nothing)
    prctl(PR_SET_PDEATHSIG, OWNER_DIED)
    try:
        # Of an owner that died before it was asked, the kernel says nothing.
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
    """What the owner sends; nothing once it is gone."""
    try:
        return line.recv(64)
    except OSError:
        # It went without having read our greeting.
        return b""


def reap(leader: int) -> int | None:
    """Take note of all who ended, orphans too (else they stay zombies); gives the command's wait status."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == leader:
                return ended[1]
    return None


def end_like(status: int) -> None:
    """End with the exit status, or by the signal, of the command."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    """Keep one command."""
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
