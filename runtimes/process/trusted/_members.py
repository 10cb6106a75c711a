"""Sandboxes and their families: made, copied, ended."""

import contextlib
import os
import signal
import socket
from dataclasses import dataclass, field
from typing import Any

from runtimes.process.linux import _cgroups, _processes
from runtimes.process.trusted import _confine, _namespaces, _spawn, _wire
from runtimes.process.trusted._killer import Killer
from runtimes.process.trusted._reactor import Reactor, RequestError, Waiting, close_all, finished

GONE = "the instance has ended"
_FIRST_UID = 1024
_LAST_UID = 65536 - _confine.IDS


@dataclass(slots=True)
class Family:
    """A sandbox and its forks: they share one pid namespace, whose first process only reaps."""

    init: int
    """The pid of that first process."""
    namespace: int
    """The pid namespace's descriptor."""
    members: set[str] = field(default_factory=set[str])
    """Ids of the living members."""

    @property
    def ending(self) -> bool:
        """It has ended or is about to: the first process is dead or dying, and nothing can be started beside it."""
        return self.namespace < 0 or _processes.is_ending(self.init)

    def end(self) -> None:
        """Kill the first process, and with it all others; at once."""
        if self.namespace >= 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            os.close(self.namespace)
            self.namespace = -1


@dataclass(slots=True)
class Member:
    """One sandbox."""

    id: str
    """Its name."""
    uid: int
    """Its user in the runtime's user namespace: the first of its block of ids."""
    family: Family
    """Its family."""
    namespaces: list[int]
    """Descriptors of its mount, net, ipc and uts namespaces."""
    root: int
    """Its root, for opening files."""
    files: int
    """Its writable layers."""
    group: _cgroups.Group
    """Its cgroup."""
    limits: dict[str, Any]
    """Its limits, as sent."""
    rooted: bool = False
    """Root inside has its files."""
    lanes: set[int] = field(default_factory=set[int])
    """Pids of its live sessions and commands."""


class Members:
    """All sandboxes of the runtime."""

    def __init__(self, reactor: Reactor, warden: socket.socket, world: _spawn.World) -> None:
        self._reactor = reactor
        self._warden = warden
        self._world = world
        self._killer = Killer(reactor.fork)
        self._members: dict[str, Member] = {}
        self._fresh_uids = iter(range(_FIRST_UID, _LAST_UID, _confine.IDS))
        self._used_uids: list[int] = []

    def find(self, name: str) -> Member:
        """A living member.

        :raises RequestError: if there is none of that name.
        """
        member = self._members.get(name)
        if member is None:
            raise RequestError(GONE, "gone")
        return member

    def forget_process(self, pid: int) -> None:
        """A process of ours has ended. Where it was a family's first, all its members have."""
        for member in list(self._members.values()):
            member.lanes.discard(pid)
            if member.family.init == pid:
                member.family.end()
                self._bury(member)

    def open(self, message: _wire.Message) -> Waiting:
        """Make a sandbox, the first of a new family."""
        request = message.fields
        limits = request["limits"]
        mounts = self._mounts(request)
        group = self._make_group(request["id"], limits)
        uid = self._take_uid()
        ours, theirs = _wire.socket_pair()

        def body() -> None:
            _spawn.build_and_tell(theirs, self._plan(uid, limits), None, mounts)
            _spawn.sleep_as_init(self._world)

        init = self._reactor.fork_into(None, body)
        theirs.close()
        close_all([fd for _, fd in mounts])
        family = Family(init, os.open(f"/proc/{init}/ns/pid", os.O_RDONLY | os.O_CLOEXEC))
        yield from self._settle_in(message, ours, family, uid, group, limits)

    def copy(self, member: Member, message: _wire.Message) -> Waiting:
        """Make a sandbox in the same family whose files are a copy of this one's."""
        request = message.fields
        if self._world.single_user:
            raise RequestError(self._world.note)
        mounts = self._mounts(request)
        group = self._make_group(request["id"], member.limits)
        uid = self._take_uid()
        ours, theirs = _wire.socket_pair()

        def body() -> None:
            _cgroups.attach(group)
            fill = _namespaces.copy_of(member.files, member.uid, uid)
            _spawn.build_and_tell(theirs, self._plan(uid, member.limits), fill, mounts)

        self._reactor.fork_into(member.family.namespace, body)
        theirs.close()
        close_all([fd for _, fd in mounts])
        yield from self._settle_in(message, ours, member.family, uid, group, member.limits)
        self._members[request["id"]].rooted = member.rooted

    def _settle_in(
        self,
        message: _wire.Message,
        ours: socket.socket,
        family: Family,
        uid: int,
        group: _cgroups.Group,
        limits: dict[str, Any],
    ) -> Waiting:
        built = yield ours
        ours.close()
        name = message.fields["id"]
        if built is None or "error" in built.fields:
            if not family.members:
                family.end()
            self._drop_group(name, group)
            self._used_uids.append(uid)
            if built is None:
                raise RequestError("the sandbox's builder died")
            raise RequestError(built.fields["error"], built.fields["name"])
        *namespaces, root, files = built.fds
        family.members.add(name)
        self._members[name] = Member(name, uid, family, namespaces, root, files, group, limits)
        counters = {"oom": group.oom, "pids": group.pids_events}
        present = {kind: fd for kind, fd in counters.items() if fd >= 0}
        self._reactor.reply(message, list(present.values()), uid=uid, counters=list(present))

    def refurnish(self, member: Member, message: _wire.Message) -> Waiting:
        """Give a sandbox, in which nothing runs any more, a new room with the files of an archive."""
        mounts = self._mounts(message.fields)
        ours, theirs = _wire.socket_pair()

        def body() -> None:
            _cgroups.attach(member.group)
            fill = _namespaces.contents_of(message.fds[0], member.uid)
            _spawn.build_and_tell(theirs, self._plan(member.uid, member.limits), fill, mounts)

        self._reactor.fork_into(member.family.namespace, body)
        theirs.close()
        close_all([fd for _, fd in mounts])
        with ours:
            built = yield ours
        finished(built, "the sandbox's builder died: its memory limit may be too small")
        assert built is not None
        close_all([*member.namespaces, member.root, member.files])
        *member.namespaces, member.root, member.files = built.fds
        member.rooted = False
        self._reactor.reply(message)

    def stop(self, member: Member, message: _wire.Message) -> Waiting:
        """End a sandbox: every process, every file."""
        self._bury(member)
        family = member.family
        if family.members and family.namespace >= 0:
            self._killer.kill(range(member.uid, member.uid + (_confine.IDS if member.rooted else 1)))
        else:
            family.end()
        self._reactor.reply(message)
        yield from ()

    def _bury(self, member: Member) -> None:
        """Give back all that a member held but its processes."""
        del self._members[member.id]
        member.family.members.discard(member.id)
        self._reactor.gate.cancel(member.uid)
        close_all([*member.namespaces, member.root, member.files])
        self._drop_group(member.id, member.group)
        self._used_uids.append(member.uid)

    def _take_uid(self) -> int:
        if self._world.single_user:
            return 0
        uid = next(self._fresh_uids, None)
        if uid is None and not self._used_uids:
            raise RequestError("every user id of the runtime's range is in use")
        return self._used_uids.pop(0) if uid is None else uid

    def _plan(self, uid: int, limits: dict[str, Any]) -> _namespaces.RoomPlan:
        single = self._world.single_user
        return _namespaces.RoomPlan(
            uid, 1000 if single else uid, limits["disk"], limits["files"], self._world.places, single
        )

    def _ask_warden(self, fields: _wire.Fields) -> _wire.Message:
        _wire.send(self._warden, fields)
        answer = _wire.receive(self._warden)
        if answer is None:
            os._exit(1)
        if "error" in answer.fields:
            raise RequestError(answer.fields["error"], answer.fields.get("name", "failed"))
        return answer

    def _make_group(self, name: str, limits: dict[str, Any]) -> _cgroups.Group:
        answer = self._ask_warden(
            {"op": "group", "name": name, "memory": limits["memory"], "processes": limits["processes"]}
        )
        fds = iter(answer.fds)
        members = [next(fds) for _ in range(answer.fields["members"])]
        present = answer.fields["has"]
        return _cgroups.Group(
            members, *(next(fds) if kind in present else -1 for kind in ("oom", "memory", "pids", "folder"))
        )

    def _drop_group(self, name: str, group: _cgroups.Group) -> None:
        close_all([*group.members, *group[1:]])
        self._ask_warden({"op": "ungroup", "name": name})

    def _mounts(self, request: _wire.Fields) -> list[tuple[str, int]]:
        mounts: dict[str, str] = request["mounts"]
        if not mounts:
            return []
        answer = self._ask_warden({"op": "mounts", "paths": list(mounts.values())})
        return list(zip(mounts, answer.fds, strict=True))
