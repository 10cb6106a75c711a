"""Init process of a container: starts processes for the server, handles files, reaps.

It answers the same requests on the same kind of socket as the init process of a process sandbox. It is root inside
with a few capabilities; the agent's processes have none, and run under the same system-call filter as in a process
sandbox, below the engine's own. When the server goes away, it exits, and the container ends with it.
"""

import contextlib
import errno
import functools
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import IO, Any

from runtimes.docker.inside._paths import HOME, LIBRARY, MATPLOTLIB_FOLDER, SAVED_FOLDERS, SOCKET
from runtimes.process.linux import _cgroups, _processes, _seccomp
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _archive, _confine, _files, _spawn, _wire
from runtimes.process.trusted._reactor import PendingRequest, Reactor, SandboxRequestError, check_report
from runtimes.process.trusted._requests import LISTING_BYTES, FileRequests, ProcessRequests
from runtimes.process.trusted._sandboxes import ForkGroup, SandboxRecord

_EXPENDABLE = "500"
_PIECE = 1 << 20


class _ContainerReactor(Reactor):
    """Reactor whose children stay in this container."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__(server)
        self.helpers: set[int] = set()
        """Children that work on files for the server."""

    def fork(self, body: Callable[[], None]) -> int:
        """Fork a helper."""
        pid = super().fork(body)
        self.helpers.add(pid)
        return pid

    def fork_into(self, namespace: int | None, body: Callable[[], None]) -> int:
        """Fork a process of the agent: the first candidate when memory runs out."""

        def expendable() -> None:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(_EXPENDABLE)
            body()

        return super().fork(expendable)


class ServerClock:
    """Conversion of the server's boot time to that of this kernel: gVisor's counts from the start of its container."""

    def __init__(self, uptime: Callable[[], float] = _processes.uptime) -> None:
        self._uptime = uptime
        self._offset = 0.0

    def convert(self, moment: float, sent: float) -> float:
        """Return a moment of the server in this kernel's time.

        :param sent: time of the server when it sent the request. A late request must not make the moment late, because
            processes started in between would be missed; so the request that took least time determines the offset, and a
            shared clock, which is never behind the server's, has none.
        """
        self._offset = min(self._offset, self._uptime() - sent)
        return moment + self._offset


class ContainerProcessRequests(ProcessRequests):
    """Process requests of a container: every process but this one and its helpers."""

    def __init__(self, reactor: _ContainerReactor, config: _spawn.RuntimeConfig) -> None:
        super().__init__(reactor, config, None)
        self._helpers = reactor.helpers
        self._server_clock = ServerClock()

    def _placement(self, sandbox: SandboxRecord) -> _spawn.ProcessPlacement:
        limits = _spawn.rlimits(sandbox.limits, grouped=sandbox.group.memory >= 0)
        # The kernel counts a user's processes across containers; the engine counts those of one.
        limits["NPROC"] = None
        return _spawn.ProcessPlacement([], _confine.Identity(sandbox.uid, False), sandbox.group, limits)

    def _command_as_user(
        self, sandbox: SandboxRecord, message: _wire.WireMessage, placement: _spawn.ProcessPlacement
    ) -> PendingRequest:
        become = _spawn.become_user_command_here
        self._start(sandbox, message, lambda: become(self._config, placement, message.fds))
        yield from ()

    def python(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Start a Python session. `message.fds`: control, stdout, stderr, and a payload with the environment."""
        # Imported late: instances that only run commands start faster.
        from runtimes.process.inside import _evaluate, _session_loop
        from runtimes.process.trusted import _zygote

        placement = self._placement(sandbox)

        def become() -> None:
            control, stdout, stderr, payload = message.fds
            env = _wire.read_payload(payload)["env"]
            _spawn.enter_sandbox(self._config, placement, python=True)
            _confine.set_standard_streams(None, stdout, stderr)
            os.dup2(control, _session_loop.CONTROL_FD)
            _confine.close_from(3, keep=[_session_loop.CONTROL_FD])
            _confine.open_to_user()
            os.chdir(HOME)
            os.environ.clear()
            os.environ.update(env)
            sys.path.remove(LIBRARY)
            _zygote.forget_own_modules()
            _zygote.reseed()
            _session_loop.SessionLoop(_session_loop.CONTROL_FD, _evaluate.PythonEvaluator()).serve()

        self._start(sandbox, message, become)
        yield from ()

    def _run_start(self, fields: _wire.Fields) -> float:
        return self._server_clock.convert(fields["since"], fields["now"])

    def _processes_of(self, sandbox: SandboxRecord) -> dict[int, _processes.ProcessInfo]:
        own_pids = {os.getpid(), *self._helpers}
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own_pids]
        infos = (_processes.read_process(pid) for pid in pids)
        return {info.pid: info for info in infos if info is not None}


class CopyingFileRequests(FileRequests):
    """File requests by copying, in a child with the agent's rights: whole contents pass through a file that the server sends.

    gVisor's kernel neither lends rights nor passes file descriptors.
    """

    def file(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Carry out one operation by name."""
        request = message.fields["request"]
        ours, theirs = _wire.socket_pair()

        def child() -> None:
            try:
                _become(sandbox.uid)
                answer = _perform(sandbox, request, message.fds)
            except (OSError, ValueError, RecursionError) as error:
                answer = _wire.failure(error)
            _wire.send(theirs, answer)

        self._reactor.fork(child)
        theirs.close()
        with ours:
            answer = yield ours
        check_report(answer, "the helper process died: the instance's memory limit may be too small")
        assert answer is not None
        self._reactor.reply(message, **answer.fields)

    def list(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Write the entries of a directory to the received descriptor."""
        fd = message.fds[0]
        entries = functools.partial(_files.list_entries, sandbox.root, sandbox.uid, message.fields["request"])
        return self.in_child(
            sandbox,
            message,
            lambda: _as_agent(sandbox, lambda: _spawn.with_file(fd, "wb", entries)),
            LISTING_BYTES,
        )

    def remove(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Remove a tree."""
        request = message.fields["request"]
        body = functools.partial(_files.remove_tree, sandbox.root, sandbox.uid, request)
        return self.in_child(sandbox, message, lambda: _as_agent(sandbox, body))


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _as_agent(sandbox: SandboxRecord, body: Callable[[], None]) -> None:
    _become(sandbox.uid)
    body()


def _perform(sandbox: SandboxRecord, request: dict[str, Any], fds: list[int]) -> _wire.Fields:
    opened, answer = _files.perform(sandbox.root, sandbox.uid, request)
    if request["action"] == "open":
        there = max(0, os.fstat(opened[0]).st_size - request["offset"])
        wanted = there if request["length"] is None else min(there, request["length"])
        os.lseek(opened[0], request["offset"], os.SEEK_SET)
        _copy_bytes(opened[0], fds[0], wanted)
        return {}
    if request["action"] == "create":
        _fill(sandbox, request, opened[0], fds[0], answer)
        return {}
    return answer


def _fill(
    sandbox: SandboxRecord, request: dict[str, Any], target: int, source: int, created: dict[str, Any]
) -> None:
    """Write the content that the server sent; all or nothing unless appending."""
    commit = {**request, **created, "action": "commit", "path": created.get("target", request["path"])}
    size = os.fstat(source).st_size
    try:
        if request["limit"] is not None and os.fstat(target).st_size + size > request["limit"]:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), request["path"])
        os.lseek(source, 0, os.SEEK_SET)
        _copy_bytes(source, target, size)
    except OSError:
        if not request["append"]:
            _files.perform(sandbox.root, sandbox.uid, {**commit, "abandon": True})
        raise
    if not request["append"]:
        _files.perform(sandbox.root, sandbox.uid, commit)


def _copy_bytes(source: int, target: int, count: int) -> None:
    while count and (piece := os.read(source, min(count, _PIECE))):
        view = memoryview(piece)
        count -= len(view)
        while view:
            view = view[os.write(target, view) :]


class ContainerInit:
    """Dispatcher of the server's requests."""

    def __init__(
        self,
        server: socket.socket,
        settings: _wire.Fields,
        process_requests_type: type[ContainerProcessRequests] = ContainerProcessRequests,
        saved: tuple[str, ...] = SAVED_FOLDERS,
    ) -> None:
        self._reactor = _ContainerReactor(server)
        self._saved = saved
        restrictions = _confine.Restrictions(_seccomp.build_filter(notify=False), b"", None)
        config = _spawn.RuntimeConfig(False, (), (), restrictions, [], settings["shell_driver"], "")
        process_requests = process_requests_type(self._reactor, config)
        self.copies = bool(settings["copies"])
        """File contents are passed by copying."""
        requests = CopyingFileRequests if self.copies else FileRequests
        self._file_requests = requests(self._reactor, saved)
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.group = self.limit_files()
        """Limits of the container, as far as they are visible inside."""
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

    def limit_files(self) -> _cgroups.Cgroup:
        """Return the files of the container's cgroup."""
        return _own_group()

    def serve(self) -> None:
        """Serve until the server is gone."""
        self._reactor.serve(self._start)

    def _start(self, message: _wire.WireMessage) -> PendingRequest:
        op = message.fields["op"]
        if op not in self._requests:
            raise SandboxRequestError(f"a container does not support {op}")
        return self._requests[op](self._sandbox, message)

    def _child_ended(self, pid: int) -> None:
        self._reactor.helpers.discard(pid)
        self._sandbox.session_pids.discard(pid)
        self._sandbox.helper_pids.discard(pid)

    def _pong(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        self._reactor.reply(message)
        yield from ()

    def _counters(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Send the files that count limit hits."""
        counters = {"oom": self.group.oom, "pids": self.group.pids_events, "cpu": self.group.cpu}
        present = {kind: fd for kind, fd in counters.items() if fd >= 0}
        self._reactor.reply(message, list(present.values()), counters=list(present))
        yield from ()

    def _unpack(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Replace all files by those of an archive."""
        fd = message.fds[0]

        def fill(source: IO[bytes]) -> None:
            for folder in self._saved:
                _empty(f"/{folder}")
            _archive.unpack(sandbox.files, self._saved, sandbox.uid, source)

        return self._file_requests.in_child(sandbox, message, lambda: _spawn.with_file(fd, "rb", fill), None)


def _empty(folder: str) -> bool:
    """Empty a directory, except for mounts below it; return true if something is left."""
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


class _RemoteProcessRequests(ContainerProcessRequests):
    """Process requests of a remote sandbox, where the service's own processes run beside those of the agent.

    The agent's are those of its user, and the descendants of this process.
    """

    def _placement(self, sandbox: SandboxRecord) -> _spawn.ProcessPlacement:
        placement = super()._placement(sandbox)
        placement.rlimits["NPROC"] = sandbox.limits["processes"]
        return placement

    def _processes_of(self, sandbox: SandboxRecord) -> dict[int, _processes.ProcessInfo]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        infos = (_processes.read_process(pid) for pid in pids if pid not in self._helpers)
        infos_by_pid = {info.pid: info for info in infos if info is not None}
        own_pid = os.getpid()
        return {
            pid: info
            for pid, info in infos_by_pid.items()
            if pid != own_pid
            and (own_pid in _processes.lineage(infos_by_pid, pid) or _is_of(pid, sandbox.uid))
        }


def _is_of(pid: int, uid: int) -> bool:
    try:
        return _processes.real_uid(pid) == uid
    except (OSError, KeyError):
        return False


class _RemoteInit(ContainerInit):
    def limit_files(self) -> _cgroups.Cgroup:
        """Return no files: a visible cgroup would be that of the whole machine."""
        return _cgroups.Cgroup([], -1, -1, -1, -1, -1)


def _own_group() -> _cgroups.Cgroup:
    """Return the visible cgroup files of the container; empty if the engine shows none."""
    top = "/sys/fs/cgroup"
    if os.path.exists(f"{top}/cgroup.controllers"):
        memory, pids, oom, usage, cpu = top, top, "memory.events", "memory.current", "cpu.stat"
    else:
        memory, pids, oom, usage, cpu = (
            f"{top}/memory",
            f"{top}/pids",
            "memory.oom_control",
            "memory.usage_in_bytes",
            "cpuacct/cpuacct.usage",
        )
    return _cgroups.Cgroup(
        [],
        _open(f"{memory}/{oom}"),
        _open(f"{memory}/{usage}"),
        _open(f"{pids}/pids.events"),
        -1,
        _open(f"{top}/{cpu}"),
    )


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _prepare_directories(uid: int) -> None:
    """Give the agent its directories: the engine creates them as root's."""
    os.chown(HOME, uid, uid)
    os.chmod(HOME, 0o700)
    for folder in ("/tmp", "/dev/shm"):
        os.chmod(folder, 0o1777)
    fonts = "/etc/matplotlib"
    if os.path.isdir(fonts):
        os.mkdir(MATPLOTLIB_FOLDER, 0o700)
        os.chown(MATPLOTLIB_FOLDER, uid, uid)
        for name in os.listdir(fonts):
            os.symlink(f"{fonts}/{name}", f"{MATPLOTLIB_FOLDER}/{name}")


def serve(server: socket.socket, make: Callable[[socket.socket, _wire.Fields], ContainerInit]) -> None:
    """Serve the other end of a socket, whose first message has the settings, until it is closed."""
    # The agent's processes, root inside included, must not read or change this one.
    sc.prctl(sc.PR_SET_DUMPABLE, 0)
    sc.world_is_sandbox()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    init_settings = _wire.receive(server)
    if init_settings is None:
        return
    try:
        _prepare_directories(init_settings.fields["uid"])
        container_init = make(server, init_settings.fields)
    except OSError as error:
        _wire.send(server, {"started": False, "error": str(error)})
        return
    # Reserved, so that no descriptor of a starting shell session ever has the number of its control socket.
    os.dup2(2, _spawn.CONTROL_FD, inheritable=False)
    _wire.send(
        server,
        {"started": True, "grouped": container_init.group.memory >= 0, "copies": container_init.copies},
    )
    container_init.serve()


def main() -> None:
    """Serve, as a container's init process."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(SOCKET)
    serve(server, ContainerInit)


def serve_remote(connection: socket.socket, saved: tuple[str, ...]) -> None:
    """Serve, as the parent of the agent's processes in a remote sandbox; `saved` are the folders of a snapshot."""
    # Orphans become children of this process and are found again. gVisor has no subreapers.
    with contextlib.suppress(OSError):
        sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)
    serve(connection, lambda server, settings: _RemoteInit(server, settings, _RemoteProcessRequests, saved))
