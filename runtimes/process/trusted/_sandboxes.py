"""Create, copy, rebuild and end sandboxes."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from runtimes.process.linux import _cgroups, _processes
from runtimes.process.trusted import _confine, _namespaces, _spawn, _wire
from runtimes.process.trusted._reactor import (
    PendingRequest,
    Reactor,
    SandboxRequestError,
    check_report,
    close_all,
)


class KillHelper:
    """Kill all processes of given users through a helper process, which is restarted if it dies.

    The helper switches to a sandbox's user and calls `kill(-1)`: one call reaches every process of that user, and
    none can fork past it. It runs in the pid namespace of the sandbox init process, so no sandbox can see it. The
    init process itself must not switch users: that would clear its parent-death signal.
    """

    def __init__(self, fork: Callable[[Callable[[], None]], int]) -> None:
        """Start the helper.

        :param fork: forks a child that runs the given function.
        """
        self._fork = fork
        self._socket = self._start()

    def kill(self, uids: Iterable[int]) -> None:
        """Kill every process of the given users; returns once the kernel has signalled them all.

        :raises OSError: if the helper dies twice.
        """
        request = {"uids": list(uids)}
        for _ in range(2):
            with contextlib.suppress(ConnectionError):
                _wire.send(self._socket, request)
                if _wire.receive(self._socket) is not None:
                    return
            self._socket.close()
            self._socket = self._start()
        raise OSError("the kill helper process died")

    def _start(self) -> socket.socket:
        ours, theirs = _wire.socket_pair()
        self._fork(lambda: _serve(theirs))
        theirs.close()
        return ours


def _serve(sock: socket.socket) -> NoReturn:
    _confine.close_from(3, keep=[sock.fileno()])
    with open("/proc/self/comm", "w", encoding="utf-8") as name:
        name.write("kill-helper")
    os.setgroups([])
    while (message := _wire.receive(sock)) is not None:
        for uid in message.fields["uids"]:
            _kill_all_of(uid)
        _wire.send(sock, {"done": True})
    os._exit(0)


def _kill_all_of(uid: int) -> None:
    os.setresgid(uid, uid, 0)
    os.setresuid(uid, uid, 0)
    # Reaches this sandbox only: the user has no capabilities, and no other sandbox has its id.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)


GONE = "the instance has ended"
_FIRST_UID = 1024
_LAST_UID = 65536 - _confine.IDS


@dataclass(slots=True)
class ForkGroup:
    """A sandbox and its forks, which share one pid namespace."""

    init: int
    """Pid of the namespace's first process, the pause process."""
    pid_namespace: int
    """Descriptor of the pid namespace; -1 after its end."""
    members: set[str] = field(default_factory=set[str])
    """Ids of its running sandboxes."""

    @property
    def ending(self) -> bool:
        """The pause process is dead or dying, so no process can be started in the namespace."""
        return self.pid_namespace < 0 or _processes.is_ending(self.init)

    def end(self) -> None:
        """Kill the pause process; the kernel then kills every other process of the namespace."""
        if self.pid_namespace >= 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            os.close(self.pid_namespace)
            self.pid_namespace = -1


@dataclass(slots=True)
class SandboxRecord:
    """State of one sandbox."""

    id: str
    """Unique name."""
    uid: int
    """First id of its block of ids in the runtime's user namespace: the sandbox user."""
    fork_group: ForkGroup
    """The fork group it belongs to."""
    namespaces: list[int]
    """Descriptors of its mount, net, ipc and uts namespaces."""
    root: int
    """Descriptor of its root directory."""
    files: int
    """Descriptor of the folder with its writable layers."""
    group: _cgroups.Cgroup
    """Its cgroup."""
    limits: dict[str, Any]
    """Its limits, in the form of `wire_limits`."""
    root_prepared: bool = False
    """System files have been given to root inside."""
    session_pids: set[int] = field(default_factory=set[int])
    """Pids of its live sessions and commands."""
    helper_pids: set[int] = field(default_factory=set[int])
    """Pids of trusted children that work on its files."""
    released: bool = False
    """It was stopped, or its fork group has ended."""


class SandboxTable:
    """All sandboxes of the runtime."""

    def __init__(self, reactor: Reactor, host_monitor: socket.socket, config: _spawn.RuntimeConfig) -> None:
        self._reactor = reactor
        self._host_monitor = host_monitor
        self._config = config
        # A runtime with a single user has no forks, so every sandbox ends with its pid namespace.
        self._kill_helper = None if config.single_user else KillHelper(reactor.fork)
        self._sandboxes: dict[str, SandboxRecord] = {}
        self._fresh_uids = iter(range(_FIRST_UID, _LAST_UID, _confine.IDS))
        self._used_uids: list[int] = []

    def find(self, name: str) -> SandboxRecord:
        """Return a running sandbox.

        :raises SandboxRequestError: if none has that name.
        """
        sandbox = self._sandboxes.get(name)
        if sandbox is None:
            raise SandboxRequestError(GONE, "gone")
        return sandbox

    def forget_process(self, pid: int) -> None:
        """Handle the end of a child process; the end of a pause process ends its whole fork group."""
        for sandbox in list(self._sandboxes.values()):
            sandbox.session_pids.discard(pid)
            sandbox.helper_pids.discard(pid)
            if sandbox.fork_group.init == pid:
                sandbox.fork_group.end()
                self._release(sandbox)

    def open(self, message: _wire.WireMessage) -> PendingRequest:
        """Create a sandbox in a new fork group."""
        request = message.fields
        limits = request["limits"]
        mounts = self._mounts(request)
        group = self._make_group(request["id"], limits)
        uid = self._take_uid()
        init, ours = self._fork_builder(None, self._plan(uid, limits, group), None, mounts, None)
        # Only now may the builder start: as the pause process it is closed to this one, too.
        fork_group = ForkGroup(init, os.open(f"/proc/{init}/ns/pid", os.O_RDONLY | os.O_CLOEXEC))
        ours.send(b"x")
        yield from self._finish_creation(message, ours, fork_group, uid, group, limits)

    def _fork_builder(
        self,
        namespace: int | None,
        plan: _namespaces.NamespacePlan,
        fill: _namespaces.Fill | None,
        mounts: list[tuple[str, int]],
        group: _cgroups.Cgroup | None,
    ) -> tuple[int, socket.socket]:
        """Fork the builder of a sandbox into a pid namespace; in a new one it becomes the pause process.

        Return its pid and the socket on which it sends the descriptors.
        """
        ours, theirs = _wire.socket_pair()

        def body() -> None:
            if namespace is None:
                theirs.recv(1)
            if group is not None:
                _cgroups.attach(group)
            _spawn.build_and_send(theirs, plan, fill, mounts)
            if namespace is None:
                _spawn.become_pause_process(self._config)

        pid = self._reactor.fork_into(namespace, body)
        theirs.close()
        close_all([fd for _, fd in mounts])
        return pid, ours

    def copy(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Create a sandbox in the same fork group, with a copy of this one's files."""
        request = message.fields
        if self._config.single_user:
            raise SandboxRequestError(self._config.note)
        mounts = self._mounts(request)
        group = self._make_group(request["id"], sandbox.limits)
        uid = self._take_uid()
        fill = _namespaces.copy_of(sandbox.files, sandbox.uid, uid)
        plan, namespace = self._plan(uid, sandbox.limits, group), sandbox.fork_group.pid_namespace
        builder, ours = self._fork_builder(namespace, plan, fill, mounts, group)
        sandbox.helper_pids.add(builder)
        yield from self._finish_creation(message, ours, sandbox.fork_group, uid, group, sandbox.limits)
        self._sandboxes[request["id"]].root_prepared = sandbox.root_prepared

    def _finish_creation(
        self,
        message: _wire.WireMessage,
        ours: socket.socket,
        fork_group: ForkGroup,
        uid: int,
        group: _cgroups.Cgroup,
        limits: dict[str, Any],
    ) -> PendingRequest:
        built = yield ours
        ours.close()
        name = message.fields["id"]
        if built is None or "error" in built.fields:
            if not fork_group.members:
                fork_group.end()
            self._drop_group(name, group)
            self._used_uids.append(uid)
            if built is None:
                raise SandboxRequestError("the sandbox's builder died")
            raise SandboxRequestError(built.fields["error"], built.fields["name"])
        namespaces, (root, files), listener = built.fds[:4], built.fds[4:6], built.fds[6:]
        fork_group.members.add(name)
        self._sandboxes[name] = SandboxRecord(name, uid, fork_group, namespaces, root, files, group, limits)
        counters = {"oom": group.oom, "pids": group.pids_events, "cpu": group.cpu}
        present = {kind: fd for kind, fd in counters.items() if fd >= 0}
        self._reactor.reply(message, [*present.values(), *listener], uid=uid, counters=list(present))
        close_all(listener)

    def rebuild(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Replace the namespaces and files of a sandbox without processes by those of an archive."""
        mounts = self._mounts(message.fields)
        fill = _namespaces.contents_of(message.fds[0], sandbox.uid)
        plan, namespace = (
            self._plan(sandbox.uid, sandbox.limits, sandbox.group),
            sandbox.fork_group.pid_namespace,
        )
        builder, ours = self._fork_builder(namespace, plan, fill, mounts, sandbox.group)
        sandbox.helper_pids.add(builder)
        with ours:
            built = yield ours
        check_report(built, "the sandbox's builder died: its memory limit may be too small")
        assert built is not None
        close_all([*sandbox.namespaces, sandbox.root, sandbox.files])
        sandbox.namespaces, (sandbox.root, sandbox.files), listener = (
            built.fds[:4],
            built.fds[4:6],
            built.fds[6:],
        )
        sandbox.root_prepared = False
        self._reactor.reply(message, listener)
        close_all(listener)

    def stop(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Kill every process of a sandbox and delete its files."""
        # First those still on their way in: they may not have the sandbox's user yet, and need its cgroup to enter.
        for pid in sandbox.session_pids | sandbox.helper_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._release(sandbox)
        fork_group = sandbox.fork_group
        if self._kill_helper is not None and fork_group.members and fork_group.pid_namespace >= 0:
            self._kill_helper.kill(
                range(sandbox.uid, sandbox.uid + (_confine.IDS if sandbox.root_prepared else 1))
            )
        else:
            fork_group.end()
        self._reactor.reply(message)
        yield from ()

    def _release(self, sandbox: SandboxRecord) -> None:
        """Release everything that a sandbox holds except its processes."""
        del self._sandboxes[sandbox.id]
        sandbox.released = True
        sandbox.fork_group.members.discard(sandbox.id)
        self._reactor.broker.cancel(sandbox.uid)
        close_all([*sandbox.namespaces, sandbox.root, sandbox.files])
        self._drop_group(sandbox.id, sandbox.group)
        self._used_uids.append(sandbox.uid)

    def _take_uid(self) -> int:
        if self._config.single_user:
            return 0
        uid = next(self._fresh_uids, None)
        if uid is None and not self._used_uids:
            raise SandboxRequestError(
                "every user id in the runtime's range is in use: stop an instance first"
            )
        return self._used_uids.pop(0) if uid is None else uid

    def _plan(self, uid: int, limits: dict[str, Any], group: _cgroups.Cgroup) -> _namespaces.NamespacePlan:
        single = self._config.single_user
        return _namespaces.NamespacePlan(
            uid,
            1000 if single else uid,
            limits["disk"],
            limits["files"],
            self._config.tree_paths,
            single,
            None if group.members else limits["memory"],
            limits["proxy_port"],
        )

    def _ask_host_monitor(self, fields: _wire.Fields) -> _wire.WireMessage:
        _wire.send(self._host_monitor, fields)
        answer = _wire.receive(self._host_monitor)
        if answer is None:
            os._exit(1)
        if "error" in answer.fields:
            raise SandboxRequestError(answer.fields["error"], answer.fields.get("name", "failed"))
        return answer

    def _make_group(self, name: str, limits: dict[str, Any]) -> _cgroups.Cgroup:
        answer = self._ask_host_monitor(
            {"op": "group", "name": name, "memory": limits["memory"], "processes": limits["processes"]}
        )
        fds = iter(answer.fds)
        members = [next(fds) for _ in range(answer.fields["members"])]
        present = answer.fields["has"]
        return _cgroups.Cgroup(
            members,
            *(next(fds) if kind in present else -1 for kind in ("oom", "memory", "pids", "folder", "cpu")),
        )

    def _drop_group(self, name: str, group: _cgroups.Cgroup) -> None:
        close_all([*group.members, *group[1:]])
        self._ask_host_monitor({"op": "ungroup", "name": name})

    def _mounts(self, request: _wire.Fields) -> list[tuple[str, int]]:
        mounts: dict[str, str] = request["mounts"]
        if not mounts:
            return []
        answer = self._ask_host_monitor({"op": "mounts", "paths": list(mounts.values())})
        return list(zip(mounts, answer.fds, strict=True))
