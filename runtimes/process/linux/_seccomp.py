"""Seccomp filter of sandboxed processes, and the supervisor's side of seccomp notifications.

The filter refuses every call that configures the machine. With `notify=True`, calls that change identity are not refused
but put to a supervisor, which allows them to one process only: one that is being forked into a new sandbox, and only
during that move.
"""

import ctypes
import errno
import fcntl
import os
import platform
import stat
import struct
from typing import Final, NamedTuple

from runtimes.process.linux import _syscalls as sc

_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000
_NOTIFY: Final = 0x7FC00000

_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture never had it.
_REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
_NOTIFIED: Final[dict[str, tuple[int, int]]] = {
    "capset": (126, 91),
    "chroot": (161, 51),
    "setfsgid": (123, 152),
    "setfsuid": (122, 151),
    "setgid": (106, 144),
    "setgroups": (116, 159),
    "setns": (308, 268),
    "setregid": (114, 143),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setreuid": (113, 145),
    "setuid": (105, 146),
}
_LIMIT_SETTERS: Final[dict[str, tuple[int, int]]] = {
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
}
"""Notified if they change the process limit, which must not be raised during the move of a fork."""
_CHECKED: Final[dict[str, tuple[int | None, int]]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    **_LIMIT_SETTERS,
    "setns": (308, 268),
    "socket": (41, 198),
    "unshare": (272, 97),
}
_FIRST_UNKNOWN: Final = 470
_OTHER_NAMESPACES: Final = (457, 458)
"""`statmount` and `listmount`, which inspect other mount namespaces."""
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
_SOCKET_FAMILIES: Final = (1, 2, 10)
_NETLINK: Final = 16
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_NAMESPACE_IOCTLS = 0xB700
_RLIMIT_NPROC = 6
_CLONE_VM, _CLONE_FS, _CLONE_FILES, _CLONE_VFORK, _CLONE_THREAD = 0x100, 0x200, 0x400, 0x4000, 0x10000

_LD_W_ABS, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06


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

    def answer_if_at_least(self, value: int, action: int) -> None:
        self._put(_JGE, value, 0, 1)
        self.answer(action)

    def answer_if_any_bit(self, bits: int, action: int) -> None:
        self._put(_JSET, bits, 0, 1)
        self.answer(action)

    def when_number(self, number: int, block: "_BpfProgram") -> None:
        """Run a block, which must end in an answer, for one system call."""
        self._put(_JEQ, number, 0, len(block._code) // 8)
        self._code += block._code

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
    for family in _SOCKET_FAMILIES:
        block.answer_if_equal(family, _ALLOW)
    block.answer_unless_equal(_NETLINK, _refuse(errno.EAFNOSUPPORT))
    block.load_argument(2)
    block.answer_unless_equal(0, _refuse(errno.EAFNOSUPPORT))
    block.answer(_ALLOW)
    return block


def _ioctl_block() -> _BpfProgram:
    block = _argument_check(1)
    block.answer_if_equal(_TIOCSTI, _refuse())
    block.answer_if_equal(_TIOCLINUX, _refuse())
    block.mask(0xFF00)
    block.answer_if_equal(_NAMESPACE_IOCTLS, _refuse())
    block.answer(_ALLOW)
    return block


def _answer_block(action: int) -> _BpfProgram:
    block = _BpfProgram()
    block.answer(action)
    return block


def build_filter(*, notify: bool) -> bytes:
    """Return the filter's BPF code for this machine's architecture.

    :raises OSError: on an architecture without a filter.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}")
    column = list(_ARCHITECTURES).index(machine)
    program = _BpfProgram()
    program.load_architecture()
    program.answer_unless_equal(_ARCHITECTURES[machine], _KILL)
    program.load_number()
    program.answer_if_at_least(_FIRST_UNKNOWN, _refuse(errno.ENOSYS))
    if notify:
        for numbers in _NOTIFIED.values():
            program.answer_if_equal(numbers[column], _NOTIFY)
    for refused in _REFUSED.values():
        number = refused[column]
        if number is not None:
            program.answer_if_equal(number, _refuse())
    for number in _OTHER_NAMESPACES:
        program.answer_if_equal(number, _refuse(errno.ENOSYS))
    limit_action = _NOTIFY if notify else _ALLOW
    blocks = {
        "prlimit64": _prlimit_block(limit_action),
        "setrlimit": _setrlimit_block(limit_action),
        "clone": _clone_block(),
        "unshare": _flags_block(),
        "clone3": _answer_block(_refuse(errno.ENOSYS)),
        "setns": _answer_block(_refuse()),
        "socket": _socket_block(),
        "ioctl": _ioctl_block(),
        "mknod": _node_block(1),
        "mknodat": _node_block(2),
    }
    for name, block in blocks.items():
        number = _CHECKED[name][column]
        if number is not None and number >= 0:
            program.when_number(number, block)
    program.answer(_ALLOW)
    return program.code()


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
_COLUMN: Final = list(_ARCHITECTURES).index(platform.machine()) if platform.machine() in _ARCHITECTURES else 0
_NAMES: Final = {numbers[_COLUMN]: name for name, numbers in (_NOTIFIED | _LIMIT_SETTERS).items()}


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
