"""The warden: the one process that the server starts, and the last one standing.

It makes the runtime's user and pid namespaces and starts the mason in them. It stays outside, does what needs
the server's own rights (cgroups, showing folders of the host), and waits for the server to go away, however
that happens: then it kills the mason, which ends every sandbox, and removes what is left on disk.
"""

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from runtimes.process.linux import _cgroups, _landlock, _seccomp
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import (
    _base,
    _cgroup_warmer,
    _confine,
    _idmap,
    _leftovers,
    _sandbox_init,
    _spawn,
    _wire,
)


def _fail(server: socket.socket, error: BaseException, what: str) -> NoReturn:
    with contextlib.suppress(OSError):
        _wire.send(server, {"started": False, "error": f"{what}: {error}"})
    sys.exit(1)


class _Porter:
    """A process in the user namespace that still sees the host's files: it hands out views of folders."""

    def __init__(self, idmap: _idmap.IdMap) -> None:
        self._idmap = idmap

    def run(self, warden: socket.socket, start_mason: Callable[[_base.Collected, list[Any]], None]) -> None:
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
        _wire.send(warden, {"unshared": True})
        if _wire.receive(warden) is None:
            os._exit(1)
        sc.mount_private()
        collected = _base.collect()
        etc = _base.read_etc(collected)
        start_mason(collected, etc)
        self._serve(warden)

    def _serve(self, warden: socket.socket) -> NoReturn:
        while True:
            message = _wire.receive(warden)
            if message is None:
                os._exit(0)
            fds: list[int] = []
            try:
                fds = [_base.read_only_view(path) for path in message.fields["paths"]]
                _wire.send(warden, {}, fds)
            except OSError as error:
                _wire.send(warden, {"error": str(error)})
            for fd in fds:
                os.close(fd)


def _start(
    server: socket.socket, alive: int, settings: dict[str, Any]
) -> tuple[int, socket.socket, socket.socket]:
    """Start porter and mason. Returns the mason's pid and the sockets to the porter and the mason."""
    idmap = _idmap.plan(os.path.dirname(settings["folder"]))
    to_porter, porter_end = _wire.socket_pair()
    to_mason, mason_end = _wire.socket_pair()
    pid_reader, pid_writer = _wire.socket_pair()

    def start_mason(collected: _base.Collected, etc: list[Any]) -> None:
        sc.unshare(sc.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            for sock in (porter_end, to_porter, to_mason, pid_reader, pid_writer):
                sock.close()
            _spawn.run_child(lambda: _become_mason(server, mason_end, idmap, collected, etc, settings))
        _send_pid(pid_writer, pid)
        server.close()
        mason_end.close()
        for _, fd in [*collected.trees, *collected.devices]:
            os.close(fd)

    porter = os.fork()
    if porter == 0:
        for sock in (to_porter, to_mason, pid_reader):
            sock.close()
        os.close(alive)
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            _Porter(idmap).run(porter_end, start_mason)
        except OSError as error:
            _fail(server, error, "can't build the sandboxes' base")
        os._exit(0)
    porter_end.close()
    mason_end.close()
    pid_writer.close()
    _map_ids(server, idmap, porter, to_porter)
    return _receive_pid(pid_reader), to_porter, to_mason


def _map_ids(server: socket.socket, idmap: _idmap.IdMap, porter: int, to_porter: socket.socket) -> None:
    if _wire.receive(to_porter) is None:
        os._exit(1)
    try:
        _idmap.write(idmap, porter)
    except OSError as error:
        _fail(server, error, "can't map user ids")
    _wire.send(to_porter, {"mapped": True})


def _send_pid(sock: socket.socket, pid: int) -> None:
    """Send a pid so that the receiver gets it as its own pid namespace counts."""
    import struct

    # The child's number: here and in the warden's namespace they are the same, both being outside the new one.
    sock.send(struct.pack("=i", pid))


def _receive_pid(sock: socket.socket) -> int:
    data = sock.recv(4)
    sock.close()
    if not data:
        os._exit(1)
    return int.from_bytes(data, sys.byteorder)


def _become_mason(
    server: socket.socket,
    warden: socket.socket,
    idmap: _idmap.IdMap,
    collected: _base.Collected,
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
            # A change of user hides a process from its own namespace's root; its children must not be hidden.
            sc.prctl(sc.PR_SET_DUMPABLE, 1)
        sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWNET | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS)
        places = _base.assemble("/tmp", collected, etc, settings["shell_entry"])
        proc = sc.new_mount("proc", sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV | sc.MOUNT_ATTR_NOEXEC)
        sc.attach_mount(proc, "/tmp/proc")
        os.chdir("/tmp")
        sc.pivot_root(".", "old")
        os.chroot(".")
        os.chdir("/")
        sc.unmount("/old")
        anchor = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        locks = _confine.Locks(
            _seccomp.build_filter(gated=False),
            _seccomp.build_filter(gated=True),
            _landlock.make_ruleset(anchor),
        )
        os.close(anchor)
        own = [
            os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
            for kind in ("mnt", "net", "ipc", "uts")
        ]
    except OSError as error:
        _fail(server, error, "can't isolate")
    world = _spawn.World(
        idmap.single_user,
        tuple(places),
        tuple(settings["preload"]),
        locks,
        own,
        settings["shell_driver"],
        idmap.note,
        bool(settings["idle"]),
    )
    _wire.send(
        server,
        {
            "started": True,
            "single_user": idmap.single_user,
            "landlock": locks.ruleset is not None,
            "note": idmap.note,
            "grouped": settings["grouped"],
        },
    )
    _sandbox_init.main(server, warden, world)


class Warden:
    """Serves the mason's requests until the server or the mason is gone."""

    def __init__(
        self,
        mason: int,
        porter: socket.socket,
        sock: socket.socket,
        alive: int,
        hierarchies: _cgroups.Hierarchies,
    ) -> None:
        # Not its number: should it end by itself, that may be another's before it is used.
        self._sandbox_init = os.pidfd_open(mason)
        self._alive = alive
        self._porter = porter
        self._sock = sock
        self._hierarchies = hierarchies
        self._stale: set[str] = set()
        self._cgroup_warmer = _cgroup_warmer.Pacer(hierarchies)

    def serve(self) -> None:
        """Returns when it is time to clean up."""
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
                self._show(request)
        except OSError as error:
            _wire.send(self._sock, {"error": str(error)})

    def _remove_stale(self) -> None:
        self._stale = {name for name in self._stale if not _cgroups.remove(self._hierarchies, name)}

    def _make_group(self, request: dict[str, Any]) -> None:
        self._cgroup_warmer.wake()
        group = _cgroups.make(self._hierarchies, request["name"], request["memory"], request["processes"])
        named = {"oom": group.oom, "memory": group.memory, "pids": group.pids_events, "folder": group.folder}
        present = {name: fd for name, fd in named.items() if fd >= 0}
        fds = [*group.members, *present.values()]
        _wire.send(self._sock, {"members": len(group.members), "has": list(present)}, fds)
        for fd in fds:
            os.close(fd)

    def _show(self, request: dict[str, Any]) -> None:
        _wire.send(self._porter, {"paths": request["paths"]})
        answer = _wire.receive(self._porter)
        if answer is None:
            raise OSError("the process that shows folders of the host is gone")
        _wire.send(self._sock, answer.fields, answer.fds)
        for fd in answer.fds:
            os.close(fd)

    def end_all(self) -> None:
        """End every sandbox, at once, and wait until the last of their processes is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._sandbox_init, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._sandbox_init, select.POLLIN)
        poll.poll()
        self._porter.close()
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
    # Not in the environment it was started with, which a session can read of itself.
    os.environ["PATH"] = settings["path"]
    try:
        _leftovers.claim(folder)
        realm = _leftovers.realm(folder)
        parent = os.path.dirname(folder)
        _cgroups.sweep(realm, lambda server: _leftovers.lives(f"{parent}/{server}"))
        hierarchies = _cgroups.prepare(realm, os.path.basename(folder), idle=bool(settings["idle"]))
    except OSError as error:
        _fail(server, error, "can't start")
    try:
        settings["grouped"] = bool(hierarchies.folders)
        mason, porter, sock = _start(server, alive_fd, settings)
        server.close()
        warden = Warden(mason, porter, sock, alive_fd, hierarchies)
        warden.serve()
        warden.end_all()
    except OSError as error:
        _fail(server, error, "can't start")
    finally:
        _cgroups.remove_all(hierarchies)
        _leftovers.remove(folder)
