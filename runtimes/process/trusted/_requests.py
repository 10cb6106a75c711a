"""Requests about the processes and the files of one sandbox."""

import contextlib
import functools
import os
import signal
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Literal

from runtimes.process.linux import _cgroups, _processes
from runtimes.process.trusted import _archive, _confine, _files, _seccomp_broker, _spawn, _wire
from runtimes.process.trusted._reactor import (
    PendingRequest,
    Reactor,
    SandboxRequestError,
    check_report,
    close_all,
)
from runtimes.process.trusted._sandboxes import GONE, SandboxRecord

if TYPE_CHECKING:
    from runtimes.process.trusted._zygote import ZygoteClient

_KILL_ROUNDS = 200
LISTING_BYTES = 64 << 20
_SMALL_BYTES = 64 << 20
_ENTRY_BYTES = 4096
"""Bytes of an archive for the name, times and attributes of a file."""


class ProcessRequests:
    """Start, move, signal, count and kill processes of a sandbox."""

    def __init__(self, reactor: Reactor, config: _spawn.RuntimeConfig, zygote: "ZygoteClient | None") -> None:
        self._reactor = reactor
        self._config = config
        self._zygote = zygote

    def _placement(self, sandbox: SandboxRecord) -> _spawn.ProcessPlacement:
        return _spawn.ProcessPlacement(
            sandbox.namespaces,
            _confine.Identity(sandbox.uid, self._config.single_user),
            sandbox.group,
            _spawn.rlimits(sandbox.limits, grouped=bool(sandbox.group.members)),
        )

    def _start(self, sandbox: SandboxRecord, message: _wire.WireMessage, body: Callable[[], None]) -> None:
        """Fork a session or command of a sandbox and reply with its pid."""
        pid = self._reactor.fork_into(sandbox.fork_group.pid_namespace, body)
        sandbox.session_pids.add(pid)
        self._reactor.reply(message, pid=pid)

    def shell(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Start a shell session."""
        placement = self._placement(sandbox)
        self._start(sandbox, message, lambda: _spawn.become_shell(self._config, placement, message.fds))
        yield from ()

    def command(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Start a single command."""
        placement = self._placement(sandbox)
        if message.fields["user"] not in (None, "agent"):
            yield from self._command_as_user(sandbox, message, placement)
            return
        self._start(sandbox, message, lambda: _spawn.become_command(self._config, placement, message.fds))

    def _command_as_user(
        self, sandbox: SandboxRecord, message: _wire.WireMessage, placement: _spawn.ProcessPlacement
    ) -> PendingRequest:
        if self._config.single_user:
            raise SandboxRequestError(
                "running as another user needs a range of user ids: " + self._config.note, "EPERM"
            )
        if not sandbox.root_prepared:
            yield from self._chown_system_files(sandbox)
        ours, theirs = _wire.socket_pair()
        pid = self._reactor.fork_into(
            sandbox.fork_group.pid_namespace,
            lambda: _spawn.become_user_command(self._config, placement, message.fds, theirs),
        )
        theirs.close()
        sandbox.session_pids.add(pid)
        with ours:
            check_report((yield ours), "the command did not start")
            for kind in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{kind}", "w", encoding="utf-8") as file:
                    file.write(_confine.id_map(sandbox.uid))
            _wire.send(ours, {"mapped": True})
        self._reactor.reply(message, pid=pid)

    def _chown_system_files(self, sandbox: SandboxRecord) -> PendingRequest:
        ours, theirs = _wire.socket_pair()
        body = functools.partial(_spawn.chown_system_files, sandbox.uid, sandbox.namespaces, sandbox.group)
        sandbox.helper_pids.add(self._reactor.fork(lambda: _spawn.report_outcome(theirs, body)))
        theirs.close()
        with ours:
            check_report((yield ours), "preparing the files of root inside failed")
        sandbox.root_prepared = True

    def warm(self, message: _wire.WireMessage) -> PendingRequest:
        """Start the zygote and let it import its modules."""
        assert self._zygote is not None
        answer = yield from self._zygote.ask({"op": "warm", "n": message.fields["n"]}, [])
        self._reactor.reply(message, preloaded=answer["preloaded"])

    def python(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Start a Python session."""
        fields = message.fields
        request = {
            "op": "session",
            "n": fields["n"],
            "uid": sandbox.uid,
            "rlimits": self._placement(sandbox).rlimits,
            "live": not self._config.single_user,
        }
        assert self._zygote is not None
        fds = [sandbox.fork_group.pid_namespace, *sandbox.namespaces, *message.fds, *sandbox.group.members]
        answer = yield from self._zygote.ask(request, fds)
        sandbox.session_pids.add(answer["pid"])
        self._reactor.reply(message, pid=answer["pid"])

    def move_python(
        self, sandbox: SandboxRecord, target: SandboxRecord, message: _wire.WireMessage
    ) -> PendingRequest:
        """Let one process of `sandbox`, the fork of its interpreter, move into `target`."""
        ours, theirs = _wire.socket_pair()
        move = _seccomp_broker.ForkMove(
            sandbox.uid,
            target.uid,
            sandbox.group,
            sandbox.fork_group.pid_namespace,
            target.namespaces,
            target.root,
            target.group,
            message.fds,
            theirs,
        )
        self._reactor.broker.allow(move)
        self._reactor.reply(message, allowed=True)
        outcome = yield ours
        ours.close()
        self._reactor.broker.forget(move)
        if outcome is None or "error" in outcome.fields:
            failure = {"error": outcome.fields["error"] if outcome else "the fork did not finish its move"}
            if sandbox.fork_group.ending:
                failure = {"error": GONE, "name": "gone"}
            self._reactor.notify({"event": "moved", "to": target.id, **failure})
            return
        target.session_pids.add(outcome.fields["pid"])
        self._reactor.notify({"event": "moved", "to": target.id, "pid": outcome.fields["pid"]})

    def signal(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Send a signal to a session or command."""
        pid = message.fields["pid"]
        if pid in sandbox.session_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, message.fields["signal"])
        self._reactor.reply(message)
        yield from ()

    def _processes_of(self, sandbox: SandboxRecord) -> dict[int, _processes.ProcessInfo]:
        pids = _cgroups.processes(sandbox.group)
        if pids is None:
            pids = _processes.pids_in_namespace(
                sandbox.fork_group.pid_namespace, range(sandbox.uid, sandbox.uid + _confine.IDS)
            )
        # Children that list, pack or copy files run under the sandbox's limits but do not count as its processes.
        # Without cgroups, /proc hides a command's supervisor; it is known by its pid.
        counted = {*pids} - self._reactor.children | sandbox.session_pids
        infos = (_processes.read_process(pid) for pid in counted - {sandbox.fork_group.init})
        return {info.pid: info for info in infos if info is not None}

    def kill_run(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Kill the processes started since a run began: descendants of its session, and orphans."""
        session, since = message.fields["pid"], _processes.ticks(self._run_start(message.fields)) - 1
        killed: set[int] = set()
        # Bounded: processes that respawn faster than they are found must not block other requests.
        for _ in range(_KILL_ROUNDS):
            processes = self._processes_of(sandbox)
            victims = _victims(processes, session, since, sandbox.session_pids)
            # Dying processes count as dead: at idle priority they can take a while to go.
            if victims.keys() <= killed:
                break
            # Parents first: one that saw its child die would go on until it is killed, too.
            for pid in sorted(victims.keys() - killed, key=victims.__getitem__):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= victims.keys()
        self._reactor.reply(message)
        yield from ()

    def _run_start(self, fields: _wire.Fields) -> float:
        """Return the start of a run in seconds since boot."""
        return fields["since"]

    def events(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Report memory, CPU time and processes of the sandbox."""
        infos = self._processes_of(sandbox).items()
        processes = {pid: info for pid, info in infos if info.state not in "ZX"}
        usage = sandbox.group.memory
        self._reactor.reply(
            message,
            memory=_cgroups.number(usage) if usage >= 0 else _processes.memory_of(list(processes)),
            processes=len(processes),
            others=[info.name for pid, info in processes.items() if pid not in sandbox.session_pids],
            cpu=sum(info.cpu_ticks for info in processes.values()) / os.sysconf("SC_CLK_TCK"),
        )
        yield from ()


def _victims(
    processes: dict[int, _processes.ProcessInfo], session: int, since: int, session_pids: set[int]
) -> dict[int, int]:
    """Return the processes started since then that descend from the session, or from no session, with their depths."""
    victims: dict[int, int] = {}
    for pid, info in processes.items():
        if pid not in session_pids and info.started >= since and info.state not in "ZX":
            chain = _processes.lineage(processes, pid)
            if session in chain or not session_pids.intersection(chain):
                victims[pid] = len(chain)
    return victims


class FileRequests:
    """Operate on the files of a sandbox: directly, or in a child process where the work may take long.

    `saved` are the folders, below a sandbox's `files`, that a snapshot contains.
    """

    def __init__(self, reactor: Reactor, saved: tuple[str, ...]) -> None:
        self._reactor = reactor
        self._saved = saved

    def file(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Perform one operation of `_files.perform`."""
        fds, answer = _files.perform(sandbox.root, sandbox.uid, message.fields["request"])
        self._reactor.reply(message, fds, **answer)
        close_all(fds)
        yield from ()

    def list(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Write the entries of a folder to the descriptor sent with the request."""
        request = message.fields["request"]
        body = functools.partial(_files.list_entries, sandbox.root, sandbox.uid, request)
        return self._with_file(sandbox, message, "wb", body, LISTING_BYTES)

    def remove(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Remove a directory tree."""
        request = message.fields["request"]
        return self.in_child(sandbox, message, lambda: _files.remove_tree(sandbox.root, sandbox.uid, request))

    def pack(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Write an archive of all files to the descriptor sent with the request."""
        limits, most = sandbox.limits, message.fields.get("most")
        largest = 2 * limits["disk"] + _ENTRY_BYTES * limits["files"] + _SMALL_BYTES
        return self._with_file(
            sandbox,
            message,
            "wb",
            lambda out: _archive.pack(sandbox.files, self._saved, out),
            largest if most is None else min(most, largest),
        )

    def check_archive(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Check that the descriptor sent with the request holds an archive written by `pack`."""
        return self._with_file(sandbox, message, "rb", lambda source: _archive.check(self._saved, source))

    def _with_file(
        self,
        sandbox: SandboxRecord,
        message: _wire.WireMessage,
        mode: Literal["rb", "wb"],
        body: Callable[[IO[bytes]], None],
        file_bytes: int = 0,
    ) -> PendingRequest:
        fd = message.fds[0]
        return self.in_child(sandbox, message, lambda: _spawn.with_file(fd, mode, body), file_bytes)

    def in_child(
        self,
        sandbox: SandboxRecord,
        message: _wire.WireMessage,
        body: Callable[[], None],
        file_bytes: int | None = 0,
    ) -> PendingRequest:
        """Run a function in a child process under the sandbox's limits, then reply. The end of the sandbox kills it.

        :param file_bytes: size up to which it may write a file; `None` means unlimited.
        """
        ours, theirs = _wire.socket_pair()

        def child() -> None:
            _cgroups.attach(sandbox.group)
            _spawn.bound_work(file_bytes)
            _spawn.report_outcome(theirs, body)

        sandbox.helper_pids.add(self._reactor.fork(child))
        theirs.close()
        with ours:
            report = yield ours
        check_report(report, "the file operation's process died: it exceeded its memory or CPU time")
        self._reactor.reply(message)
