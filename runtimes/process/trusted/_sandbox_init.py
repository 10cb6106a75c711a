"""The mason: builds rooms, puts processes into them, moves forks, ends them.

The first process of the runtime's own pid namespace: when it dies, everything it ever made dies with it. It has
power in the runtime's user namespace only, is single-threaded, and runs nothing untrusted.
"""

import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from runtimes.process.trusted import _namespaces, _spawn, _wire
from runtimes.process.trusted._filing import Filing
from runtimes.process.trusted._members import GONE, Member, Members
from runtimes.process.trusted._process_requests import Staff
from runtimes.process.trusted._reactor import Reactor, RequestError, Waiting
from runtimes.process.trusted._zygote_link import ZygoteLink

if TYPE_CHECKING:
    from collections.abc import Callable


class Mason:
    """Knows which request goes where."""

    def __init__(self, server: socket.socket, warden: socket.socket, world: _spawn.World) -> None:
        self._reactor = Reactor(server)
        self._members = Members(self._reactor, warden, world)
        self._zygote = ZygoteLink(self._reactor, world, self._members.forget_process)
        self._staff = Staff(self._reactor, world, self._zygote)
        filing = Filing(self._reactor, _namespaces.SAVED_FOLDERS)
        self._reactor.on_exit = self._child_ended
        self._requests: dict[str, Callable[[Member, _wire.Message], Waiting]] = {
            "check_archive": filing.check_archive,
            "copy": self._members.copy,
            "events": self._staff.events,
            "exec": self._staff.command,
            "file": filing.file,
            "kill_run": self._staff.kill_run,
            "list": filing.list,
            "move_python": self._move_python,
            "pack": filing.pack,
            "python": self._staff.python,
            "remove": filing.remove,
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
        member = self._members.find(message.fields["member"])
        return _unless_ended(member, self._requests[op](member, message))

    def _child_ended(self, pid: int) -> None:
        if pid == self._zygote.pid:
            self._zygote.died()
        self._members.forget_process(pid)

    def _move_python(self, member: Member, message: _wire.Message) -> Waiting:
        return self._staff.move_python(member, self._members.find(message.fields["to"]), message)


def _unless_ended(member: Member, waiting: Waiting) -> Waiting:
    """What goes wrong once a sandbox's family ends, goes wrong because of that: it is gone, whatever the kernel says."""
    try:
        yield from waiting
    except (RequestError, OSError, ValueError):
        if not member.family.ending:
            raise
        raise RequestError(GONE, "gone") from None


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
