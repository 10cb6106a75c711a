"""Bodies of the sandbox init process's children: builders, pause processes, shells, commands.

Each function runs in a fresh fork and ends in `exec` or `_exit`; none returns to the reactor's loop.
"""

import contextlib
import errno
import os
import platform
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal, NoReturn

from runtimes.process.linux import _cgroups
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine, _namespaces, _wire

_ADDRESS = 0x400000
_HEADERS = 64 + 56
_CODE = {
    # again: mov eax, 34 (pause); syscall; jmp again
    "x86_64": (62, bytes.fromhex("b822000000 0f05 ebf7")),
    # again: x0 to x3 = 0; x8 = 73 (ppoll); svc 0; b again
    "aarch64": (183, bytes.fromhex("000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17")),
}

PAUSE_PATH = "/pause"
"""Path of the pause program in the init process's root."""


def pause_program() -> bytes:
    """Return an ELF executable that only waits: the first process of each fork group's pid namespace.

    It lives as long as the fork group and occupies two pages, where an interpreter would take megabytes. It ignores
    SIGCHLD, so the kernel reaps the orphans.
    """
    machine, code = _CODE[platform.machine()]
    size = _HEADERS + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _ADDRESS + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x10000)
    return identity + header + segment + code


_INIT_UID = 1000
_WORK_MEMORY = 256 << 20
_WORK_CPU_SECONDS = 300
CONTROL_FD = 197
"""Descriptor of a shell session's control socket."""


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Settings that all sandboxes of one runtime share."""

    single_user: bool
    """The host gives only one user id: no live forks, no other users inside."""
    tree_paths: tuple[str, ...]
    """Mount points of the shared trees."""
    preload: tuple[str, ...]
    """Modules that the zygote imports."""
    restrictions: _confine.Restrictions
    """Seccomp filters and Landlock ruleset of every sandboxed process."""
    own_namespaces: list[int]
    """Mount, net, ipc and uts namespaces of the sandbox init process."""
    shell_driver: str
    """Bash program of a shell session."""
    note: str
    """Reason for `single_user` and the remedy; empty otherwise."""
    idle: bool = False
    """Run sandboxes at idle priority."""


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """Namespaces, identity and limits that a process gets."""

    namespaces: list[int]
    """The sandbox's namespaces; empty if the caller is already in them."""
    identity: _confine.Identity
    """User it becomes."""
    group: _cgroups.Cgroup
    """Its cgroup."""
    rlimits: dict[str, int | None]
    """Its resource limits."""


def rlimits(limits: dict[str, Any], *, grouped: bool) -> dict[str, int | None]:
    """Return resource limits; memory is limited per process only where no cgroup limits it."""
    return {
        "NPROC": limits["processes"],
        "FSIZE": limits["file"],
        "NOFILE": limits["open_files"],
        "AS": None if grouped else limits["memory"],
    }


def run_child(body: Callable[[], None]) -> NoReturn:
    """Run a child's body, then exit: with status 70 if it raises."""
    try:
        signal.set_wakeup_fd(-1)
        body()
        os._exit(0)
    except BaseException:
        # Boundary of a forked child: it must never unwind into its parent's loop.
        traceback.print_exc()
    finally:
        os._exit(70)


def build_and_send(
    sock: socket.socket,
    plan: _namespaces.NamespacePlan,
    fill: _namespaces.Fill | None,
    mounts: list[tuple[str, int]],
) -> None:
    """Build a sandbox's namespaces and send their descriptors."""
    try:
        if fill is not None:
            bound_work(None)
        fds = _namespaces.build(plan, fill, mounts)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        _wire.send(sock, _wire.failure(error))
        os._exit(1)
    _wire.send(sock, {}, fds)
    for fd in fds:
        os.close(fd)


def become_pause_process(config: RuntimeConfig) -> NoReturn:
    """Become the pause process of a fork group."""
    _confine.join(config.own_namespaces)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _confine.drop_privileges(_confine.Identity(_INIT_UID, config.single_user))
    _confine.restrict(config.restrictions)
    _confine.close_from(3)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    os.execve(PAUSE_PATH, ["sandbox"], {})


def enter_sandbox(config: RuntimeConfig, placement: ProcessPlacement, *, python: bool = False) -> None:
    """Move the calling process into its sandbox, irrevocably."""
    _cgroups.attach(placement.group)
    _confine.begin_session(idle=config.idle)
    if placement.namespaces:
        _confine.enter(placement.namespaces, placement.identity)
    _confine.set_limits(placement.rlimits)
    _confine.drop_privileges(placement.identity)
    _confine.reset_process_state(idle=config.idle, python=python)
    _confine.restrict(config.restrictions)


def become_shell(config: RuntimeConfig, placement: ProcessPlacement, fds: list[int]) -> NoReturn:
    """Become a shell session. `fds`: control, stdin, stdout, stderr, and a payload with the environment."""
    control, stdin, stdout, stderr, payload = fds
    env = _wire.read_payload(payload)["env"]
    os.dup2(control, CONTROL_FD)
    _confine.set_standard_streams(stdin, stdout, stderr)
    enter_sandbox(config, placement)
    os.chdir("/home/agent")
    _confine.close_from(3, keep=[CONTROL_FD])
    os.execve("/bin/bash", ["bash", "--noprofile", "--norc", "-c", config.shell_driver, "bash"], env)


def become_command(config: RuntimeConfig, placement: ProcessPlacement, fds: list[int]) -> NoReturn:
    """Become the supervisor of one command: run it, then kill the processes that it left.

    `fds`: stdin, stdout, stderr, and a payload with the command.
    """
    request = _wire.read_payload(fds[3])
    _confine.set_standard_streams(*fds[:3])
    enter_sandbox(config, placement)
    _supervise_command(request)


def become_user_command(
    config: RuntimeConfig, placement: ProcessPlacement, fds: list[int], mapper: socket.socket
) -> NoReturn:
    """Supervise a command of another user, in a user namespace that maps only the sandbox's block of ids."""
    request = _wire.read_payload(fds[3])
    _confine.set_standard_streams(*fds[:3])
    _cgroups.attach(placement.group)
    _confine.begin_session(idle=config.idle)
    _confine.join(placement.namespaces)
    _confine.own_next_namespace(placement.identity.uid + _confine.IDS - 1)
    sc.unshare(sc.CLONE_NEWUSER)
    _wire.send(mapper, {"unshared": True})
    if _wire.receive(mapper) is None:
        os._exit(1)
    _confine.enter_root()
    _supervise_as_user(config, placement, request)


def become_user_command_here(config: RuntimeConfig, placement: ProcessPlacement, fds: list[int]) -> NoReturn:
    """Supervise a command of another user, if the caller is already in the sandbox with no more power than its root."""
    request = _wire.read_payload(fds[3])
    _confine.set_standard_streams(*fds[:3])
    _confine.begin_session(idle=config.idle)
    _supervise_as_user(config, placement, request)


def _supervise_as_user(
    config: RuntimeConfig, placement: ProcessPlacement, request: dict[str, Any]
) -> NoReturn:
    _confine.set_limits(placement.rlimits)
    try:
        _become_user(request)
    except (OSError, KeyError, ValueError):
        os.write(2, f"no user {request['user']!r} in the sandbox\n".encode("utf-8", "replace"))
        os._exit(126)
    _confine.reset_process_state(idle=config.idle)
    _confine.restrict(config.restrictions)
    _supervise_command(request)


def _become_user(request: dict[str, Any]) -> None:
    uid, gid, home, shell = _look_up(request["user"])
    _confine.become_user(uid, gid)
    path = request["env"].get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    request["env"].update(PATH=path, USER=request["user"], LOGNAME=request["user"], HOME=home, SHELL=shell)


def _look_up(name: str) -> tuple[int, int, str, str]:
    with open("/etc/passwd", encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split(":")
            if fields[0] == name or fields[2] == name:
                return int(fields[2]), int(fields[3]), fields[5], fields[6]
    raise KeyError(name)


def chown_system_files(uid: int, namespaces: list[int], group: _cgroups.Cgroup) -> None:
    """Make root inside the owner of the system files; done once, before its first command."""
    _cgroups.attach(group)
    bound_work(None)
    _confine.join(namespaces)
    _confine.enter_root()
    root = uid + _confine.IDS - 1
    for top in ("etc", "home", "mnt", "opt", "root", "run", "srv", "tmp", "var", ""):
        path = f"/{top}"
        for folder, _, files in os.walk(path) if top else [(path, [], [])]:
            for file in (folder, *(os.path.join(folder, name) for name in files)):
                # The sandbox's processes keep running and may remove files meanwhile.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    if os.lstat(file).st_uid == 0:
                        os.lchown(file, root, root)


def _supervise_command(request: dict[str, Any]) -> NoReturn:
    _confine.close_from(3)
    # gVisor has no subreapers: there, orphans go to the container's first process.
    with contextlib.suppress(OSError):
        sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)
    # This memory is a copy of a trusted process's and stays closed to the command, which has the same user.
    child = os.fork()
    if child == 0:
        _run_command(request)
    os.closerange(0, 3)
    status = _wait_for(child)
    _end_descendants()
    os._exit(status)


def _run_command(request: dict[str, Any]) -> NoReturn:
    # Not a new session, which would have an autogroup of usual priority.
    os.setpgid(0, 0)
    argv, folder = request["argv"], request["cwd"] or request["env"]["HOME"]
    failed = folder
    try:
        os.chdir(folder)
        failed = argv[0]
        os.execvpe(argv[0], argv, request["env"])
    except OSError as error:
        os.write(2, f"{failed}: {error.strerror}\n".encode("utf-8", "replace"))
        os._exit(127 if error.errno == errno.ENOENT and failed == argv[0] else 126)


def _wait_for(child: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_descendants() -> None:
    while True:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="utf-8") as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:
            return
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def bound_work(file_bytes: int | None) -> None:
    """Limit memory, CPU time and the size of written files of a process that works on a sandbox's files."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        pages = int(file.read().split()[0])
    memory = pages * os.sysconf("SC_PAGE_SIZE") + _WORK_MEMORY
    _confine.set_limits({"AS": memory, "CPU": _WORK_CPU_SECONDS, "FSIZE": file_bytes})


def report_outcome(sock: socket.socket, body: Callable[[], None]) -> None:
    """Run a function and send its outcome."""
    try:
        body()
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        _wire.send(sock, _wire.failure(error))
    else:
        _wire.send(sock, {"done": True})


def with_file(fd: int, mode: Literal["rb", "wb"], body: Callable[[IO[bytes]], None]) -> None:
    """Call a function with a descriptor as a file object."""
    with os.fdopen(os.dup(fd), mode) as file:
        body(file)
