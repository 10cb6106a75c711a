"""Table of attempts to escape from a sandbox, tried by every kind of user.

Each has a language, code and the exact expected error, so that a misspelt attempt does not count as contained. In the
code, `$NAME` stands for a resource of the host (see `escape_run.Host`). Attempts with `outside` are also tried on the
host, where they must succeed.
"""

import platform
from dataclasses import dataclass
from typing import Literal

PRELUDE = """
import ctypes, errno, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error))
    return "done"
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as sock:
        sock.settimeout(5)
        return attempt(sock.connect, address)
"""
"""Helpers for Python attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt."""

    name: str
    """Description of the attempt."""
    language: Literal["bash", "python"]
    """Session that runs the code."""
    code: str
    """Python: an expression, or lines that end with one. bash: commands whose output and errors count."""
    seen: str
    """Pattern that the whole observation must match."""
    outside: str | None = None
    """Observation of the same code on the host, if it is harmless to try there."""


_ARCHITECTURE = 0 if platform.machine() == "x86_64" else 1
_NEWUSER, _NEWNS = 0x10000000, 0x20000

# name: (x86_64, aarch64), arguments. Each could escape from the sandbox or change the machine.
_CALLS: dict[str, tuple[tuple[int, int], str]] = {
    "acct": ((163, 89), "b'/tmp/acct'"),
    "add_key": ((248, 217), "b'user', b'k', b'v', 1, -3"),
    "adjtimex": ((159, 171), "bytes(208)"),
    "bpf": ((321, 280), "0, bytes(72), 72"),
    "capset": ((126, 91), "b'\\x22\\x05\\x08\\x20' + bytes(4), b'\\xff' * 24"),
    "chroot": ((161, 51), "b'/tmp'"),
    "clock_settime": ((227, 112), "0, bytes(16)"),
    "clone into a user namespace": ((56, 220), f"{_NEWUSER | 17}, 0, 0, 0, 0"),
    "clone sharing memory": ((56, 220), f"{0x100 | 17}, 0, 0, 0, 0"),
    "delete_module": ((176, 106), "b'nothing', 0"),
    "fanotify_init": ((300, 262), "0, 0"),
    "finit_module": ((313, 273), "0, b'', 0"),
    "fsopen": ((430, 430), "b'tmpfs', 0"),
    "init_module": ((175, 105), "bytes(8), 8, b''"),
    "io_uring_setup": ((425, 425), "4, bytes(120)"),
    "kcmp": ((312, 272), "os.getpid(), os.getpid(), 1, 0, 0"),
    "kexec_load": ((246, 104), "0, 0, 0, 0"),
    "keyctl": ((250, 219), "0, -3, 1"),
    "mount": ((165, 40), "b'none', b'/tmp', b'tmpfs', 0, 0"),
    "mount_setattr": ((442, 442), "-100, b'/', 0, bytes(32), 32"),
    "move_mount": ((429, 429), "-100, b'/tmp', -100, b'/mnt', 0"),
    "name_to_handle_at": ((303, 264), "-100, b'/', bytes(136), bytes(8), 0"),
    "open_by_handle_at": ((304, 265), "-100, b'\\x80' + bytes(135), 0"),
    "open_tree": ((428, 428), "-100, b'/', 1"),
    "perf_event_open": ((298, 241), "bytes(128), 0, -1, -1, 0"),
    "personality": ((135, 92), "0x40000"),
    "pidfd_getfd": ((438, 438), "0, 0, 0"),
    "pivot_root": ((155, 41), "b'/tmp', b'/tmp'"),
    "process_vm_readv": ((310, 270), "1, bytes(16), 1, bytes(16), 1, 0"),
    "process_vm_writev": ((311, 271), "1, bytes(16), 1, bytes(16), 1, 0"),
    "ptrace": ((101, 117), "16, 1, 0, 0"),
    "quotactl": ((179, 60), "0x800001, b'none', 0, 0"),
    "reboot": ((169, 142), "0xfee1dead, 672274793, 0, 0"),
    "request_key": ((249, 218), "b'user', b'k', 0, 0"),
    "setdomainname": ((171, 162), "b'evil', 4"),
    "sethostname": ((170, 161), "b'evil', 4"),
    "setns": ((308, 268), "os.open('/proc/self/ns/net', 0), 0"),
    "settimeofday": ((164, 170), "bytes(16), 0"),
    "swapon": ((167, 224), "b'/tmp/swap', 0"),
    "syslog": ((103, 116), "3, bytes(64), 64"),
    "umount2": ((166, 39), "b'/proc', 2"),
    "unshare a mount namespace": ((272, 97), f"{_NEWNS}"),
    "unshare a user namespace": ((272, 97), f"{_NEWUSER}"),
    "userfaultfd": ((323, 282), "1"),
}
# Calls unknown to the filter or that inspect other mount namespaces: they fail as if they did not exist.
_MISSING = {
    "clone3": (435, "bytes(88), 88"),
    "io_setup": (206 if _ARCHITECTURE == 0 else 0, "65536, bytes(8)"),
    "listmount": (458, "bytes(64), bytes(64), 8, 0"),
    "statmount": (457, "bytes(64), bytes(64), 64, 0"),
}


def dangerous_calls() -> list[int]:
    """Return the numbers of the calls that are refused with any arguments."""
    checked = ("capset", "clone into a user namespace", "clone sharing memory")
    refused = [numbers[_ARCHITECTURE] for name, (numbers, _) in _CALLS.items() if name not in checked]
    return [*refused, *(number for number, _ in _MISSING.values())]


def _calls() -> list[Attempt]:
    table = [
        (name, numbers[_ARCHITECTURE], arguments, "EPERM") for name, (numbers, arguments) in _CALLS.items()
    ]
    table += [(name, number, arguments, "ENOSYS") for name, (number, arguments) in _MISSING.items()]
    return [
        Attempt(name=f"call {name}", language="python", code=f"call({number}, {arguments})", seen=f"'{seen}'")
        for name, number, arguments, seen in table
    ]


_UNREADABLE = {
    "$MARKER": "ENOENT",
    "../../../../../../../..$MARKER": "ENOENT",
    "/proc/1/root$MARKER": "ENOENT|EACCES",
    "$HOME_MARKER": "ENOENT|EACCES",
    "$SOURCE/runtimes/__init__.py": "ENOENT|EACCES",
    "/etc/sudoers": "ENOENT",
    "/proc/1/environ": "ENOENT|EACCES",
    "/proc/1/mem": "ENOENT|EACCES",
    "/proc/kcore": "ENOENT",
    "/proc/kallsyms": "ENOENT",
    "/proc/sysrq-trigger": "ENOENT",
    "/proc/sys/kernel/core_pattern": "ENOENT",
    "/sys/kernel/uevent_helper": "ENOENT",
    "/sys/fs/cgroup/release_agent": "ENOENT",
    "/dev/mem": "ENOENT",
    "/dev/kmsg": "ENOENT",
    "/dev/vda": "ENOENT",
    "/dev/tty": "ENXIO|ENOENT",
    "/var/run/docker.sock": "ENOENT",
}
_UNWRITABLE = ("/usr/evil", "/etc/evil", "/dev/evil", "/proc/evil", "$PREFIX/evil", "$HOST_FOLDER/evil")
_ERRORS = {
    "EACCES": "Permission denied",
    "EBUSY": "busy",
    "ENOENT": "No such file or directory",
    "ENXIO": "No such device or address",
    "EROFS": "Read-only file system",
}


def _in_words(errors: str) -> str:
    return "|".join(_ERRORS[error] for error in errors.split("|"))


def _files() -> list[Attempt]:
    attempts: list[Attempt] = []
    for path, errors in _UNREADABLE.items():
        outside = "done" if path == "$MARKER" else None
        attempts += [
            Attempt(name=f"read {path}", language="python", code=f"attempt(lambda: open('{path}', 'rb').read(64))", seen=f"'({errors})'", outside=outside and f"'{outside}'"),
            Attempt(name=f"read {path}", language="bash", code=f"head -c 64 '{path}'", seen=f".*({_in_words(errors)})", outside=outside and "host secret"),
        ]  # fmt: skip
    for path in _UNWRITABLE:
        errors = "EACCES|EROFS|ENOENT"
        outside = "'done'" if path.startswith("$HOST_FOLDER") else None
        attempts += [
            Attempt(name=f"write {path}", language="python", code=f"attempt(lambda: open('{path}', 'xb').close())", seen=f"'({errors})'", outside=outside),
            Attempt(name=f"write {path}", language="bash", code=f"echo x >> '{path}'", seen=f".*({_in_words(errors)})", outside=outside and ""),
        ]  # fmt: skip
    return attempts


def _python(**attempts: tuple[str, str]) -> list[Attempt]:
    return [Attempt(name=name.replace("_", " "), language="python", code=code, seen=seen) for name, (code, seen) in attempts.items()]  # fmt: skip


def _bash(**attempts: tuple[str, str]) -> list[Attempt]:
    return [Attempt(name=name.replace("_", " "), language="bash", code=code, seen=seen) for name, (code, seen) in attempts.items()]  # fmt: skip


_FILES = [
    *_python(
        make_a_character_device=("attempt(os.mknod, 'null', 0o666 | stat.S_IFCHR, os.makedev(1, 3))", "'EPERM'"),
        make_a_block_device=("attempt(os.mknod, 'disk', 0o666 | stat.S_IFBLK, os.makedev(254, 0))", "'EPERM'"),
        make_a_whiteout=("attempt(os.mknod, 'gone', stat.S_IFCHR, 0)", "'EPERM'"),
        make_an_attribute_of_the_overlay=("attempt(os.setxattr, '.', 'trusted.overlay.opaque', b'y')", "'(EPERM|ENOTSUP)'"),
        hold_descriptors_of_the_server=("sorted((n, os.readlink(f'/proc/self/fd/{n}').split(':')[0]) for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}'))", r"\[\('0', '/dev/null'\), \('1', 'pipe'\), \('2', 'pipe'\), \('3', 'socket'\)\]"),
        follow_a_link_of_its_own_out=("os.symlink('/../../..$MARKER', 'way-out')\nattempt(open, 'way-out')", "'ENOENT'"),
        import_the_server=("import importlib.util\n[importlib.util.find_spec(n) for n in ('runtimes', 'agentflow', 'mcp_servers')]", r"\[None, None, None\]"),
    ),
    *_bash(
        make_devices=("mknod null c 1 3; mknod disk b 254 0", r"(mknod: .*: Operation not permitted\n?){2}"),
        see_devices=("ls /dev | tr '\\n' ' '", "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "),
        hold_descriptors_of_the_server=("sh -c 'for n in $(seq 0 300); do readlink /proc/$$/fd/$n; done' | cut -d: -f1 | tr '\\n' ' '", "/dev/null pipe pipe "),
        break_out_of_a_chroot=("/usr/sbin/chroot /tmp true", ".*Operation not permitted"),
        mount_over_something=("mount -t tmpfs none /tmp", ".*(must be superuser|permission denied|Operation not permitted).*"),
        remove_the_system=("rm -rf /usr/bin/env /bin/bash 2>&1 | grep -c -e 'Read-only' -e denied", "2"),
        link_to_what_is_not_its_own=("ln /usr/bin/env own", ".*Invalid cross-device link"),
        read_the_passwords_of_the_host=("cat /etc/shadow", "(root:[*].*|.*(No such file|denied).*)"),
    ),
]  # fmt: skip

_PROCESSES = [
    *_python(
        see_other_processes=("all(open(f'/proc/{p}/status').read().split('Uid:')[1].split()[0] == str(os.getuid()) or p == '1' for p in os.listdir('/proc') if p.isdigit())", "True"),
        see_many_processes=("sum(p.isdigit() for p in os.listdir('/proc')) < 10", "True"),
        kill_its_supervisor=("attempt(os.kill, 1, 9), attempt(os.kill, 1, 0)", r"\('(EPERM|done)', '(EPERM|done)'\)"),
        kill_a_process_of_the_host=("attempt(os.kill, $PID, 9)", "'ESRCH'"),
        type_into_a_terminal=("import fcntl, pty\nmain, other = pty.openpty()\nattempt(fcntl.ioctl, other, 0x5412, b'x')", "'EPERM'"),
        ask_for_other_namespaces=("import fcntl\nfd = os.open('/proc/self/ns/mnt', 0)\n[attempt(fcntl.ioctl, fd, 0xB700 + n) for n in (1, 2, 10, 11, 12)]", r"\['EPERM', 'EPERM', 'EPERM', 'EPERM', 'EPERM'\]"),
        run_in_real_time=("attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))", "'EPERM'"),
        be_more_important=("attempt(os.setpriority, os.PRIO_PROCESS, 0, -5)", "'(EACCES|EPERM)'"),
        raise_a_limit=("import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))\n    seen = 'done'\nexcept ValueError as error:\n    seen = str(error)\nseen", "'not allowed to raise maximum limit'"),
        limit_somebody_else=("call(302, 1, 6, bytes(16), 0) if os.uname().machine == 'x86_64' else 'EPERM'", "'EPERM'"),
        touch_a_group_of_limits=("os.path.exists('/sys/fs/cgroup'), os.listdir('/sys')", r"\(False, \[\]\)"),
    ),
    *_bash(
        kill_its_supervisor=("kill -9 1; echo still here", "(.*Operation not permitted\n)?still here"),
        enter_other_namespaces=("nsenter -t 1 -m -n true", ".*(denied|not permitted|No such file).*"),
        trace_another_process=("cat /proc/1/maps /proc/1/stack", "(.*(denied|No such file).*\n?){2}"),
    ),
]  # fmt: skip

_PRIVILEGE = [
    *_python(
        become_root=("attempt(os.setuid, 0), attempt(os.setresuid, 0, 0, 0), attempt(os.setgid, 0), attempt(os.setgroups, [0])", r"\('(EPERM|EINVAL)', '(EPERM|EINVAL)', '(EPERM|EINVAL)', 'EPERM'\)"),
        have_power=("{k: v for k, v in (line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if line.startswith(('CapEff', 'CapBnd', 'CapAmb', 'CapInh', 'NoNewPrivs', 'Seccomp:')))}", r"\{'CapInh': '0{16}', 'CapEff': '0{16}', 'CapBnd': '0{16}', 'CapAmb': '0{16}', 'NoNewPrivs': '1', 'Seccomp': '2'\}"),
        keep_power_in_a_program=("import subprocess\nsubprocess.run(['grep', '-h', 'Cap[PEBA]', '/proc/self/status'], capture_output=True, text=True).stdout.split()[1::2]", r"\['0{16}', '0{16}', '0{16}', '0{16}'\]"),
        raise_ambient_power=("[libc.prctl(47, 2, n, 0, 0) for n in (6, 7, 18, 21)]", r"\[-1, -1, -1, -1\]"),
    ),
    *_bash(
        have_power=("grep -h -e Cap -e NoNewPrivs /proc/self/status | cut -f2 | sort -u | tr '\\n' ' '", "0{16} 1 "),
        use_a_setuid_program=("cp /bin/bash ./b; chmod u+s ./b; ./b -p -c 'let same=EUID==UID; echo $same'; find /usr/bin -perm -4000 -exec {} --version \\; >/dev/null 2>&1; su root -c id", "1\n.*(su: .*|not found|may not run).*"),
        make_a_user_namespace=("unshare -Ur id", ".*Operation not permitted"),
        change_the_machine=("hostname evil; date -s 2001-01-01; dmesg; sysctl -w kernel.hostname=evil", ".*(must be root|not permitted).*"),
        hide_a_second_architecture=("setarch i386 true", ".*Operation not permitted"),
    ),
]  # fmt: skip

_NETWORK = [
    Attempt(name="reach the host's loopback", language="python", code="connect(socket.AF_INET, ('127.0.0.1', $PORT))", seen="'ECONNREFUSED'", outside="'done'"),
    Attempt(name="reach the host's loopback", language="bash", code="echo > /dev/tcp/127.0.0.1/$PORT", seen=".*Connection refused.*", outside=""),
    Attempt(name="reach an abstract socket", language="python", code="connect(socket.AF_UNIX, '\\0$ABSTRACT')", seen="'ECONNREFUSED'", outside="'done'"),
    Attempt(name="reach a socket in a folder", language="python", code="connect(socket.AF_UNIX, '$SOCKET')", seen="'ENOENT'", outside="'done'"),
    *_python(
        reach_IPv6=("connect(socket.AF_INET6, ('::1', $PORT)), connect(socket.AF_INET6, ('2001:4860:4860::8888', 53))", r"\('ECONNREFUSED', '(ENETUNREACH|EADDRNOTAVAIL)'\)"),
        reach_the_metadata_service=("connect(socket.AF_INET, ('169.254.169.254', 80))", "'ENETUNREACH'"),
        send_datagrams=("connect(socket.AF_INET, ('192.0.2.1', 53), socket.SOCK_DGRAM)", "'ENETUNREACH'"),
        resolve_a_name=("try:\n    socket.getaddrinfo('example.org', 80)\n    seen = 'done'\nexcept socket.gaierror as error:\n    seen = 'unknown'\nseen", "'unknown'"),
        open_raw_sockets=("attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1), attempt(socket.socket, 17, socket.SOCK_RAW), attempt(socket.socket, 38, 5), attempt(socket.socket, 40, 1), attempt(socket.socket, 16, 3, 9)", r"\('EPERM', 'EAFNOSUPPORT', 'EAFNOSUPPORT', 'EAFNOSUPPORT', 'EAFNOSUPPORT'\)"),
        open_sockets_of_other_protocols=("[attempt(socket.socket, *a) for a in ((2, 1, 262), (10, 1, 262), (2, 2, 136), (2, 1, 132), (2, 2, 115), (2, 2, 1), (2, 6, 33), (2, 1, 256))]", r"\['EPROTONOSUPPORT', 'EPROTONOSUPPORT', 'EPROTONOSUPPORT', 'EPROTONOSUPPORT', 'EPROTONOSUPPORT', 'EPROTONOSUPPORT', 'ESOCKTNOSUPPORT', 'EPROTONOSUPPORT'\]"),
        turn_a_socket_into_a_tunnel=("[attempt(socket.socket(2, kind).setsockopt, level, option, value) for kind, level, option, value in ((1, 6, 31, b'tls'), (2, 17, 100, 3), (2, 17, 100, 2), (1, 1, 26, bytes(16)))]", r"\['ENOPROTOOPT', 'ENOPROTOOPT', 'ENOPROTOOPT', 'ENOPROTOOPT'\]"),
        change_interfaces=("with socket.socket(16, 3, 0) as link:\n    link.send(bytes.fromhex('30000000100005000100000000000000000000000100000000000000ffffffff') + bytes(16))\n    seen = errno.errorcode[-int.from_bytes(link.recv(999)[16:20], 'little', signed=True)]\nseen", "'(EPERM|EACCES)'"),
        see_interfaces=("socket.if_nameindex()", r"\[\(1, 'lo'\)\]"),
        use_its_own_loopback=("server = socket.create_server(('127.0.0.1', 0))\nconnect(socket.AF_INET, server.getsockname())", "'done'"),
    ),
    *_bash(
        reach_the_metadata_service=("echo > /dev/tcp/169.254.169.254/80", ".*Network is unreachable.*"),
        see_sockets_of_the_host=("ls -A /run /var/run /tmp/.X11-unix 2>&1; ls -d $SOCKET", ".*No such file.*"),
    ),
]  # fmt: skip

ATTEMPTS: list[Attempt] = [*_files(), *_FILES, *_PROCESSES, *_PRIVILEGE, *_NETWORK, *_calls()]
"""All attempts."""
