"""The mason: builds rooms, puts processes into them, moves forks, ends them.

The first process of the runtime's own pid namespace: when it dies, everything it ever made dies with it. It has
power in the runtime's user namespace only, is single-threaded, and runs nothing untrusted.
"""

import functools
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import IO

from runtimes.process.linux import _cgroups
from runtimes.process.trusted import _copy, _files, _rooms, _spawn, _trees, _wire
from runtimes.process.trusted._members import Member, Members
from runtimes.process.trusted._reactor import Reactor, Waiting, close_all, finished
from runtimes.process.trusted._staff import Staff
from runtimes.process.trusted._zygote_link import ZygoteLink

_SAVED = _rooms.SAVED_FOLDERS


class Mason:
    """Knows which request goes where; looks after files itself."""

    def __init__(self, server: socket.socket, warden: socket.socket, world: _spawn.World) -> None:
        self._reactor = Reactor(server)
        self._members = Members(self._reactor, warden, world)
        self._zygote = ZygoteLink(self._reactor, world, self._members.forget_process)
        self._staff = Staff(self._reactor, world, self._zygote)
        self._reactor.on_exit = self._child_ended
        self._requests: dict[str, Callable[[Member, _wire.Message], Waiting]] = {
            "check_archive": self._check_archive,
            "copy": self._members.copy,
            "events": self._staff.events,
            "exec": self._staff.command,
            "file": self._file,
            "kill_run": self._staff.kill_run,
            "list": self._list,
            "move_python": self._move_python,
            "pack": self._pack,
            "python": self._staff.python,
            "remove": self._remove,
            "shell": self._staff.shell,
            "signal": self._staff.signal,
            "stop": self._members.stop,
            "unpack": self._members.refurnish,
        }

    def serve(self) -> None:
        """Serve until the server is gone."""
        self._reactor.serve(self._start)

    def _start(self, message: _wire.Message) -> Waiting:
        op = message.fields["op"]
        if op == "open":
            return self._members.open(message)
        if op == "warm":
            return self._staff.warm(message)
        return self._requests[op](self._members.find(message.fields["member"]), message)

    def _child_ended(self, pid: int) -> None:
        if pid == self._zygote.pid:
            self._zygote.died()
        self._members.forget_process(pid)

    def _move_python(self, member: Member, message: _wire.Message) -> Waiting:
        return self._staff.move_python(member, self._members.find(message.fields["to"]), message)

    def _file(self, member: Member, message: _wire.Message) -> Waiting:
        fds, answer = _files.perform(member.root, member.uid, message.fields["request"])
        self._reactor.reply(message, fds, **answer)
        close_all(fds)
        yield from ()

    def _list(self, member: Member, message: _wire.Message) -> Waiting:
        request = message.fields["request"]
        body = functools.partial(_trees.list_entries, member.root, member.uid, request)
        return self._with_file(member, message, "wb", body)

    def _remove(self, member: Member, message: _wire.Message) -> Waiting:
        request = message.fields["request"]
        return self._in_child(member, message, lambda: _trees.remove(member.root, member.uid, request))

    def _pack(self, member: Member, message: _wire.Message) -> Waiting:
        return self._with_file(member, message, "wb", lambda out: _copy.pack(member.files, _SAVED, out))

    def _check_archive(self, member: Member, message: _wire.Message) -> Waiting:
        return self._with_file(member, message, "rb", lambda source: _copy.check(_SAVED, source))

    def _with_file(
        self, member: Member, message: _wire.Message, mode: str, body: Callable[[IO[bytes]], None]
    ) -> Waiting:
        fd = message.fds[0]
        return self._in_child(member, message, lambda: _spawn.with_file(fd, mode, body))

    def _in_child(self, member: Member, message: _wire.Message, body: Callable[[], None]) -> Waiting:
        ours, theirs = _wire.socket_pair()

        def child() -> None:
            _cgroups.attach(member.group)
            _spawn.tell_outcome(theirs, body)

        self._reactor.fork(child)
        theirs.close()
        with ours:
            finished((yield ours), "its process died: the instance's memory limit may be too small")
        self._reactor.reply(message)


def main(server: socket.socket, warden: socket.socket, world: _spawn.World) -> None:
    """Serve, as the first process of the runtime's pid namespace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Taken for good, so that nothing a shell session needs on its way ever has the number of its control socket.
    os.dup2(sys.stderr.fileno(), _spawn.CONTROL_FD, inheritable=False)
    try:
        mason = Mason(server, warden, world)
        # Its children share its memory for as long as neither side writes there, as collecting garbage would.
        gc.collect()
        gc.freeze()
        mason.serve()
    except Exception as error:
        # The boundary of the process: nobody above could hear of it otherwise.
        sys.stderr.write(f"agentflow: the sandboxes' builder failed: {error!r}\n")
        raise
