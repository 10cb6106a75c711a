"""Children of the mason: builders, the family's first process, shells, commands.

Each function here runs in a fresh fork and ends in `exec` or `_exit`; none returns to the mason's loop.
"""

import contextlib
import errno
import os
import signal
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, NoReturn, cast

from runtimes.process.linux import _cgroups
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine, _namespaces, _sleeper, _wire

_INIT_UID = 1000
CONTROL_FD = 197
"""Where a shell session finds its control socket."""


@dataclass(frozen=True, slots=True)
class World:
    """What is the same for every sandbox of one runtime."""

    single_user: bool
    """There is no range of user ids: one user, no live forks."""
    places: tuple[str, ...]
    """Where the shared trees go."""
    preload: tuple[str, ...]
    """Modules that the template interpreter imports."""
    locks: _confine.Locks
    """What binds every sandboxed process."""
    own_namespaces: list[int]
    """The mason's own mount, net, ipc and uts namespaces."""
    shell_driver: str
    """The shell session's program."""
    note: str
    """What is missing for a range of ids, and how to get it."""
    idle: bool = True
    """Sandboxes get the processor only when nobody else wants it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a process goes, and as whom."""

    namespaces: list[int]
    """The room's namespaces; none where the caller is in it already."""
    identity: _confine.Identity
    """Who it becomes."""
    group: _cgroups.Group
    """Its cgroup."""
    rlimits: dict[str, int | None]
    """Its resource limits."""


def rlimits(limits: dict[str, Any], *, grouped: bool) -> dict[str, int | None]:
    """Resource limits from an instance's limits; memory by process only where no cgroup counts it."""
    return {
        "NPROC": limits["processes"],
        "FSIZE": limits["file"],
        "NOFILE": limits["open_files"],
        "AS": None if grouped else limits["memory"],
    }


def run_child(body: Callable[[], None]) -> NoReturn:
    """Run a child's body and end the process, whatever happens."""
    try:
        signal.set_wakeup_fd(-1)
        body()
        os._exit(0)
    except BaseException:
        # The boundary of a forked child: it must never unwind into its parent's loop.
        traceback.print_exc()
    finally:
        os._exit(70)


def build_and_tell(
    sock: socket.socket,
    plan: _namespaces.RoomPlan,
    fill: _namespaces.Fill | None,
    mounts: list[tuple[str, int]],
) -> None:
    """Build a room and send its descriptors."""
    try:
        fds = _namespaces.build(plan, fill, mounts)
    except (OSError, ValueError, RecursionError) as error:
        _wire.send(sock, _wire.failure(error))
        os._exit(1)
    _wire.send(sock, {}, fds)
    for fd in fds:
        os.close(fd)


def sleep_as_init(world: World) -> NoReturn:
    """Be a family's first process: hold the pid namespace, reap, do nothing else."""
    _confine.join(world.own_namespaces)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if not world.single_user:
        _confine.become(_confine.Identity(_INIT_UID, False))
    else:
        sc.drop_bounding_set()
        sc.capset(effective=0, permitted=0)
    _confine.lock(world.locks)
    _confine.close_from(3)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    os.execve(_sleeper.PLACE, ["sandbox"], {})


def place(world: World, placement: Placement, *, python: bool = False) -> None:
    """Move the calling process into its sandbox for good."""
    _cgroups.attach(placement.group)
    _confine.begin_session(idle=world.idle)
    if placement.namespaces:
        _confine.enter(placement.namespaces, placement.identity)
    _confine.set_limits(placement.rlimits)
    _confine.become(placement.identity)
    _confine.settle(idle=world.idle, python=python)
    _confine.lock(world.locks)


def become_shell(world: World, placement: Placement, fds: list[int]) -> NoReturn:
    """Become a shell session. `fds`: control, stdin, stdout, stderr, and a letter with the environment."""
    control, stdin, stdout, stderr, letter = fds
    env = _wire.open_letter(letter)["env"]
    os.dup2(control, CONTROL_FD)
    _confine.take_standard_streams(stdin, stdout, stderr)
    place(world, placement)
    os.chdir("/home/agent")
    _confine.close_from(3, keep=[CONTROL_FD])
    os.execve("/bin/bash", ["bash", "--noprofile", "--norc", "-c", world.shell_driver, "bash"], env)


def become_command(world: World, placement: Placement, fds: list[int]) -> NoReturn:
    """Become the keeper of one command: run it, then end all that it left.

    `fds`: stdin, stdout, stderr, and a letter with the command.
    """
    request = _wire.open_letter(fds[3])
    _confine.take_standard_streams(*fds[:3])
    place(world, placement)
    _keep_command(request)


def become_user_command(
    world: World, placement: Placement, fds: list[int], mapper: socket.socket
) -> NoReturn:
    """The same, as another user inside: in a user namespace that maps the sandbox's own block of ids only."""
    request = _wire.open_letter(fds[3])
    _confine.take_standard_streams(*fds[:3])
    _cgroups.attach(placement.group)
    _confine.join(placement.namespaces)
    sc.unshare(sc.CLONE_NEWUSER)
    _wire.send(mapper, {"unshared": True})
    if _wire.receive(mapper) is None:
        os._exit(1)
    _confine.enter_root()
    os.setsid()
    _confine.set_limits(placement.rlimits)
    try:
        _become_user(request)
    except (OSError, KeyError, ValueError):
        _refuse_user(request)
    _confine.settle(idle=world.idle)
    _confine.lock(world.locks)
    _keep_command(request)


def become_user_command_here(world: World, placement: Placement, fds: list[int]) -> NoReturn:
    """The same, where the caller is in the sandbox already and has no more power than root inside may have."""
    request = _wire.open_letter(fds[3])
    _confine.take_standard_streams(*fds[:3])
    _confine.begin_session(idle=world.idle)
    _confine.set_limits(placement.rlimits)
    try:
        _become_user(request)
    except (OSError, KeyError, ValueError):
        _refuse_user(request)
    _confine.settle(idle=world.idle)
    _confine.lock(world.locks)
    _keep_command(request)


def _become_user(request: dict[str, Any]) -> None:
    uid, gid, home, shell = _look_up(request["user"])
    _confine.become_user(uid, gid)
    path = request["env"].get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    request["env"].update(PATH=path, USER=request["user"], LOGNAME=request["user"], HOME=home, SHELL=shell)


def _refuse_user(request: dict[str, Any]) -> NoReturn:
    os.write(2, f"no user {request['user']!r} inside\n".encode("utf-8", "replace"))
    os._exit(126)


def _look_up(name: str) -> tuple[int, int, str, str]:
    with open("/etc/passwd", encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split(":")
            if fields[0] == name or fields[2] == name:
                return int(fields[2]), int(fields[3]), fields[5], fields[6]
    raise KeyError(name)


def give_root_its_files(uid: int, namespaces: list[int], group: _cgroups.Group) -> None:
    """Make root inside the owner of what a root owns: once, before its first command."""
    _cgroups.attach(group)
    _confine.join(namespaces)
    _confine.enter_root()
    root = uid + _confine.IDS - 1
    for top in ("etc", "home", "mnt", "opt", "root", "run", "srv", "tmp", "var", ""):
        path = f"/{top}"
        for folder, _, files in os.walk(path) if top else [(path, [], [])]:
            for one in (folder, *(os.path.join(folder, name) for name in files)):
                # The sandbox's own processes go on meanwhile, and remove what was there.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    if os.lstat(one).st_uid == 0:
                        os.lchown(one, root, root)


def _keep_command(request: dict[str, Any]) -> NoReturn:
    _confine.close_from(3)
    # gVisor's kernel has no such thing: what the command leaves behind is its container's first process's.
    with contextlib.suppress(OSError):
        sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)
    # The keeper's memory is a copy of a trusted process's: the command, which has the same user, must not read it.
    sc.prctl(sc.PR_SET_DUMPABLE, 0)
    child = os.fork()
    if child == 0:
        _run_command(request)
    os.closerange(0, 3)
    status = _wait_for(child)
    _end_descendants()
    os._exit(status)


def _run_command(request: dict[str, Any]) -> NoReturn:
    os.setsid()
    argv, folder = cast("list[str]", request["argv"]), request["cwd"] or request["env"]["HOME"]
    at = folder
    try:
        os.chdir(folder)
        at = argv[0]
        os.execvpe(argv[0], argv, request["env"])
    except OSError as error:
        os.write(2, f"{at}: {error.strerror}\n".encode("utf-8", "replace"))
        os._exit(127 if error.errno == errno.ENOENT and at == argv[0] else 126)


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


def tell_outcome(sock: socket.socket, body: Callable[[], None]) -> None:
    """Do something and send how it went."""
    try:
        body()
    except (OSError, ValueError, RecursionError) as error:
        _wire.send(sock, _wire.failure(error))
    else:
        _wire.send(sock, {"done": True})


def with_file(fd: int, mode: str, body: Callable[[IO[bytes]], None]) -> None:
    """Do something with a descriptor as a file object."""
    with cast("IO[bytes]", os.fdopen(os.dup(fd), mode)) as file:
        body(file)
