"""The mason: builds rooms, puts processes into them, moves forks, ends them.

The first process of the runtime's own pid namespace: when it dies, everything it ever made dies with it. It has
power in the runtime's user namespace only, is single-threaded, and runs nothing untrusted. Requests come over a
socket; each is a generator that yields the sockets it waits for, so that a slow one holds up nobody.
"""

import contextlib
import errno
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from runtimes.process import (
    _cgroups,
    _confine,
    _copy,
    _files,
    _gate,
    _processes,
    _rooms,
    _spawn,
    _wire,
    _zygote,
)
from runtimes.process import _syscalls as sc

_FIRST_UID = 1024

Waiting = Generator[socket.socket, _wire.Message | None, None]
"""A request in progress: yields a socket, gets its next message."""


@dataclass(slots=True)
class Family:
    """A sandbox and its forks: they share one pid namespace, whose first process only reaps."""

    init: int
    """The pid of that first process."""
    namespace: int
    """The pid namespace's descriptor."""
    members: set[str] = field(default_factory=set[str])
    """Ids of the living members."""


@dataclass(slots=True)
class Member:
    """One sandbox."""

    id: str
    """Its name."""
    uid: int
    """Its user in the runtime's user namespace."""
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
    lanes: set[int] = field(default_factory=set[int])
    """Pids of its live sessions."""
    rooted: bool = False
    """Root inside has its files."""


class RequestError(Exception):
    """A request that can't be carried out; `name` is an errno's name or `failed`."""

    def __init__(self, message: str, name: str = "failed") -> None:
        super().__init__(message)
        self.name = name


class Mason:
    """The request loop and what it looks after."""

    def __init__(self, server: socket.socket, warden: socket.socket, world: _spawn.World) -> None:
        self._server = server
        self._warden = warden
        self._world = world
        self._selector = selectors.DefaultSelector()
        self._members: dict[str, Member] = {}
        self._uids = iter(range(_FIRST_UID, 65536 - _confine.IDS, _confine.IDS))
        self._free_uids: list[int] = []
        self._gate = _gate.Gate(self._selector)
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._zygote: socket.socket | None = None
        self._zygote_pid = 0
        self._zygote_replies: dict[int, socket.socket] = {}
        self._requests: dict[str, Callable[[Member, _wire.Message], Waiting]] = {
            "check_archive": self._check_archive,
            "copy": self._copy_member,
            "events": self._events,
            "exec": self._exec,
            "file": self._file,
            "kill_run": self._kill_run,
            "move_python": self._move_python,
            "pack": self._pack,
            "python": self._python,
            "shell": self._shell,
            "signal": self._signal,
            "stop": self._stop,
            "unpack": self._unpack,
        }

    # -- the loop ---------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve until the server's end of the socket closes."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._selector.register(wake_read, selectors.EVENT_READ, self._reap)
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._wake = wake_read
        while True:
            for key, _ in self._selector.select(self._gate.pause()):
                key.data()

    def _accept(self) -> None:
        message = _wire.receive(self._server)
        if message is None:
            os._exit(0)
        request = message.fields
        op = request["op"]
        try:
            if op == "open":
                waiting = self._open(message)
            elif op == "warm":
                waiting = self._warm(message)
            else:
                member = self._members.get(request["member"])
                if member is None:
                    raise RequestError("the instance has ended", "gone")
                waiting = self._requests[op](member, message)
        except RequestError as error:
            self._reply(request, error=str(error), name=error.name)
            _close(message.fds)
            return
        self._advance(waiting, message, None)

    def _advance(self, waiting: Waiting, message: _wire.Message, answer: _wire.Message | None) -> None:
        try:
            sock = waiting.send(answer)
        except StopIteration:
            _close(message.fds)
            return
        except (RequestError, OSError, ValueError) as error:
            name = error.name if isinstance(error, RequestError) else _errno_name(error)
            self._reply(message.fields, error=str(error), name=name)
            _close(message.fds)
            return

        def resume() -> None:
            self._selector.unregister(sock)
            self._advance(waiting, message, _wire.receive(sock))

        self._selector.register(sock, selectors.EVENT_READ, resume)

    def _reply(self, request: _wire.Fields, fds: list[int] | None = None, **fields: object) -> None:
        self._tell({"re": request["n"], **fields}, fds or [])

    def _tell(self, fields: _wire.Fields, fds: list[int]) -> None:
        with contextlib.suppress(BrokenPipeError):
            _wire.send(self._server, fields, fds)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 512):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._zygote_pid:
                self._zygote_died()
            self._ended(pid, status)

    def _ended(self, pid: int, status: int) -> None:
        for member in self._members.values():
            member.lanes.discard(pid)
        self._tell({"event": "exit", "pid": pid, "status": os.waitstatus_to_exitcode(status)}, [])

    # -- children ---------------------------------------------------------------------------------------

    def _fork_into_new(self, body: Callable[[], None]) -> int:
        sc.unshare(sc.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _spawn.run_child(body)
        sc.setns(self._own_pid_namespace, sc.CLONE_NEWPID)
        return pid

    def _fork_into(self, namespace: int, body: Callable[[], None]) -> int:
        sc.setns(namespace, sc.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _spawn.run_child(body)
        sc.setns(self._own_pid_namespace, sc.CLONE_NEWPID)
        return pid

    # -- members ----------------------------------------------------------------------------------------

    def _take_uid(self) -> int:
        if self._world.single_user:
            return 0
        for uid in self._uids:
            return uid
        if not self._free_uids:
            raise RequestError("every user id of the runtime's range is in use")
        return self._free_uids.pop(0)

    def _plan(self, uid: int, limits: dict[str, Any]) -> _rooms.RoomPlan:
        single = self._world.single_user
        return _rooms.RoomPlan(
            uid, 1000 if single else uid, limits["disk"], limits["files"], self._world.places, single
        )

    def _ask_warden(self, fields: _wire.Fields) -> _wire.Message:
        _wire.send(self._warden, fields)
        answer = _wire.receive(self._warden)
        if answer is None:
            os._exit(1)
        if answer.fields.get("error"):
            raise RequestError(answer.fields["error"], answer.fields.get("name", "failed"))
        return answer

    def _new_group(self, member_id: str, limits: dict[str, Any]) -> _cgroups.Group:
        answer = self._ask_warden(
            {"op": "group", "name": member_id, "memory": limits["memory"], "processes": limits["processes"]}
        )
        fds = iter(answer.fds)
        has = answer.fields["has"]
        members = [next(fds) for _ in range(answer.fields["members"])]
        return _cgroups.Group(
            members, *(next(fds) if name in has else -1 for name in ("oom", "memory", "pids"))
        )

    def _mount_fds(self, mounts: dict[str, str]) -> list[tuple[str, int]]:
        if not mounts:
            return []
        answer = self._ask_warden({"op": "mounts", "paths": list(mounts.values())})
        return list(zip(mounts, answer.fds, strict=True))

    def _open(self, message: _wire.Message) -> Waiting:
        request = message.fields
        limits = request["limits"]
        mounts = self._mount_fds(request.get("mounts", {}))
        group = self._new_group(request["id"], limits)
        uid = self._take_uid()
        ours, theirs = _wire.socket_pair()

        def body() -> None:
            _spawn.build_and_tell(theirs, self._plan(uid, limits), None, mounts)
            _spawn.sleep_as_init(self._world)

        init = self._fork_into_new(body)
        theirs.close()
        _close([fd for _, fd in mounts])
        family = Family(init, os.open(f"/proc/{init}/ns/pid", os.O_RDONLY | os.O_CLOEXEC))
        yield from self._settle_in(message, ours, family, uid, group, limits)

    def _copy_member(self, member: Member, message: _wire.Message) -> Waiting:
        request = message.fields
        if self._world.single_user:
            raise RequestError(
                "forking needs a range of user ids: install uidmap and add lines to /etc/subuid, /etc/subgid"
            )
        group = self._new_group(request["id"], member.limits)
        uid = self._take_uid()
        ours, theirs = _wire.socket_pair()
        mounts = self._mount_fds(request.get("mounts", {}))

        def body() -> None:
            _cgroups.attach(group)
            source = (member.files, member.uid)
            _spawn.build_and_tell(theirs, self._plan(uid, member.limits), source, mounts)

        self._fork_into(member.family.namespace, body)
        theirs.close()
        _close([fd for _, fd in mounts])
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
        request = message.fields
        if built is None or not built.fields["built"]:
            if not family.members:
                self._end_family(family)
            _close([*group.members, *(fd for fd in group[1:] if fd >= 0)])
            self._ask_warden({"op": "ungroup", "name": request["id"]})
            self._free_uids.append(uid)
            reason = built.fields["error"] if built else "the builder died"
            raise RequestError(reason, built.fields.get("name", "failed") if built else "failed")
        *namespaces, root, files = built.fds
        member = Member(request["id"], uid, family, namespaces, root, files, group, limits)
        family.members.add(member.id)
        self._members[member.id] = member
        self._reply(request, uid=uid)

    def _stop(self, member: Member, message: _wire.Message) -> Waiting:
        del self._members[member.id]
        self._gate.cancel(member.uid)
        family = member.family
        family.members.discard(member.id)
        if family.members:
            ours, theirs = _wire.socket_pair()
            kill = _spawn.kill_users if member.rooted else _spawn.kill_user
            self._fork_into(family.namespace, lambda: kill(member.uid, theirs))
            theirs.close()
            yield ours
            ours.close()
        else:
            self._end_family(family)
        _close([*member.namespaces, member.root, member.files])
        _close([*member.group.members, *(fd for fd in member.group[1:] if fd >= 0)])
        self._ask_warden({"op": "ungroup", "name": member.id})
        if not self._world.single_user:
            self._free_uids.append(member.uid)
        self._reply(message.fields)

    def _end_family(self, family: Family) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(family.init, signal.SIGKILL)
        os.close(family.namespace)

    # -- processes --------------------------------------------------------------------------------------

    def _placement(self, member: Member) -> _spawn.Placement:
        return _spawn.Placement(
            member.namespaces,
            _confine.Identity(member.uid, self._world.single_user),
            member.group,
            _spawn.rlimits(member.limits, grouped=bool(member.group.members)),
        )

    def _shell(self, member: Member, message: _wire.Message) -> Waiting:
        fields, fds = message.fields, message.fds
        placement = self._placement(member)
        pid = self._fork_into(
            member.family.namespace,
            lambda: _spawn.become_shell(self._world, placement, fields["env"], fds),
        )
        member.lanes.add(pid)
        self._reply(fields, pid=pid)
        return
        yield

    def _exec(self, member: Member, message: _wire.Message) -> Waiting:
        fields, fds = message.fields, message.fds
        placement = self._placement(member)
        if fields["user"] not in (None, "agent"):
            yield from self._exec_as_user(member, message, placement)
            return
        pid = self._fork_into(
            member.family.namespace,
            lambda: _spawn.become_command(self._world, placement, fields, fds),
        )
        member.lanes.add(pid)
        self._reply(fields, pid=pid)

    def _exec_as_user(self, member: Member, message: _wire.Message, placement: _spawn.Placement) -> Waiting:
        if self._world.single_user:
            raise RequestError("other users inside need a range of user ids: " + self._world.note, "EPERM")
        if not member.rooted:
            yield from self._give_root_its_files(member)
        ours, theirs = _wire.socket_pair()
        pid = self._fork_into(
            member.family.namespace,
            lambda: _spawn.become_user_command(self._world, placement, message.fields, message.fds, theirs),
        )
        theirs.close()
        member.lanes.add(pid)
        with ours:
            if (yield ours) is None:
                raise RequestError("the command did not start")
            for kind in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{kind}", "w", encoding="utf-8") as file:
                    file.write(_confine.id_map(member.uid))
            _wire.send(ours, {"mapped": True})
        self._reply(message.fields, pid=pid)

    def _give_root_its_files(self, member: Member) -> Waiting:
        ours, theirs = _wire.socket_pair()

        def child() -> None:
            _spawn.tell_outcome(
                theirs, lambda: _spawn.give_root_its_files(member.uid, member.namespaces, member.group)
            )

        if os.fork() == 0:
            _spawn.run_child(child)
        theirs.close()
        outcome = yield ours
        ours.close()
        if outcome is None or "error" in outcome.fields:
            raise RequestError(outcome.fields["error"] if outcome else "preparing root inside failed")
        member.rooted = True

    def _start_zygote(self) -> None:
        ours, theirs = _wire.socket_pair()
        world, preload = self._world, self._world.preload
        plan = self._plan(0, {"disk": 64 << 20, "files": 10_000})

        def body() -> None:
            _zygote.main(theirs, world, plan, preload)

        self._zygote_pid = os.fork()
        if self._zygote_pid == 0:
            _spawn.run_child(body, keep=[theirs.fileno()])
        theirs.close()
        self._zygote = ours
        self._selector.register(ours, selectors.EVENT_READ, self._from_zygote)

    def _zygote_died(self) -> None:
        if self._zygote is not None:
            self._selector.unregister(self._zygote)
            self._zygote.close()
        self._zygote = None
        for sock in self._zygote_replies.values():
            _wire.send(sock, {"error": "the interpreter's template process died"})
            sock.close()
        self._zygote_replies.clear()

    def _from_zygote(self) -> None:
        assert self._zygote is not None
        message = _wire.receive(self._zygote)
        if message is None:
            return
        fields = message.fields
        if "listener" in fields:
            self._gate.add(message.fds[0])
        elif "exited" in fields:
            for member in self._members.values():
                member.lanes.discard(fields["exited"])
            self._tell({"event": "exit", "pid": fields["exited"], "status": fields["status"]}, [])
        else:
            sock = self._zygote_replies.pop(fields["n"])
            _wire.send(sock, fields)
            sock.close()

    def _ask_zygote(
        self, fields: _wire.Fields, fds: list[int]
    ) -> Generator[socket.socket, Any, _wire.Fields]:
        if self._zygote is None:
            self._start_zygote()
        assert self._zygote is not None
        ours, theirs = _wire.socket_pair()
        self._zygote_replies[fields["n"]] = theirs
        _wire.send(self._zygote, fields, fds)
        answer = yield ours
        ours.close()
        if answer is None or "error" in answer.fields:
            raise RequestError(
                answer.fields["error"] if answer else "the interpreter's template process died"
            )
        return answer.fields

    def _warm(self, message: _wire.Message) -> Waiting:
        answer = yield from self._ask_zygote({"op": "warm", "n": message.fields["n"]}, [])
        self._reply(message.fields, preloaded=answer["preloaded"])

    def _python(self, member: Member, message: _wire.Message) -> Waiting:
        fields = message.fields
        placement = self._placement(member)
        answer = yield from self._ask_zygote(
            {
                "op": "session",
                "n": fields["n"],
                "uid": member.uid,
                "env": fields["env"],
                "rlimits": placement.rlimits,
                "groups": len(member.group.members),
                "live": not self._world.single_user,
            },
            [member.family.namespace, *member.namespaces, *message.fds, *member.group.members],
        )
        member.lanes.add(answer["pid"])
        self._reply(fields, pid=answer["pid"])

    def _move_python(self, member: Member, message: _wire.Message) -> Waiting:
        """Let one process of `member` move into the room of the member `to`: its interpreter's fork."""
        fields = message.fields
        target = self._members.get(fields["to"])
        if target is None:
            raise RequestError("the fork has ended", "gone")
        ours, theirs = _wire.socket_pair()
        move = _gate.Move(
            member.uid,
            target.uid,
            member.family.namespace,
            target.namespaces,
            target.root,
            target.group,
            message.fds,
            theirs,
        )
        self._gate.allow(move)
        self._reply(fields, allowed=True)
        outcome = yield ours
        ours.close()
        self._gate.forget(move)
        if outcome is None or "error" in outcome.fields:
            reason = outcome.fields["error"] if outcome else "the fork died"
            self._tell({"event": "moved", "to": target.id, "error": reason}, [])
            return
        target.lanes.add(outcome.fields["pid"])
        self._tell({"event": "moved", "to": target.id, "pid": outcome.fields["pid"]}, [])

    def _signal(self, member: Member, message: _wire.Message) -> Waiting:
        pid = message.fields["pid"]
        if pid in member.lanes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, message.fields["signal"])
        self._reply(message.fields)
        return
        yield

    def _processes_of(self, member: Member) -> dict[int, _processes.ProcessInfo]:
        pids = _cgroups.processes(member.group)
        if pids is None:
            pids = _processes.inside(member.family.namespace, range(member.uid, member.uid + _confine.IDS))
        infos = (_processes.read_process(pid) for pid in pids if pid != member.family.init)
        return {info.pid: info for info in infos if info is not None}

    def _kill_run(self, member: Member, message: _wire.Message) -> Waiting:
        """Kill what one run started: the lane's descendants born since, and orphans born since."""
        lane, age = message.fields["pid"], message.fields["age"]
        since = _processes.ticks_now() - int(age * os.sysconf("SC_CLK_TCK")) - 1
        for _ in range(100):
            processes = self._processes_of(member)
            victims = [p for p in processes if self._is_victim(processes, p, lane, since, member.lanes)]
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not victims:
                break
        self._reply(message.fields)
        return
        yield

    def _is_victim(
        self, processes: dict[int, _processes.ProcessInfo], pid: int, lane: int, since: int, lanes: set[int]
    ) -> bool:
        info = processes[pid]
        if pid in lanes or info.started < since or info.state in "ZX":
            return False
        chain = _processes.lineage(processes, pid)
        if lane in chain:
            return True
        return not lanes.intersection(chain)

    # -- files ------------------------------------------------------------------------------------------

    def _file(self, member: Member, message: _wire.Message) -> Waiting:
        request = message.fields
        fds, answer = _files.perform(member.root, member.uid, request)
        self._reply(request, fds, **answer)
        _close(fds)
        return
        yield

    def _pack(self, member: Member, message: _wire.Message) -> Waiting:
        yield from self._tar(
            member, message, lambda out: _copy.pack(member.files, _rooms.SAVED_FOLDERS, out), "wb"
        )

    def _check_archive(self, member: Member, message: _wire.Message) -> Waiting:
        yield from self._tar(member, message, lambda source: _copy.check(_rooms.SAVED_FOLDERS, source), "rb")

    def _unpack(self, member: Member, message: _wire.Message) -> Waiting:
        def body(source: Any) -> None:
            source.seek(0)
            _copy.empty(member.files, _rooms.SAVED_FOLDERS)
            _copy.unpack(member.files, _rooms.SAVED_FOLDERS, member.uid, source)

        yield from self._tar(member, message, body, "rb")

    def _tar(self, member: Member, message: _wire.Message, body: Callable[[Any], None], mode: str) -> Waiting:
        ours, theirs = _wire.socket_pair()
        fd = message.fds[0]

        def child() -> None:
            _cgroups.attach(member.group)
            _spawn.tell_outcome(theirs, lambda: _spawn.with_file(fd, mode, body))

        if os.fork() == 0:
            _spawn.run_child(child)
        theirs.close()
        outcome = yield ours
        ours.close()
        if outcome is None or "error" in outcome.fields:
            raise RequestError(
                outcome.fields["error"] if outcome else "the archiver died (out of memory?)",
                outcome.fields["name"] if outcome else "ENOSPC",
            )
        self._reply(message.fields)

    def _events(self, member: Member, message: _wire.Message) -> Waiting:
        """What the member uses, and how often it hit its limits."""
        found = self._processes_of(member)
        processes = {pid: info for pid, info in found.items() if info.state not in "ZX"}
        tick = os.sysconf("SC_CLK_TCK")
        group = member.group
        self._reply(
            message.fields,
            oom=_cgroups.counter(group.oom, "oom_kill"),
            pids=_cgroups.counter(group.pids_events, "max"),
            memory=_cgroups.number(group.memory)
            if group.memory >= 0
            else _processes.memory_of(list(processes)),
            processes=len(processes),
            others=[info.name for pid, info in processes.items() if pid not in member.lanes],
            cpu=sum(info.cpu_ticks for info in processes.values()) / tick,
        )
        return
        yield


def _close(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _errno_name(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, "failed")
    return "failed"


def main(server: socket.socket, warden: socket.socket, world: _spawn.World) -> None:
    """Serve, as the first process of the runtime's pid namespace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        Mason(server, warden, world).serve()
    except Exception as error:
        # The boundary of the process: nobody above could hear of it otherwise.
        print(f"agentflow: the runtime's builder failed: {error!r}", file=sys.stderr)
        raise
