"""The gate: the calls that change identity, watched one by one while a fork moves into its room.

A live interpreter can copy itself, but its copy must go to other namespaces and another user, and only the copy
itself can carry those calls out. So sandboxed interpreters keep four capabilities that count only in the
runtime's user namespace, never effective; raising them, and every call that uses them, stops at this gate. It
opens for one process, for one fixed sequence of calls with fixed arguments, in a move that the server asked for:

1. `capset`: raise the four. Before, the gate sees to it that the caller has one thread, shares nothing with another
   process, and can start none while it moves: nobody else ever has the four raised.
2. `setns` to each of the room's namespaces, in order, and `chroot`. The gate places each descriptor into the stopped
   caller's table just then, so that it leads nowhere else.
3. `setgroups(0)`, `setresgid(uid x3)`, `setresuid(uid x3)` to the room's user.
4. `capset`: lower the four again.
5. `setns(-1)`, which means "check me". While the caller is stopped in it the gate reads from `/proc` who and where it is,
   that it is alone, that it shares no memory, no descriptor table and no open file with the old room; then it
   places the descriptors of the new session's channels and lets it go.

Whatever else a caller tries fails with EPERM and, in a move, ends the process. The code of the fork is the
sandbox's own, so it is treated as hostile throughout.
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


def namespace_place(limit: int) -> int:
    """Where the room's four namespace descriptors appear in the table of a process that may open so many files."""
    return min(limit, 1024) - 24


def channel_place(limit: int) -> int:
    """Where the new session's control, stdout and stderr appear."""
    return min(limit, 1024) - 16


@dataclass(slots=True, eq=False)
class Move:
    """One fork on its way from room to room."""

    from_uid: int
    """The user it leaves."""
    to_uid: int
    """The user it becomes."""
    from_group: _cgroups.Group
    """The cgroup that it leaves."""
    family: int
    """The family's pid namespace."""
    namespaces: list[int]
    """The room that it goes to."""
    root: int
    """The room's root."""
    group: _cgroups.Group
    """The cgroup that it goes to."""
    channels: list[int]
    """The new session's control, stdout and stderr."""
    done: socket.socket
    """Told how it ended."""
    pid: int = 0
    """Who moves; the first who asks."""
    step: int = 0
    """How far it is."""
    files: int = 0
    """How many files it may open."""
    watch: int = -1
    """Tells when the mover dies."""
    processes: tuple[int, int] = (0, 0)
    """Its own process limit, given back at the end: while it moves it may start none."""


class Gate:
    """Answers the gated calls of all sandboxes."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._moves: list[Move] = []
        self._answered: dict[int, deque[float]] = {}
        self._paused: dict[int, float] = {}

    def add(self, listener: int) -> None:
        """Watch another listener; it is closed when the last process behind it is gone."""
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._answer(listener))

    def allow(self, move: Move) -> None:
        """Open the gate for one move."""
        self._moves.append(move)

    def forget(self, move: Move) -> None:
        """Close it again."""
        if move in self._moves:
            self._end(move)

    def _end(self, move: Move, **outcome: object) -> None:
        """A move is over; say how, if it ended by itself."""
        self._moves.remove(move)
        if move.watch >= 0:
            self._selector.unregister(move.watch)
            os.close(move.watch)
        if outcome:
            _wire.send(move.done, outcome)
        move.done.close()

    def cancel(self, to_uid: int) -> None:
        """Break off a move to a room that is being given up."""
        for move in [one for one in self._moves if one.to_uid == to_uid]:
            if move.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(move.pid, signal.SIGKILL)
            self._end(move)

    def pause(self) -> float | None:
        """How long the loop may sleep before this must be called again.

        A sandbox that floods the gate waits for its answers, so that the others need not.
        """
        now = time.monotonic()
        for listener in [one for one, until in self._paused.items() if until <= now]:
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
            self._fail(listener, call, move, f"the fork broke off: {error}")

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

    def _move_of(self, call: _seccomp.GatedCall) -> Move | None:
        for move in self._moves:
            if move.pid == call.pid:
                return move
        if call.name != "capset":
            return None
        try:
            uid = int(_processes.status_fields(call.pid)["Uid"].split()[0])
        except OSError:
            return None
        for move in self._moves:
            if move.pid == 0 and move.from_uid == uid:
                return move if self._begin(move, call.pid) else None
        return None

    def _begin(self, move: Move, pid: int) -> bool:
        try:
            move.files = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
            move.watch = os.pidfd_open(pid)
        except OSError:
            return False
        move.pid = pid
        self._selector.register(move.watch, selectors.EVENT_READ, lambda: self._mover_died(move))
        return True

    def _mover_died(self, move: Move) -> None:
        # It may have been over already when this was noticed.
        if move in self._moves:
            self._end(move, error="the fork died on its way")

    def _answer_outsider(self, listener: int, call: _seccomp.GatedCall) -> None:
        """Nobody may change identity; setting the ids that one has anyway is harmless and common."""
        own: set[int] = set(_KEEP_IDS)
        with contextlib.suppress(OSError, KeyError):
            own.add(int(_processes.status_fields(call.pid)["Uid"].split()[0]))
        count = {"setuid": 1, "setgid": 1, "setreuid": 2, "setregid": 2, "setresuid": 3, "setresgid": 3}.get(
            call.name, 0
        )
        if call.name in ("setrlimit", "prlimit64"):
            _seccomp.let_through(listener, call)
        elif count and all(value in own for value in call.args[:count]):
            _seccomp.succeed(listener, call)
        elif call.name in ("setfsuid", "setfsgid"):
            _seccomp.succeed(listener, call, max(own - set(_KEEP_IDS), default=0))
        else:
            _seccomp.refuse(listener, call)
        now = time.monotonic()
        times = self._answered.setdefault(listener, deque(maxlen=_BURST))
        if len(times) == _BURST and now - times[0] < 1.0 and not self._moves:
            self._selector.unregister(listener)
            self._paused[listener] = now + _PAUSE
        times.append(now)

    def _step(self, listener: int, call: _seccomp.GatedCall, move: Move) -> None:
        uid, place = move.to_uid, namespace_place(move.files)
        expected: list[tuple[str, tuple[int | None, ...]]] = [
            ("capset", ()),
            *(("setns", (place + i, kind)) for i, kind in enumerate(_confine.NAMESPACE_KINDS)),
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
            _seccomp.give_descriptor(listener, call, move.namespaces[offset], place + offset)
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
            _seccomp.give_descriptor(listener, call, fd, channel_place(move.files) + offset)
        _seccomp.succeed(listener, call)
        self._end(move, pid=call.pid)

    def _fail(self, listener: int, call: _seccomp.GatedCall, move: Move, reason: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(call.pid, signal.SIGKILL)
        _seccomp.refuse(listener, call)
        if move in self._moves:
            self._end(move, error=reason)


def _inspect(pid: int, move: Move) -> str:
    """Why a process that asks to be let go must not be; empty if it may."""
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
    for fd, kind in zip(move.namespaces, ("mnt", "net", "ipc", "uts"), strict=True):
        if os.stat(f"/proc/{pid}/ns/{kind}").st_ino != os.fstat(fd).st_ino:
            return f"the fork is in another {kind} namespace"
    if os.stat(f"/proc/{pid}/ns/pid").st_ino != os.fstat(move.family).st_ino:
        return "the fork is in another pid namespace"
    if not os.path.samestat(os.stat(f"/proc/{pid}/root"), os.fstat(move.root)):
        return "the fork has another root"
    return _ways_back(pid)


def _not_alone(pid: int, move: Move) -> str:
    """What a mover shares with others; empty if nothing. While it moves nothing can be added."""
    if _processes.status_fields(pid)["Threads"] != "1":
        return "the fork has several threads"
    others = _cgroups.processes(move.from_group)
    if others is None:
        others = _processes.inside(move.family, (move.from_uid,))
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


def _ways_back(pid: int) -> str:
    """Every open descriptor, the working directory and all shared memory must be of the new room.

    Anything else would lead back to the old one.
    """
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
        fields = [line.split(" ", 3) for line in file]
    mounts = {number for number, *_ in fields}
    devices = {device for _, _, device, _ in fields}
    folder = os.open(f"/proc/{pid}/cwd", os.O_PATH | os.O_CLOEXEC)
    try:
        if _mount_of("self", folder) not in mounts:
            return "the fork's working directory is in another room"
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
            return f"the fork kept descriptor {name} of another room"
    return ""


def _mount_of(pid: int | str, fd: int) -> str:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="utf-8") as file:
        return next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")


def _foreign_memory(pid: int, devices: set[str]) -> str:
    for mapping in _mappings.shared_mappings(pid):
        if "{}:{}".format(*mapping.device) not in devices:
            return "the fork kept memory that it shares with another room"
    return ""
