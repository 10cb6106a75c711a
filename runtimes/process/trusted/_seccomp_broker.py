"""Seccomp broker: decides on each system call that changes identity while a fork moves into its sandbox.

A live interpreter can copy itself, but the copy must move to other namespaces and another user, and only the copy
itself can make those system calls. So sandboxed interpreters keep four capabilities, never effective, which count only
in the runtime's user namespace. Raising them, and every call that uses them, is a seccomp notification to this broker.
It allows one process one fixed sequence of calls with fixed arguments, in a move that the server requested:

1. `capset`: raise the four capabilities. Before that, the broker checks that the caller has one thread and shares
   nothing with another process, and sets its process limit to 0: no other process ever has the four raised.
2. `setns` to each of the sandbox's namespaces, in order, and `chroot`. The broker places each descriptor into the
   stopped caller's table just before, so that it can't lead elsewhere.
3. `setgroups(0)`, `setresgid(uid x3)`, `setresuid(uid x3)` to the new sandbox's user.
4. `capset`: lower the four capabilities.
5. `setns(-1)`, which means "check me". While the caller is stopped in it, the broker reads from `/proc` its identity
   and namespaces, and that it is alone and shares no memory, descriptor table or open file with the old sandbox. Then
   it places the descriptors of the new session's channels and lets the call return.

Any other call fails with EPERM and, during a move, kills the caller. The code of the fork belongs to the sandbox, so it
is treated as hostile throughout.
"""

import contextlib
import os
import resource
import select
import selectors
import signal
import socket
import stat
import time
from collections import deque
from dataclasses import dataclass

from runtimes.process.linux import _cgroups, _mappings, _processes, _seccomp
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine, _wire

_CHECK_ME = 0xFFFFFFFF
_KEEP_IDS = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_BURST = 64
_PAUSE = 0.02


def first_namespace_fd(limit: int) -> int:
    """Return the first of the four namespace descriptors in the table of a process with this limit of open files."""
    return min(limit, 1024) - 24


def first_channel_fd(limit: int) -> int:
    """Return the first of the new session's descriptors: control, stdout and stderr."""
    return min(limit, 1024) - 16


@dataclass(slots=True, eq=False)
class ForkMove:
    """Move of one fork from its parent's sandbox into its own."""

    from_uid: int
    """User of the old sandbox."""
    to_uid: int
    """User of the new sandbox."""
    from_group: _cgroups.Cgroup
    """Cgroup of the old sandbox."""
    pid_namespace: int
    """Pid namespace of the fork group."""
    namespaces: list[int]
    """Namespaces of the new sandbox."""
    root: int
    """Root of the new sandbox."""
    group: _cgroups.Cgroup
    """Cgroup of the new sandbox."""
    channels: list[int]
    """Control socket, stdout and stderr of the new session."""
    done: socket.socket
    """Socket that receives the outcome."""
    pid: int = 0
    """Pid of the moving process: the first that asks; 0 before."""
    step: int = 0
    """Number of calls made so far."""
    files: int = 0
    """Its limit of open files."""
    pidfd: int = -1
    """Pidfd of the moving process."""
    processes: tuple[int, int] = (0, 0)
    """Its process limit, restored at the end: during the move it is 0."""


class SeccompBroker:
    """Answer the seccomp notifications of all sandboxes."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._moves: list[ForkMove] = []
        self._answered: dict[int, deque[float]] = {}
        self._paused: dict[int, float] = {}

    def add(self, listener: int) -> None:
        """Watch another notify descriptor; it is closed when the last process behind it is gone."""
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._answer(listener))

    def allow(self, move: ForkMove) -> None:
        """Allow one move."""
        self._moves.append(move)

    def forget(self, move: ForkMove) -> None:
        """Withdraw the permission for a move that has not ended."""
        if move in self._moves:
            self._end(move)

    def _end(self, move: ForkMove, **outcome: object) -> None:
        """Remove a move and send its outcome, if it has one."""
        self._moves.remove(move)
        if move.pidfd >= 0:
            self._selector.unregister(move.pidfd)
            os.close(move.pidfd)
        if outcome:
            _wire.send(move.done, outcome)
        move.done.close()

    def cancel(self, to_uid: int) -> None:
        """Cancel the move into a sandbox that is being stopped."""
        for move in [pending for pending in self._moves if pending.to_uid == to_uid]:
            if move.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(move.pid, signal.SIGKILL)
            self._end(move)

    def resume_paused(self) -> float | None:
        """Watch paused notify descriptors again; return the seconds until this must be called again.

        A sandbox that makes more than 64 calls per second is paused for 20 ms at a time, so that it can't delay others.
        """
        now = time.monotonic()
        for listener in [descriptor for descriptor, until in self._paused.items() if until <= now]:
            del self._paused[listener]
            self.add(listener)
        return min(self._paused.values()) - now if self._paused else None

    def _answer(self, listener: int) -> None:
        try:
            call = _seccomp.next_call(listener)
        except OSError:
            self._drop(listener)
            return
        if call is None:
            self._drop_if_dead(listener)
            return
        move = self._move_of(call)
        if move is None:
            self._answer_outsider(listener, call)
            return
        try:
            self._step(listener, call, move)
        except (OSError, KeyError, ValueError) as error:
            self._fail(listener, call, move, f"the fork's move failed: {error}")

    def _drop(self, listener: int) -> None:
        self._selector.unregister(listener)
        self._answered.pop(listener, None)
        os.close(listener)

    def _drop_if_dead(self, listener: int) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        for _, events in poll.poll(0):
            if events & (select.POLLHUP | select.POLLERR):
                self._drop(listener)

    def _move_of(self, call: _seccomp.SeccompNotification) -> ForkMove | None:
        for move in self._moves:
            if move.pid == call.pid:
                return move
        if call.name != "capset":
            return None
        try:
            uid = _processes.real_uid(call.pid)
        except OSError:
            return None
        for move in self._moves:
            if move.pid == 0 and move.from_uid == uid:
                return move if self._start_move(move, call.pid) else None
        return None

    def _start_move(self, move: ForkMove, pid: int) -> bool:
        try:
            move.files = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
            move.pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        move.pid = pid
        self._selector.register(move.pidfd, selectors.EVENT_READ, lambda: self._on_process_exit(move))
        return True

    def _on_process_exit(self, move: ForkMove) -> None:
        # The move may have ended before this was noticed.
        if move in self._moves:
            self._end(move, error="the fork died during its move")

    def _answer_outsider(self, listener: int, call: _seccomp.SeccompNotification) -> None:
        """Refuse changes of identity outside a move, except setting the current ids, which is harmless and common."""
        current_ids: set[int] = set(_KEEP_IDS)
        with contextlib.suppress(OSError, KeyError):
            current_ids.add(_processes.real_uid(call.pid))
        count = {"setuid": 1, "setgid": 1, "setreuid": 2, "setregid": 2, "setresuid": 3, "setresgid": 3}.get(
            call.name, 0
        )
        if call.name in ("setrlimit", "prlimit64"):
            _seccomp.let_through(listener, call)
        elif count and all(value in current_ids for value in call.args[:count]):
            _seccomp.succeed(listener, call)
        elif call.name in ("setfsuid", "setfsgid"):
            _seccomp.succeed(listener, call, max(current_ids - set(_KEEP_IDS), default=0))
        else:
            _seccomp.refuse(listener, call)
        now = time.monotonic()
        times = self._answered.setdefault(listener, deque(maxlen=_BURST))
        if len(times) == _BURST and now - times[0] < 1.0 and not self._moves:
            self._selector.unregister(listener)
            self._paused[listener] = now + _PAUSE
        times.append(now)

    def _step(self, listener: int, call: _seccomp.SeccompNotification, move: ForkMove) -> None:
        uid, first_fd = move.to_uid, first_namespace_fd(move.files)
        expected: list[tuple[str, tuple[int | None, ...]]] = [
            ("capset", ()),
            *(("setns", (first_fd + i, kind)) for i, kind in enumerate(_confine.NAMESPACE_KINDS)),
            ("chroot", ()),
            ("setgroups", (0,)),
            ("setresgid", (uid, uid, uid)),
            ("setresuid", (uid, uid, uid)),
            ("capset", ()),
            ("setns", (_CHECK_ME, 0)),
        ]
        name, args = expected[move.step]
        actual = tuple(value & 0xFFFFFFFF for value in call.args[: len(args)])
        if call.name != name or actual != args:
            self._fail(listener, call, move, f"the fork called {call.name}{actual}, not {name}{args}")
            return
        if move.step == 0:
            problem = _not_alone(call.pid, move)
            if problem:
                self._fail(listener, call, move, problem)
                return
            move.processes = resource.prlimit(call.pid, resource.RLIMIT_NPROC)
            resource.prlimit(call.pid, resource.RLIMIT_NPROC, (0, move.processes[1]))
        elif name == "setns" and args[0] != _CHECK_ME:
            offset = move.step - 1
            _seccomp.give_descriptor(listener, call, move.namespaces[offset], first_fd + offset)
        move.step += 1
        if move.step < len(expected):
            _seccomp.let_through(listener, call)
            return
        problem = _inspect(call.pid, move)
        if problem or not _seccomp.still_waiting(listener, call):
            self._fail(listener, call, move, problem or "the fork died")
            return
        resource.prlimit(call.pid, resource.RLIMIT_NPROC, move.processes)
        _cgroups.attach(move.group, call.pid)
        for offset, fd in enumerate(move.channels):
            _seccomp.give_descriptor(listener, call, fd, first_channel_fd(move.files) + offset)
        _seccomp.succeed(listener, call)
        self._end(move, pid=call.pid)

    def _fail(self, listener: int, call: _seccomp.SeccompNotification, move: ForkMove, reason: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(call.pid, signal.SIGKILL)
        _seccomp.refuse(listener, call)
        if move in self._moves:
            self._end(move, error=reason)


def _inspect(pid: int, move: ForkMove) -> str:
    """Return the reason to refuse a process that asks to be checked; empty if there is none."""
    fields = _processes.status_fields(pid)
    uid = str(move.to_uid)
    zero = "0" * 16
    expected = {
        "Uid": [uid] * 4,
        "Gid": [uid] * 4,
        "Groups": [],
        "CapInh": [zero],
        "CapPrm": [f"{_confine.FORK_CAPABILITIES:016x}"],
        "CapEff": [zero],
        "CapBnd": [zero],
        "CapAmb": [zero],
        "NoNewPrivs": ["1"],
        "Seccomp": ["2"],
        "Threads": ["1"],
    }
    for name, values in expected.items():
        if fields[name].split() != values:
            return f"the fork's {name} is {fields[name]!r}"
    for fd, kind in zip(move.namespaces, _confine.NAMESPACE_NAMES, strict=True):
        if os.stat(f"/proc/{pid}/ns/{kind}").st_ino != os.fstat(fd).st_ino:
            return f"the fork is in another {kind} namespace"
    if os.stat(f"/proc/{pid}/ns/pid").st_ino != os.fstat(move.pid_namespace).st_ino:
        return "the fork is in another pid namespace"
    if not os.path.samestat(os.stat(f"/proc/{pid}/root"), os.fstat(move.root)):
        return "the fork has another root"
    return _find_leak(pid)


def _not_alone(pid: int, move: ForkMove) -> str:
    """Return the thing that the moving process shares with another; empty if none. Nothing can be added during the move."""
    if _processes.status_fields(pid)["Threads"] != "1":
        return "the fork has several threads"
    others = _cgroups.processes(move.from_group)
    if others is None:
        others = _processes.pids_in_namespace(move.pid_namespace, (move.from_uid,))
    for other in others:
        if other == pid:
            continue
        for kind, what in (
            (sc.KCMP_VM, "memory"),
            (sc.KCMP_FILES, "descriptors"),
            (sc.KCMP_FS, "its directory"),
        ):
            try:
                if sc.share_resource(pid, other, kind):
                    return f"the fork shares {what} with another process"
            except ProcessLookupError:
                break
    return ""


def _find_leak(pid: int) -> str:
    """Return the first descriptor, directory or shared memory that leads out of the new sandbox; empty if none."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
        fields = [line.split(" ", 3) for line in file]
    mounts = {number for number, *_ in fields}
    devices = {device for _, _, device, _ in fields}
    folder = os.open(f"/proc/{pid}/cwd", os.O_PATH | os.O_CLOEXEC)
    try:
        if _mount_of("self", folder) not in mounts:
            return "the fork's working directory is in another sandbox"
    finally:
        os.close(folder)
    return _foreign_descriptors(pid, mounts) or _foreign_memory(pid, devices)


def _foreign_descriptors(pid: int, mounts: set[str]) -> str:
    for name in os.listdir(f"/proc/{pid}/fd"):
        number = int(name)
        kind = stat.S_IFMT(os.stat(f"/proc/{pid}/fd/{name}").st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR):
            return f"the fork kept descriptor {name}"
        if _mount_of(pid, number) not in mounts:
            return f"the fork kept descriptor {name} of another sandbox"
    return ""


def _mount_of(pid: int | str, fd: int) -> str:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="utf-8") as file:
        return next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")


def _foreign_memory(pid: int, devices: set[str]) -> str:
    for mapping in _mappings.shared_mappings(pid):
        if "{}:{}".format(*mapping.device) not in devices:
            return "the fork kept memory that it shares with another sandbox"
    return ""
