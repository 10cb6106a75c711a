"""Seccomp filter of sandboxed processes, and the supervisor's side of seccomp notifications.

The filter allows the calls of `_call_table.ALLOWED`, checks the arguments of some more, and refuses the rest, also
those of newer kernels. With `notify=True`, calls that change identity are not refused
but put to a supervisor, which allows them to one process only: one that is being forked into a new sandbox, and only
during that move.
"""

import ctypes
import errno
import fcntl
import os
import platform
import socket
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from runtimes.process.linux import _syscalls as sc
from runtimes.process.linux._call_table import (
    ALLOWED,
    CHECKED,
    LIMIT_SETTERS,
    NOTIFIED,
    REFUSED,
    WITHOUT_EFFECT,
)

_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000
_NOTIFY: Final = 0x7FC00000

_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_NAMESPACES: Final = (
    sc.CLONE_NEWNS
    | sc.CLONE_NEWCGROUP
    | sc.CLONE_NEWUTS
    | sc.CLONE_NEWIPC
    | sc.CLONE_NEWUSER
    | sc.CLONE_NEWPID
    | sc.CLONE_NEWNET
    | sc.CLONE_NEWTIME
)
_SOCKET_TYPE: Final = 0xF
_STREAM, _DATAGRAM, _RAW, _PACKETS = 1, 2, 3, 5
_PROTOCOLS: Final = {_STREAM: (0, 6), _DATAGRAM: (0, 17)}
"""Of the Internet families: TCP and UDP. No MPTCP, UDP-Lite, SCTP, L2TP, DCCP or SMC."""
_REFUSED_OPTIONS: Final = {1: (26, 50, 51, 52), 6: (31,), 17: (100,)}
"""Socket options that reach other parts of the kernel: BPF programs (SOL_SOCKET), upper-layer protocols (SOL_TCP) and
encapsulations such as L2TP and IPsec (SOL_UDP)."""
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_NAMESPACE_IOCTLS = 0xB700
_RLIMIT_NPROC = 6
_CLONE_VM, _CLONE_FS, _CLONE_FILES, _CLONE_VFORK, _CLONE_THREAD = 0x100, 0x200, 0x400, 0x4000, 0x10000

_LD_W_ABS, _JA, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06
_MAX_JUMP: Final = 255


class _BpfProgram:
    """A classic BPF program over `struct seccomp_data`."""

    def __init__(self) -> None:
        self._code = bytearray()

    def _put(self, code: int, k: int, yes: int = 0, no: int = 0) -> None:
        self._code += struct.pack("=HBBI", code, yes, no, k & 0xFFFFFFFF)

    def load_number(self) -> None:
        self._put(_LD_W_ABS, 0)

    def load_architecture(self) -> None:
        self._put(_LD_W_ABS, 4)

    def load_argument(self, index: int, *, upper: bool = False) -> None:
        self._put(_LD_W_ABS, 16 + 8 * index + (4 if upper else 0))

    def mask(self, bits: int) -> None:
        self._put(_AND, bits)

    def answer(self, action: int) -> None:
        self._put(_RET, action)

    def answer_if_equal(self, value: int, action: int) -> None:
        self._put(_JEQ, value, 0, 1)
        self.answer(action)

    def answer_unless_equal(self, value: int, action: int) -> None:
        self._put(_JEQ, value, 1, 0)
        self.answer(action)

    def answer_if_any_bit(self, bits: int, action: int) -> None:
        self._put(_JSET, bits, 0, 1)
        self.answer(action)

    def run_if_equal(self, value: int, block: "_BpfProgram") -> None:
        """Run a block, which must end in an answer, for one value."""
        self._put(_JEQ, value, 0, len(block))
        self._code += block._code

    def choose(self, cases: Sequence[tuple[int, "_BpfProgram"]]) -> None:
        """Run the block of the last case whose value is not above the loaded one; the first case starts at 0."""
        if len(cases) == 1:
            self._code += cases[0][1]._code
            return
        half = len(cases) // 2
        low = _BpfProgram()
        low.choose(cases[:half])
        if len(low) <= _MAX_JUMP:
            self._put(_JGE, cases[half][0], len(low), 0)
        else:
            self._put(_JGE, cases[half][0], 0, 1)
            self._put(_JA, len(low))
        self._code += low._code
        self.choose(cases[half:])

    def __len__(self) -> int:
        return len(self._code) // 8

    def code(self) -> bytes:
        return bytes(self._code)


def _refuse(number: int = errno.EPERM) -> int:
    return _ERRNO | number


def _argument_check(index: int) -> _BpfProgram:
    block = _BpfProgram()
    block.load_argument(index)
    return block


def _flags_block() -> _BpfProgram:
    block = _argument_check(0)
    block.answer_if_any_bit(_NAMESPACES, _refuse())
    block.answer(_ALLOW)
    return block


def _clone_block() -> _BpfProgram:
    block = _argument_check(0)
    block.answer_if_any_bit(_NAMESPACES, _refuse())
    # Processes that share memory or descriptors without being threads: no program needs them, and they could
    # interfere with the move of a fork.
    block.answer_if_any_bit(_CLONE_THREAD | _CLONE_VFORK, _ALLOW)
    block.answer_if_any_bit(_CLONE_VM | _CLONE_FS | _CLONE_FILES, _refuse())
    block.answer(_ALLOW)
    return block


def _setrlimit_block(action: int) -> _BpfProgram:
    block = _argument_check(0)
    block.answer_if_equal(_RLIMIT_NPROC, action)
    block.answer(_ALLOW)
    return block


def _prlimit_block(action: int) -> _BpfProgram:
    block = _argument_check(1)
    block.answer_unless_equal(_RLIMIT_NPROC, _ALLOW)
    block.load_argument(0)
    block.answer_unless_equal(0, _refuse())
    block.load_argument(2)
    block.answer_unless_equal(0, action)
    block.load_argument(2, upper=True)
    block.answer_unless_equal(0, action)
    block.answer(_ALLOW)
    return block


def _node_block(mode_argument: int) -> _BpfProgram:
    block = _argument_check(mode_argument)
    block.mask(stat.S_IFMT(0o177777))
    block.answer_if_equal(stat.S_IFCHR, _refuse())
    block.answer_if_equal(stat.S_IFBLK, _refuse())
    block.answer(_ALLOW)
    return block


def _socket_block() -> _BpfProgram:
    block = _argument_check(0)
    unsupported = _refuse(errno.ESOCKTNOSUPPORT)
    block.run_if_equal(
        socket.AF_UNIX, _type_block(dict.fromkeys((_STREAM, _DATAGRAM, _RAW, _PACKETS), _ALLOW), unsupported)
    )
    internet = _internet_block()
    for family in (socket.AF_INET, socket.AF_INET6):
        block.run_if_equal(family, internet)
    # Interfaces and addresses of the own network namespace, which libc asks for; changes need capabilities.
    block.answer_unless_equal(socket.AF_NETLINK, _refuse(errno.EAFNOSUPPORT))
    block.load_argument(2)
    block.answer_unless_equal(socket.NETLINK_ROUTE, _refuse(errno.EAFNOSUPPORT))
    block.answer(_ALLOW)
    return block


def _type_block(actions: Mapping[int, int], otherwise: int) -> _BpfProgram:
    block = _argument_check(1)
    block.mask(_SOCKET_TYPE)
    for kind, action in actions.items():
        block.answer_if_equal(kind, action)
    block.answer(otherwise)
    return block


def _internet_block() -> _BpfProgram:
    block = _argument_check(1)
    block.mask(_SOCKET_TYPE)
    for kind, protocols in _PROTOCOLS.items():
        inner = _argument_check(2)
        for protocol in protocols:
            inner.answer_if_equal(protocol, _ALLOW)
        inner.answer(_refuse(errno.EPROTONOSUPPORT))
        block.run_if_equal(kind, inner)
    block.answer_if_equal(_RAW, _refuse())
    block.answer(_refuse(errno.ESOCKTNOSUPPORT))
    return block


def _socketpair_block() -> _BpfProgram:
    block = _argument_check(0)
    block.answer_if_equal(socket.AF_UNIX, _ALLOW)
    block.answer(_refuse(errno.EOPNOTSUPP))
    return block


def _setsockopt_block(*, counted: bool) -> _BpfProgram:
    block = _argument_check(1)
    for level, options in _REFUSED_OPTIONS.items():
        inner = _argument_check(2)
        if level == socket.SOL_SOCKET and not counted:
            # The kernel adjusts these sizes anyway, so no program expects the one that it asks for.
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                inner.answer_if_equal(option, _refuse(0))
        for option in options:
            inner.answer_if_equal(option, _refuse(errno.ENOPROTOOPT))
        inner.answer(_ALLOW)
        block.run_if_equal(level, inner)
    block.answer(_ALLOW)
    return block


def _ioctl_block() -> _BpfProgram:
    block = _argument_check(1)
    for request in (_TIOCSTI, _TIOCLINUX, _TIOCSETD):
        block.answer_if_equal(request, _refuse())
    block.mask(0xFF00)
    block.answer_if_equal(_NAMESPACE_IOCTLS, _refuse())
    block.answer(_ALLOW)
    return block


def _answer_block(action: int) -> _BpfProgram:
    block = _BpfProgram()
    block.answer(action)
    return block


def build_filter(*, notify: bool, counted: bool = True) -> bytes:
    """Return the filter's BPF code for this machine's architecture.

    :param counted: a cgroup counts all memory. Otherwise `memfd_create` is missing, as in old kernels, and sockets keep their
        first buffers: both hold memory outside the limited address space of a process.
    :raises OSError: on an architecture without a filter.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}")
    program = _BpfProgram()
    program.load_architecture()
    program.answer_unless_equal(_ARCHITECTURES[machine], _KILL)
    program.load_number()
    program.choose(_ranges(_decisions(notify=notify, counted=counted)))
    return program.code()


def build_allowlist(names: Iterable[str], error: int, *, threads: bool) -> bytes:
    """Return a filter that fails all other calls with this error number; calls that this machine lacks are skipped.

    :param threads: allow also to start threads, but no processes.
    :raises OSError: on an architecture without a filter.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}")
    program = _BpfProgram()
    program.load_architecture()
    program.answer_unless_equal(_ARCHITECTURES[machine], _KILL)
    program.load_number()
    for name in names:
        if name in ALLOWED:
            program.answer_if_equal(ALLOWED[name], _ALLOW)
    if threads:
        block = _argument_check(0)
        block.answer_if_any_bit(_CLONE_THREAD, _ALLOW)
        block.answer(_refuse(error))
        program.run_if_equal(CHECKED["clone"], block)
        # Its arguments are in memory, out of the filter's reach; the C library then uses clone.
        program.answer_if_equal(CHECKED["clone3"], _refuse(errno.ENOSYS))
    program.answer(_refuse(error))
    return program.code()


def _decisions(*, notify: bool, counted: bool) -> dict[int, _BpfProgram]:
    """Return the block of each call that does not fail with ENOSYS."""
    blocks: dict[int, _BpfProgram] = {}
    for names, action in (
        (ALLOWED, _ALLOW),
        (REFUSED, _refuse()),
        (WITHOUT_EFFECT, _refuse(0)),
    ):
        blocks |= dict.fromkeys(names.values(), _answer_block(action))
    limit_action = _NOTIFY if notify else _ALLOW
    checks = {
        "prlimit64": _prlimit_block(limit_action),
        "setrlimit": _setrlimit_block(limit_action),
        "clone": _clone_block(),
        "unshare": _flags_block(),
        "clone3": _answer_block(_refuse(errno.ENOSYS)),
        "setns": _answer_block(_refuse()),
        "setsockopt": _setsockopt_block(counted=counted),
        "socket": _socket_block(),
        "socketpair": _socketpair_block(),
        "ioctl": _ioctl_block(),
        "mknod": _node_block(1),
        "mknodat": _node_block(2),
    }
    blocks |= {number: checks[name] for name, number in CHECKED.items()}
    if not counted:
        del blocks[ALLOWED["memfd_create"]]
    if notify:
        blocks |= dict.fromkeys(NOTIFIED.values(), _answer_block(_NOTIFY))
    return blocks


def _ranges(blocks: Mapping[int, _BpfProgram]) -> list[tuple[int, _BpfProgram]]:
    """Return the first number of each range of calls with the same block, in order."""
    missing = _answer_block(_refuse(errno.ENOSYS))
    ranges: list[tuple[int, _BpfProgram]] = []
    for number in range(max(blocks) + 2):
        block = blocks.get(number, missing)
        if not ranges or ranges[-1][1].code() != block.code():
            ranges.append((number, block))
    return ranges


def install(code: bytes, *, listener: bool = False) -> int:
    """Install a filter on the calling thread, irrevocably; with `listener`, return the notify descriptor."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    return sc.syscall("seccomp", sc.SYS["seccomp"], 1, 8 if listener else 0, program)


_NOTIF = struct.Struct("=QIIiIQ6Q")
_RECV = 0xC0000000 | _NOTIF.size << 16 | 0x21 << 8
_SEND = 0xC0000000 | 24 << 16 | 0x21 << 8 | 1
_VALID = 0x40000000 | 8 << 16 | 0x21 << 8 | 2
_ADD_FD = 0x40000000 | 24 << 16 | 0x21 << 8 | 3
_NAMES: Final = {number: name for name, number in (NOTIFIED | LIMIT_SETTERS).items()}


class SeccompNotification(NamedTuple):
    """System call that waits for the supervisor's decision; its thread is stopped meanwhile."""

    id: int
    """Kernel's id of the notification."""
    pid: int
    """Pid of the caller in the supervisor's pid namespace."""
    name: str
    """Name of the call."""
    args: tuple[int, ...]
    """Six arguments; scalar ones can't change any more."""


def next_call(listener: int) -> SeccompNotification | None:
    """Receive the next notification, or `None` if its caller is gone."""
    buffer = bytearray(_NOTIF.size)
    try:
        fcntl.ioctl(listener, _RECV, buffer, True)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EAGAIN, errno.EINTR):
            return None
        raise
    notif_id, pid, _, number, _, _, *args = _NOTIF.unpack(buffer)
    return SeccompNotification(notif_id, pid, _NAMES.get(number, str(number)), tuple(args))


def _ioctl(listener: int, request: int, argument: bytes) -> None:
    while True:
        try:
            fcntl.ioctl(listener, request, argument)
        except InterruptedError:
            # Interrupted by SIGCHLD: the request may not have been carried out.
            continue
        return


def _reply(listener: int, call: SeccompNotification, value: int, error: int, flags: int) -> None:
    try:
        _ioctl(listener, _SEND, struct.pack("=QqiI", call.id, value, error, flags))
    except OSError as failure:
        if failure.errno != errno.ENOENT:
            raise


def let_through(listener: int, call: SeccompNotification) -> None:
    """Let the kernel execute the call."""
    _reply(listener, call, 0, 0, 1)


def succeed(listener: int, call: SeccompNotification, value: int = 0) -> None:
    """Return a value from the call without executing it."""
    _reply(listener, call, value, 0, 0)


def refuse(listener: int, call: SeccompNotification) -> None:
    """Fail the call with EPERM."""
    _reply(listener, call, 0, -errno.EPERM, 0)


def still_waiting(listener: int, call: SeccompNotification) -> bool:
    """Return whether the caller is still waiting, so that its pid was not reused."""
    try:
        _ioctl(listener, _VALID, struct.pack("=Q", call.id))
    except OSError:
        return False
    return True


def give_descriptor(listener: int, call: SeccompNotification, fd: int, at: int) -> None:
    """Place a copy of a descriptor in the caller's table at the given number."""
    _ioctl(listener, _ADD_FD, struct.pack("=QIIII", call.id, 1, fd, at, os.O_CLOEXEC))
