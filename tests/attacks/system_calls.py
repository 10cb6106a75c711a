"""System calls and escapes: each must be refused with an errno that a program can handle."""

from tests.attacks._table import Attack, attacks

CATEGORY = "system calls"
REFUSED = "(EPERM|ENOSYS)"

# name: (x86_64, aarch64; -1 where the architecture lacks it), arguments. tests/runtimes/process/escapes.py has the others.
_CALLS: dict[str, tuple[tuple[int, int], str]] = {
    "_sysctl": ((156, -1), "bytes(64)"),
    "bpf: load a program": ((321, 280), "5, bytes(128), 128"),
    "bpf: create a map": ((321, 280), "0, struct.pack('=IIII', 1, 4, 4, 1) + bytes(112), 128"),
    "clock_adjtime": ((305, 266), "0, bytes(208)"),
    "create_module": ((174, -1), "b'evil', 4096"),
    "fsconfig": ((431, 431), "0, 6, 0, 0, 0"),
    "fsmount": ((432, 432), "0, 0, 0"),
    "fspick": ((433, 433), "-100, b'/', 0"),
    "get_kernel_syms": ((177, -1), "0"),
    "io_uring_enter": ((426, 426), "0, 1, 1, 0, 0, 0"),
    "io_uring_register": ((427, 427), "0, 0, 0, 0"),
    "ioperm": ((173, -1), "0x70, 2, 1"),
    "iopl": ((172, -1), "3"),
    "kexec_file_load": ((320, 294), "0, 0, 0, 0, 0"),
    "keyctl: join the session keyring": ((250, 219), "1, 0"),
    "keyctl: read a key": ((250, 219), "11, -3, bytes(64), 64"),
    "keyctl: the user keyring": ((250, 219), "0, -4, 1"),
    "lookup_dcookie": ((212, 18), "0, bytes(64), 64"),
    "memory of another process by madvise": ((440, 440), "0, bytes(16), 1, 4, 0"),
    "migrate_pages": ((256, 238), "1, 8, bytes(8), bytes(8)"),
    "modify_ldt": ((154, -1), "1, bytes(16), 16"),
    "mount: bind the root": ((165, 40), "b'/', b'/tmp', 0, 4096, 0"),
    "mount: remount writable": ((165, 40), "0, b'/usr', 0, 32, 0"),
    "mount: make shared": ((165, 40), "0, b'/', 0, 1 << 20, 0"),
    "mount: move": ((165, 40), "b'/proc', b'/tmp', 0, 8192, 0"),
    "mount: overlay": (
        (165, 40),
        "b'o', b'/tmp', b'overlay', 0, b'lowerdir=/usr,upperdir=/tmp,workdir=/tmp'",
    ),
    "mount: another proc": ((165, 40), "b'proc', b'/tmp', b'proc', 0, 0"),
    "mount: devpts": ((165, 40), "b'devpts', b'/tmp', b'devpts', 0, b'ptmxmode=666'"),
    "mount: cgroups": ((165, 40), "b'c', b'/tmp', b'cgroup2', 0, 0"),
    "mount: sysfs": ((165, 40), "b's', b'/tmp', b'sysfs', 0, 0"),
    "mount: fuse": ((165, 40), "b'f', b'/tmp', b'fuse', 0, b'fd=0,rootmode=40000,user_id=0,group_id=0'"),
    "move_pages": ((279, 239), "1, 0, 0, 0, 0, 0"),
    "nfsservctl": ((180, 42), "0, 0, 0"),
    "open_tree: clone": ((428, 428), "-100, b'/', 0x8001"),
    "open_tree_attr": ((467, 467), "-100, b'/', 1, bytes(32), 32"),
    "perf_event_open: of the machine": ((298, 241), "bytes(128), -1, 0, -1, 0"),
    "personality: no random addresses": ((135, 92), "0x40000"),
    "personality: readable means executable": ((135, 92), "0x400000"),
    "ptrace: seize the first process": ((101, 117), "0x4206, 1, 0, 0"),
    "ptrace: let oneself be traced": ((101, 117), "0, 0, 0, 0"),
    "query_module": ((178, -1), "b'', 1, bytes(64), 64, 0"),
    "quotactl_fd": ((443, 443), "0, 0x800001, 0, 0"),
    "set the host's time zone": ((164, 170), "0, bytes(8)"),
    "swapoff": ((168, 225), "b'/tmp/swap'"),
    "sysfs": ((139, -1), "3"),
    "uselib": ((134, -1), "b'/usr/lib/libc.so'"),
    "userfaultfd: user mode only": ((323, 282), "1"),
    "ustat": ((136, -1), "0, bytes(32)"),
    "vhangup": ((153, 58), ""),
}
_NAMESPACES = {
    "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000,
    "net": 0x40000000, "time": 0x80,
}  # fmt: skip
_UNSHARE, _CLONE, _SETNS = "number(272, 97)", "number(56, 220)", "number(308, 268)"
_FORK = "0, 0, 0, 0"
_PRCTL: dict[str, tuple[str, str]] = {
    "move its own program text": ("35, 1, 4096, 0, 0", "EPERM"),
    "replace the program behind its own name": ("35, 13, 0, 0, 0", "EPERM"),
    "drop a capability of the bounding set": ("24, 0, 0, 0, 0", "(EPERM|EINVAL)"),
    "set the securebits": ("28, 0x2F, 0, 0, 0", "EPERM"),
    "raise an ambient capability": ("47, 2, 21, 0, 0", "EPERM"),
    "allow privileges again": ("38, 0, 0, 0, 0", "EINVAL"),
    "become an IO flusher": ("57, 1, 0, 0, 0", "EPERM"),
    "leave the strict mode of the filter": ("22, 0, 0, 0, 0", "EINVAL"),
    "get a listener for the filter": ("22, 2, 0, 0, 0", "EFAULT"),
}
_EVIL_IOCTLS = {
    "type into a terminal": ("0x5412", "EPERM"),
    "type into a terminal, with upper bits set": ("0x5412 | 1 << 32", "EPERM"),
    "paste into a console": ("0x541C", "EPERM"),
    "take over the console": ("0x541D", "(EPERM|EACCES|ENOTTY|EIO|EBUSY)"),
    "hang up somebody's terminal": ("0x5437", "(EPERM|ENOTTY)"),
}


def _call(name: str, numbers: tuple[int, int], arguments: str) -> tuple[str, str, str]:
    return f"make the system call {name}", f"call(number{numbers}, {arguments})", REFUSED


_TABLE: dict[str, tuple[str, str, str]] = {
    **{name: _call(name, numbers, arguments) for name, (numbers, arguments) in _CALLS.items()},
    **{
        f"unshare {name}": (f"create a {name} namespace", f"call({_UNSHARE}, {flag})", REFUSED)
        for name, flag in _NAMESPACES.items()
    },
    **{
        f"clone {name}": (f"start a process in a {name} namespace", f"call({_CLONE}, {flag | 17}, {_FORK})", REFUSED)
        for name, flag in _NAMESPACES.items()
        if name != "time"
    },
    **{
        f"setns {name}": (
            f"enter the {name} namespace of the first process",
            f"call({_SETNS}, os.open('/proc/1/ns/{name}', 0), 0)",
            "(EPERM|EACCES|ENOENT)",
        )
        for name in ("mnt", "net", "pid", "user", "ipc", "uts", "cgroup", "time")
    },
    **{
        f"setns own {name}": (
            f"enter its own {name} namespace again to gain power",
            f"call({_SETNS}, os.open('/proc/self/ns/{name}', 0), 0)",
            REFUSED,
        )
        for name in ("mnt", "user", "pid")
    },
    **{f"prctl: {name}": (name, f"prctl({arguments})", seen) for name, (arguments, seen) in _PRCTL.items()},
    **{
        f"ioctl: {name}": (name, f"main, other = os.openpty()\ncall(number(16, 29), other, {code}, b'x')", seen)
        for name, (code, seen) in _EVIL_IOCTLS.items()
    },
    "setns by a pidfd": ("enter all namespaces of a process", f"call({_SETNS}, os.pidfd_open(os.getppid()), 0x20000)", "(EPERM|ESRCH)"),
    "clone: share memory": ("share memory with a process that the broker does not know", f"call({_CLONE}, 0x100 | 17, {_FORK})", REFUSED),
    "clone: share descriptors": ("share descriptors with another process", f"call({_CLONE}, 0x400 | 17, {_FORK})", REFUSED),
    "clone: share the root": ("share root and working directory with another process", f"call({_CLONE}, 0x200 | 17, {_FORK})", REFUSED),
    "clone: into a cgroup": ("leave the cgroup by clone3", "call(435, struct.pack('=11Q', 0x200000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 3), 88)", "ENOSYS"),
    "clone: upper bits": ("hide a flag above 32 bits", f"call({_CLONE}, 0x10000000 | 17 | 1 << 40, {_FORK})", REFUSED),
    "unshare: upper bits": ("hide a flag above 32 bits", f"call({_UNSHARE}, 0x10000000 | 1 << 40)", REFUSED),
    "number: unknown call": ("use a call newer than the filter", "call(480, 0, 0, 0), call(1000, 0), call(0x3FFFFFFF, 0)", r"\('ENOSYS', 'ENOSYS', 'ENOSYS'\)"),
    "number: x32": ("use the x32 form of mount and ptrace", "call(0x40000000 | 165, 0, 0, 0, 0, 0), call(0x40000000 | 521, 0, 1, 0, 0)", r"\('ENOSYS', 'ENOSYS'\)"),
    "number: 32-bit": (
        "make a 32-bit call past the filter",
        "page = mmap.mmap(-1, 4096, prot=7)\npage.write(bytes.fromhex('b814000000cd80c3'))\nhere = ctypes.addressof(ctypes.c_char.from_buffer(page))\nctypes.CFUNCTYPE(ctypes.c_int)(here)() if os.uname().machine == 'x86_64' else os.kill(os.getpid(), 31)",
        "signal 31",
    ),
    "seccomp: permissive filter": ("replace the filter by one that allows everything", "code = struct.pack('=HBBI', 6, 0, 0, 0x7FFF0000)\nkept = ctypes.create_string_buffer(code)\nmade = call(number(317, 277), 1, 0, struct.pack('@HxxxxxxP', 1, ctypes.addressof(kept)))\ncall(number(165, 40), b'n', b'/tmp', b'tmpfs', 0, 0)", REFUSED),
    "seccomp: trace": ("answer its own calls as a tracer", "code = struct.pack('=HBBI', 6, 0, 0, 0x7FF00000)\nkept = ctypes.create_string_buffer(code)\ncall(number(317, 277), 1, 0, struct.pack('@HxxxxxxP', 1, ctypes.addressof(kept)))\ncall(number(165, 40), b'n', b'/tmp', b'tmpfs', 0, 0)", "(ENOSYS|EPERM|signal 11)"),
    "capset: the power of a fork": ("raise the capabilities of a fork outside a move", "call(number(126, 91), struct.pack('=Ii', 0x20080522, 0), struct.pack('=6I', 0x2400C0, 0x2400C0, 0, 0, 0, 0))", "EPERM"),
    "capset: everything": ("raise all capabilities", "call(number(126, 91), struct.pack('=Ii', 0x20080522, 0), b'\\xff' * 24)", "EPERM"),
    "setuid: each way": ("become root in every way", "[attempt(f, *a) for f, a in ((os.setuid, [0]), (os.seteuid, [0]), (os.setreuid, [0, 0]), (os.setresuid, [0, 0, 0]))]", r"\[('(EPERM|EINVAL)',? ?){4}\]"),
    "setgid: each way": ("join the group of root in every way", "[attempt(f, *a) for f, a in ((os.setgid, [0]), (os.setegid, [0]), (os.setregid, [0, 0]), (os.setresgid, [0, 0, 0]), (os.setgroups, [[0]]))]", r"\[('(EPERM|EINVAL)',? ?){5}\]"),
    "setfsuid": ("open files as root", "call(number(122, 151), 0)\nlibc.setfsuid(-1) == os.getuid()", "True"),
    "setfsgid": ("open files as the group root", "call(number(123, 152), 0)\nlibc.setfsgid(-1) == os.getgid()", "True"),
    "schedule by deadline": ("take the CPU by a deadline", "call(number(314, 274), 0, struct.pack('=IIQiIQQQ', 48, 6, 0, 0, 0, 10**7, 10**8, 10**8), 0)", "EPERM"),
    "schedule in real time": ("take the CPU in real time", "attempt(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(99))", "EPERM"),
    "read from the disk in real time": ("take the disk in real time", "call(number(251, 30), 1, 0, 1 << 13)", "EPERM"),
    "raise a limit": ("raise a hard limit by prlimit64", "call(number(302, 261), 0, 7, struct.pack('=QQ', 1 << 30, 1 << 30), 0)", "EPERM"),
    "raise the limit of processes": ("raise the hard limit of processes", "call(number(302, 261), 0, 6, struct.pack('=QQ', 1 << 30, 1 << 30), 0)", "EPERM"),
    "limits of its parent": ("change the limits of another process", "call(number(302, 261), os.getppid(), 6, struct.pack('=QQ', 1, 1), 0)", "(EPERM|ESRCH)"),
    "memory that nobody can read": ("hide memory from the broker's checks", "call(447, 0)", "(ENOSYS|EPERM|done)"),
}  # fmt: skip

ATTACKS: list[Attack] = attacks(CATEGORY, _TABLE)
