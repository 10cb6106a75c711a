"""Host monitor: the one process that the server starts; it outlives the server to clean up.

It creates the runtime's user and pid namespaces and starts the sandbox init process in them. It stays outside and does
what needs the server's own rights: it makes cgroups and hands out mounts of host folders. When the server goes away,
however that happens, it kills the sandbox init process, which ends every sandbox, and removes the files on disk.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from runtimes.process.linux import _cgroups, _landlock, _quotas, _seccomp
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _base, _confine, _sandbox_init, _server_folder, _spawn, _wire

_WARM_SECONDS = 2.0
_INTERVAL_MS = 4


class CgroupWarmer:
    """A process that keeps moves between cgroups fast while sandboxes are being created.

    Moving a process takes a kernel-wide lock that is cheap for forks and slow for moves: the first move after a
    pause waits some ten milliseconds for a grace period, later ones do not. So for two seconds after each new
    sandbox, this process moves itself into its own cgroup every four milliseconds, which changes nothing but keeps
    the lock ready. Without cgroups it is not started.
    """

    def __init__(self, hierarchies: _cgroups.Hierarchies) -> None:
        self._writer = self._pid = -1
        procs = _cgroups.open_own(hierarchies)
        if procs < 0:
            return
        reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            _keep_warm(reader, procs)
        os.close(reader)
        os.close(procs)

    def wake(self) -> None:
        """Keep the lock ready for the next two seconds."""
        if self._writer >= 0:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._writer, b"x")

    def end(self) -> None:
        """Stop the process."""
        if self._pid > 0:
            os.close(self._writer)
            os.waitpid(self._pid, 0)
            self._writer = self._pid = -1


def _keep_warm(reader: int, procs: int) -> NoReturn:
    try:
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        _confine.close_from(3, keep=[reader, procs])
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        until = 0.0
        while True:
            now = time.monotonic()
            if poll.poll(_INTERVAL_MS if now < until else None):
                if not os.read(reader, 4096):
                    break
                until = time.monotonic() + _WARM_SECONDS
            os.write(procs, b"0")
    except OSError:
        # Without this process sandboxes are created all the same, only slower.
        os._exit(1)
    finally:
        os._exit(0)


def _fail(server: socket.socket, error: BaseException, what: str) -> NoReturn:
    with contextlib.suppress(OSError):
        _wire.send(server, {"started": False, "error": f"{what}: {error}"})
    sys.exit(1)


def _run_mount_helper(
    host_monitor: socket.socket,
    owner: int | None,
    fonts: str,
    start_sandbox_init: Callable[[_base.HostMounts, list[Any]], None],
) -> NoReturn:
    """Create the user namespace, start the sandbox init process, then hand out read-only mounts of host folders.

    :param owner: host user that owns the user namespace; by default this one.
    """
    _quotas.keep_half()
    if owner is not None:
        # The kernel counts what sandboxes use for the owner too, so it must not be root. Files are opened as before.
        os.setresuid(-1, owner, -1)
        sc.set_filesystem_uid(0)
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
    sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
    _wire.send(host_monitor, {"unshared": True})
    if _wire.receive(host_monitor) is None:
        os._exit(1)
    sc.mount_private()
    collected = _base.collect()
    start_sandbox_init(collected, _base.read_etc(collected.view, fonts))
    while (message := _wire.receive(host_monitor)) is not None:
        fds: list[int] = []
        try:
            fds = [_base.read_only_view(path) for path in message.fields["paths"]]
            _wire.send(host_monitor, {}, fds)
        except OSError as error:
            _wire.send(host_monitor, {"error": str(error)})
        for fd in fds:
            os.close(fd)
    os._exit(0)


def _start(
    server: socket.socket, alive: int, settings: dict[str, Any]
) -> tuple[int, socket.socket, socket.socket]:
    """Start the mount helper and the sandbox init process; return the pid of the latter and the sockets to both."""
    idmap = _base.plan_ids(os.path.dirname(settings["folder"]))
    to_helper, helper_end = _wire.socket_pair()
    to_init, init_end = _wire.socket_pair()
    pid_reader, pid_writer = _wire.socket_pair()

    def start_sandbox_init(collected: _base.HostMounts, etc: list[Any]) -> None:
        sc.unshare(sc.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            for sock in (helper_end, to_helper, to_init, pid_reader, pid_writer):
                sock.close()
            _spawn.run_child(lambda: _become_sandbox_init(server, init_end, idmap, collected, etc, settings))
        pid_writer.send(pid.to_bytes(4, sys.byteorder))
        server.close()
        init_end.close()
        for _, fd in [*collected.trees, *collected.devices]:
            os.close(fd)

    helper_pid = os.fork()
    if helper_pid == 0:
        for sock in (to_helper, to_init, pid_reader):
            sock.close()
        os.close(alive)
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            _run_mount_helper(helper_end, idmap.owner, settings["fonts"], start_sandbox_init)
        except OSError as error:
            _fail(server, error, "can't prepare the base of the sandboxes")
    helper_end.close()
    init_end.close()
    pid_writer.close()
    _map_ids(server, idmap, helper_pid, to_helper)
    return _receive_pid(pid_reader), to_helper, to_init


def _map_ids(server: socket.socket, idmap: _base.IdMap, pid: int, to_helper: socket.socket) -> None:
    if _wire.receive(to_helper) is None:
        os._exit(1)
    try:
        _base.write_id_map(idmap, pid)
    except OSError as error:
        _fail(server, error, "can't map user ids")
    _wire.send(to_helper, {"mapped": True})


def _receive_pid(sock: socket.socket) -> int:
    data = sock.recv(4)
    sock.close()
    if not data:
        os._exit(1)
    return int.from_bytes(data, sys.byteorder)


def _become_sandbox_init(
    server: socket.socket,
    host_monitor: socket.socket,
    idmap: _base.IdMap,
    collected: _base.HostMounts,
    etc: list[Any],
    settings: dict[str, Any],
) -> None:
    try:
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if not idmap.single_user:
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
            # Changing the user clears the dumpable flag, which would hide the children from root of the namespace.
            sc.prctl(sc.PR_SET_DUMPABLE, 1)
        sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWNET | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS)
        tree_paths = _base.assemble("/tmp", collected, etc, settings["shell_entry"])
        proc = sc.new_mount("proc", sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV | sc.MOUNT_ATTR_NOEXEC)
        sc.attach_mount(proc, "/tmp/proc")
        watches_limited = _quotas.limit_watches("/tmp/proc", shared=idmap.single_user)
        os.chdir("/tmp")
        sc.pivot_root(".", "old")
        os.chroot(".")
        os.chdir("/")
        sc.unmount("/old")
        anchor = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        restrictions = _confine.Restrictions(
            _seccomp.build_filter(notify=False, counted=settings["grouped"]),
            _seccomp.build_filter(notify=True, counted=settings["grouped"]),
            _landlock.make_ruleset(anchor),
        )
        os.close(anchor)
        namespaces = _confine.open_namespaces()
    except OSError as error:
        _fail(server, error, "can't isolate")
    config = _spawn.RuntimeConfig(
        idmap.single_user,
        tuple(tree_paths),
        tuple(settings["preload"]),
        restrictions,
        namespaces,
        settings["shell_driver"],
        idmap.note,
        bool(settings["idle"]),
    )
    _wire.send(
        server,
        {
            "started": True,
            "single_user": idmap.single_user,
            "landlock": restrictions.ruleset is not None,
            "watches_limited": watches_limited,
            "note": idmap.note,
            "grouped": settings["grouped"],
            "shares_cpu": settings["shares_cpu"],
        },
    )
    _sandbox_init.main(server, host_monitor, config)


class HostMonitor:
    """Serve the sandbox init process until it or the server is gone."""

    def __init__(
        self,
        init_pid: int,
        mount_helper: socket.socket,
        sock: socket.socket,
        alive: int,
        hierarchies: _cgroups.Hierarchies,
    ) -> None:
        # Not the pid, which may be reused if the process ends by itself.
        self._init_pidfd = os.pidfd_open(init_pid)
        self._alive = alive
        self._mount_helper = mount_helper
        self._sock = sock
        self._hierarchies = hierarchies
        self._stale: set[str] = set()
        self._cgroup_warmer = CgroupWarmer(hierarchies)

    def serve(self) -> None:
        """Serve requests until the server or the sandbox init process is gone."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._alive, select.POLLIN)
        while True:
            for fd, _ in poll.poll(1000 if self._stale else None):
                if fd == self._alive:
                    return
                message = _wire.receive(self._sock)
                if message is None:
                    return
                self._handle(message.fields)
            self._remove_stale()

    def _handle(self, request: dict[str, Any]) -> None:
        try:
            if request["op"] == "group":
                self._make_group(request)
            elif request["op"] == "ungroup":
                self._stale.add(request["name"])
                self._remove_stale()
                _wire.send(self._sock, {})
            else:
                self._send_mounts(request)
        except OSError as error:
            _wire.send(self._sock, {"error": str(error)})

    def _remove_stale(self) -> None:
        self._stale = {name for name in self._stale if not _cgroups.remove(self._hierarchies, name)}

    def _make_group(self, request: dict[str, Any]) -> None:
        self._cgroup_warmer.wake()
        group = _cgroups.make(self._hierarchies, request["name"], request["memory"], request["processes"])
        named = {
            "oom": group.oom,
            "memory": group.memory,
            "pids": group.pids_events,
            "folder": group.folder,
            "cpu": group.cpu,
        }
        present = {name: fd for name, fd in named.items() if fd >= 0}
        fds = [*group.members, *present.values()]
        _wire.send(self._sock, {"members": len(group.members), "has": list(present)}, fds)
        for fd in fds:
            os.close(fd)

    def _send_mounts(self, request: dict[str, Any]) -> None:
        _wire.send(self._mount_helper, {"paths": request["paths"]})
        answer = _wire.receive(self._mount_helper)
        if answer is None:
            raise OSError("the mount helper process is gone")
        _wire.send(self._sock, answer.fields, answer.fds)
        for fd in answer.fds:
            os.close(fd)

    def end_all(self) -> None:
        """Kill every sandbox and wait until the last of their processes is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._init_pidfd, select.POLLIN)
        poll.poll()
        self._mount_helper.close()
        self._cgroup_warmer.end()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def main(server_fd: int, alive_fd: int) -> None:
    """Run with a socket to the server and the read end of a pipe whose write end only the server holds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server = socket.socket(fileno=server_fd)
    hello = _wire.receive(server)
    if hello is None:
        return
    settings = hello.fields
    folder = settings["folder"]
    # Not in the initial environment, which a session could read from its own /proc entry.
    os.environ["PATH"] = settings["path"]
    try:
        _server_folder.claim(folder)
        realm = _server_folder.realm(folder)
        parent = os.path.dirname(folder)
        _cgroups.sweep(realm, lambda server: _server_folder.is_held(f"{parent}/{server}"))
        hierarchies = _cgroups.prepare(realm, os.path.basename(folder), idle=bool(settings["idle"]))
    except OSError as error:
        _fail(server, error, "can't start")
    try:
        settings["grouped"] = bool(hierarchies.folders)
        settings["shares_cpu"] = hierarchies.share_cpu
        init_pid, mount_helper, sock = _start(server, alive_fd, settings)
        server.close()
        host_monitor = HostMonitor(init_pid, mount_helper, sock, alive_fd, hierarchies)
        host_monitor.serve()
        host_monitor.end_all()
    except OSError as error:
        _fail(server, error, "can't start")
    finally:
        _cgroups.remove_all(hierarchies)
        _server_folder.remove(folder)
