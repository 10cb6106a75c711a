"""The processes of sandboxes: started, moved, signalled, counted, killed."""

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from runtimes.process.linux import _cgroups, _processes
from runtimes.process.trusted import _confine, _seccomp_broker, _spawn, _wire
from runtimes.process.trusted._members import GONE, Member
from runtimes.process.trusted._reactor import Reactor, RequestError, Waiting, finished

if TYPE_CHECKING:
    from runtimes.process.trusted._zygote_link import ZygoteLink

_KILL_ROUNDS = 200


class Staff:
    """Requests that concern the processes of one sandbox."""

    def __init__(self, reactor: Reactor, world: _spawn.World, zygote: "ZygoteLink | None") -> None:
        self._reactor = reactor
        self._world = world
        self._zygote = zygote

    def _placement(self, member: Member) -> _spawn.Placement:
        return _spawn.Placement(
            member.namespaces,
            _confine.Identity(member.uid, self._world.single_user),
            member.group,
            _spawn.rlimits(member.limits, grouped=bool(member.group.members)),
        )

    def shell(self, member: Member, message: _wire.Message) -> Waiting:
        """Start a shell session."""
        placement, fds = self._placement(member), message.fds
        pid = self._reactor.fork_into(
            member.family.namespace, lambda: _spawn.become_shell(self._world, placement, fds)
        )
        member.lanes.add(pid)
        self._reactor.reply(message, pid=pid)
        yield from ()

    def command(self, member: Member, message: _wire.Message) -> Waiting:
        """Start a single command."""
        placement = self._placement(member)
        if message.fields["user"] not in (None, "agent"):
            yield from self._command_as_user(member, message, placement)
            return
        pid = self._reactor.fork_into(
            member.family.namespace,
            lambda: _spawn.become_command(self._world, placement, message.fds),
        )
        member.lanes.add(pid)
        self._reactor.reply(message, pid=pid)

    def _command_as_user(
        self, member: Member, message: _wire.Message, placement: _spawn.Placement
    ) -> Waiting:
        if self._world.single_user:
            raise RequestError("other users inside need a range of user ids: " + self._world.note, "EPERM")
        if not member.rooted:
            yield from self._give_root_its_files(member)
        ours, theirs = _wire.socket_pair()
        pid = self._reactor.fork_into(
            member.family.namespace,
            lambda: _spawn.become_user_command(self._world, placement, message.fds, theirs),
        )
        theirs.close()
        member.lanes.add(pid)
        with ours:
            finished((yield ours), "the command did not start")
            for kind in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{kind}", "w", encoding="utf-8") as file:
                    file.write(_confine.id_map(member.uid))
            _wire.send(ours, {"mapped": True})
        self._reactor.reply(message, pid=pid)

    def _give_root_its_files(self, member: Member) -> Waiting:
        ours, theirs = _wire.socket_pair()
        give = _spawn.give_root_its_files
        self._reactor.fork(
            lambda: _spawn.tell_outcome(theirs, lambda: give(member.uid, member.namespaces, member.group))
        )
        theirs.close()
        with ours:
            finished((yield ours), "preparing root inside failed")
        member.rooted = True

    def warm(self, message: _wire.Message) -> Waiting:
        """Have the template interpreter ready."""
        assert self._zygote is not None
        answer = yield from self._zygote.ask({"op": "warm", "n": message.fields["n"]}, [])
        self._reactor.reply(message, preloaded=answer["preloaded"])

    def python(self, member: Member, message: _wire.Message) -> Waiting:
        """Start a Python session."""
        fields = message.fields
        request = {
            "op": "session",
            "n": fields["n"],
            "uid": member.uid,
            "rlimits": self._placement(member).rlimits,
            "live": not self._world.single_user,
        }
        assert self._zygote is not None
        fds = [member.family.namespace, *member.namespaces, *message.fds, *member.group.members]
        answer = yield from self._zygote.ask(request, fds)
        member.lanes.add(answer["pid"])
        self._reactor.reply(message, pid=answer["pid"])

    def move_python(self, member: Member, target: Member, message: _wire.Message) -> Waiting:
        """Let one process of `member`, its interpreter's fork, move into the room of `target`."""
        ours, theirs = _wire.socket_pair()
        move = _seccomp_broker.Move(
            member.uid,
            target.uid,
            member.group,
            member.family.namespace,
            target.namespaces,
            target.root,
            target.group,
            message.fds,
            theirs,
        )
        self._reactor.gate.allow(move)
        self._reactor.reply(message, allowed=True)
        outcome = yield ours
        ours.close()
        self._reactor.gate.forget(move)
        if outcome is None or "error" in outcome.fields:
            failure = {"error": outcome.fields["error"] if outcome else "the fork broke off"}
            if member.family.ending:
                failure = {"error": GONE, "name": "gone"}
            self._reactor.tell({"event": "moved", "to": target.id, **failure})
            return
        target.lanes.add(outcome.fields["pid"])
        self._reactor.tell({"event": "moved", "to": target.id, "pid": outcome.fields["pid"]})

    def signal(self, member: Member, message: _wire.Message) -> Waiting:
        """Signal a session or command."""
        pid = message.fields["pid"]
        if pid in member.lanes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, message.fields["signal"])
        self._reactor.reply(message)
        yield from ()

    def _processes_of(self, member: Member) -> dict[int, _processes.ProcessInfo]:
        pids = _cgroups.processes(member.group)
        if pids is None:
            pids = _processes.inside(member.family.namespace, range(member.uid, member.uid + _confine.IDS))
        # What is done for a sandbox (its files are listed, packed, copied) its limits bind, but it is not of the sandbox.
        # A command's keeper hides from who has no power outside: without groups it is not found, but known.
        own = {*pids} - self._reactor.children | member.lanes
        infos = (_processes.read_process(pid) for pid in own - {member.family.init})
        return {info.pid: info for info in infos if info is not None}

    def kill_run(self, member: Member, message: _wire.Message) -> Waiting:
        """Kill what one run started: the lane's descendants born since, and orphans born since."""
        lane, since = message.fields["pid"], _processes.ticks(self._begun(message.fields)) - 1
        killed: set[int] = set()
        # Bounded: processes that replace themselves faster than they are found must not hold up everybody else.
        for _ in range(_KILL_ROUNDS):
            processes = self._processes_of(member)
            found = {p for p in processes if self._is_victim(processes, p, lane, since, member.lanes)}
            # Those that are dying count as dead: at idle priority that can take them a while.
            if found <= killed:
                break
            for pid in found - killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= found
        self._reactor.reply(message)
        yield from ()

    def _begun(self, fields: _wire.Fields) -> float:
        """When a run began, in seconds since boot, however long its request was on the way."""
        return fields["since"]

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

    def events(self, member: Member, message: _wire.Message) -> Waiting:
        """What the member uses, and how often it hit its limits."""
        found = self._processes_of(member)
        processes = {pid: info for pid, info in found.items() if info.state not in "ZX"}
        tick = os.sysconf("SC_CLK_TCK")
        group = member.group
        self._reactor.reply(
            message,
            memory=_cgroups.number(group.memory)
            if group.memory >= 0
            else _processes.memory_of(list(processes)),
            processes=len(processes),
            others=[info.name for pid, info in processes.items() if pid not in member.lanes],
            cpu=sum(info.cpu_ticks for info in processes.values()) / tick,
        )
        yield from ()
