"""The keeper: a container's first process. Starts what the server asks for, looks after files, reaps.

It is to a container what the sandbox init process is to the process runtime's sandboxes, and answers the same requests on the
same kind of socket. It is root inside with a few capabilities; what it starts for the agent has none, and is bound by the
same system-call filter as in a process sandbox, beneath the engine's own. When the server goes away, however that
happens, the keeper ends, and the container with it.
"""

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import IO

from runtimes.docker.inside._places import HOME, SAVED_FOLDERS, SOCKET
from runtimes.process.linux import _cgroups, _processes, _seccomp
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine, _copy, _spawn, _wire
from runtimes.process.trusted._reactor import PendingRequest, Reactor, SandboxRequestError
from runtimes.process.trusted._requests import FileRequests, ProcessRequests
from runtimes.process.trusted._sandboxes import ForkGroup, SandboxRecord

_EXPENDABLE = "500"


class _Here(Reactor):
    """A reactor whose children stay in this container."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__(server)
        self.helpers: set[int] = set()
        """Children that do the server's work on files."""

    def fork(self, body: Callable[[], None]) -> int:
        """Fork a helper."""
        pid = super().fork(body)
        self.helpers.add(pid)
        return pid

    def fork_into(self, namespace: int | None, body: Callable[[], None]) -> int:
        """Fork what becomes the agent's: the first to be killed when memory runs out."""

        def expendable() -> None:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(_EXPENDABLE)
            body()

        return super().fork(expendable)


class _ContainerProcessRequests(ProcessRequests):
    """The processes of a container: all but the keeper and its helpers."""

    def __init__(self, reactor: _Here, config: _spawn.RuntimeConfig) -> None:
        super().__init__(reactor, config, None)
        self._here = reactor

    def _placement(self, sandbox: SandboxRecord) -> _spawn.ProcessPlacement:
        limits = _spawn.rlimits(sandbox.limits, grouped=sandbox.group.memory >= 0)
        # The kernel counts a user's processes over all containers; the engine counts the container's.
        limits["NPROC"] = None
        return _spawn.ProcessPlacement([], _confine.Identity(sandbox.uid, False), sandbox.group, limits)

    def _command_as_user(
        self, sandbox: SandboxRecord, message: _wire.WireMessage, placement: _spawn.ProcessPlacement
    ) -> PendingRequest:
        pid = self._here.fork_into(
            None, lambda: _spawn.become_user_command_here(self._config, placement, message.fds)
        )
        sandbox.session_pids.add(pid)
        self._here.reply(message, pid=pid)
        yield from ()

    def python(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Start a Python session."""
        from runtimes.docker.inside import _python  # who only runs commands need not wait for it

        placement = self._placement(sandbox)
        pid = self._here.fork_into(None, lambda: _python.become_python(self._config, placement, message.fds))
        sandbox.session_pids.add(pid)
        self._here.reply(message, pid=pid)
        yield from ()

    def _run_start(self, fields: _wire.Fields) -> float:
        # gVisor's kernel counts from the start of its container.
        return _processes.uptime() - fields["age"]

    def _processes_of(self, sandbox: SandboxRecord) -> dict[int, _processes.ProcessInfo]:
        own = {os.getpid(), *self._here.helpers}
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own]
        infos = (_processes.read_process(pid) for pid in pids)
        return {info.pid: info for info in infos if info is not None}


class _Keeper:
    """Knows which request goes where."""

    def __init__(self, server: socket.socket, settings: _wire.Fields) -> None:
        self._reactor = _Here(server)
        restrictions = _confine.Restrictions(_seccomp.build_filter(notify=False), b"", None)
        config = _spawn.RuntimeConfig(False, (), (), restrictions, [], settings["shell_driver"], "")
        process_requests = _ContainerProcessRequests(self._reactor, config)
        self.copies = bool(settings["copies"])
        """Files go through copies."""
        if self.copies:
            from runtimes.docker.inside._copying import CopyingFileRequests

            self._file_requests: FileRequests = CopyingFileRequests(self._reactor, SAVED_FOLDERS)
        else:
            self._file_requests = FileRequests(self._reactor, SAVED_FOLDERS)
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.group = _own_group()
        """The container's limits, as far as they can be seen from inside."""
        self._sandbox = SandboxRecord(
            "", settings["uid"], ForkGroup(os.getpid(), -1), [], root, root, self.group, settings["limits"]
        )
        self._reactor.on_exit = self._child_ended
        self._requests: dict[str, Callable[[SandboxRecord, _wire.WireMessage], PendingRequest]] = {
            "check_archive": self._file_requests.check_archive,
            "counters": self._counters,
            "events": process_requests.events,
            "exec": process_requests.command,
            "file": self._file_requests.file,
            "kill_run": process_requests.kill_run,
            "list": self._file_requests.list,
            "pack": self._file_requests.pack,
            "ping": self._pong,
            "python": process_requests.python,
            "remove": self._file_requests.remove,
            "shell": process_requests.shell,
            "signal": process_requests.signal,
            "unpack": self._unpack,
        }

    def serve(self) -> None:
        """Serve until the server is gone."""
        self._reactor.serve(self._start)

    def _start(self, message: _wire.WireMessage) -> PendingRequest:
        op = message.fields["op"]
        if op not in self._requests:
            raise SandboxRequestError(f"a container can't {op}")
        return self._requests[op](self._sandbox, message)

    def _child_ended(self, pid: int) -> None:
        self._reactor.helpers.discard(pid)
        self._sandbox.session_pids.discard(pid)

    def _pong(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        self._reactor.reply(message)
        yield from ()

    def _counters(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Hand out the files that count how often limits were hit."""
        present = {
            kind: fd
            for kind, fd in {"oom": self.group.oom, "pids": self.group.pids_events}.items()
            if fd >= 0
        }
        self._reactor.reply(message, list(present.values()), counters=list(present))
        yield from ()

    def _unpack(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Put all files back to those of an archive."""
        fd = message.fds[0]

        def fill(source: IO[bytes]) -> None:
            source.seek(0)
            for folder in SAVED_FOLDERS:
                _empty(f"/{folder}")
            _copy.unpack(sandbox.files, SAVED_FOLDERS, sandbox.uid, source)

        return self._file_requests.in_child(sandbox, message, lambda: _spawn.with_file(fd, "rb", fill))


def _empty(folder: str) -> bool:
    """Remove what lies there, but for what of the machine is shown below it; whether nothing is left."""
    device, left = os.lstat(folder).st_dev, False
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.stat(follow_symlinks=False).st_dev != device:
                left = True
            elif not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif _empty(entry.path):
                os.rmdir(entry.path)
            else:
                left = True
    return not left


def _own_group() -> _cgroups.Cgroup:
    """What the container's cgroup tells inside; nothing where the engine shows none."""
    top = "/sys/fs/cgroup"
    memory, pids = (
        (top, top) if os.path.exists(f"{top}/cgroup.controllers") else (f"{top}/memory", f"{top}/pids")
    )
    oom, usage = (
        ("memory.events", "memory.current")
        if memory == top
        else ("memory.oom_control", "memory.usage_in_bytes")
    )
    return _cgroups.Cgroup(
        [], _open(f"{memory}/{oom}"), _open(f"{memory}/{usage}"), _open(f"{pids}/pids.events"), -1
    )


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _furnish(uid: int) -> None:
    """Give the agent its folders: the engine makes them root's."""
    os.chown(HOME, uid, uid)
    os.chmod(HOME, 0o700)
    for folder in ("/tmp", "/dev/shm"):
        os.chmod(folder, 0o1777)


def main() -> None:
    """Serve, as a container's first process."""
    # The agent's processes, root inside among them, must not read or change this one.
    sc.prctl(sc.PR_SET_DUMPABLE, 0)
    sc.world_is_sandbox()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(SOCKET)
    hello = _wire.receive(server)
    if hello is None:
        return
    try:
        _furnish(hello.fields["uid"])
        keeper = _Keeper(server, hello.fields)
    except OSError as error:
        _wire.send(server, {"started": False, "error": str(error)})
        return
    # Taken for good, so that nothing a shell session needs on its way ever has the number of its control socket.
    os.dup2(2, _spawn.CONTROL_FD, inheritable=False)
    _wire.send(server, {"started": True, "grouped": keeper.group.memory >= 0, "copies": keeper.copies})
    keeper.serve()
