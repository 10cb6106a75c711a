"""Sandbox init process: builds sandboxes, starts processes in them, moves forks between them, ends them.

It is the first process of the runtime's pid namespace, so the kernel kills every sandbox when it dies. It has
capabilities only in the runtime's user namespace, is single-threaded, and runs nothing untrusted.
"""

import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from runtimes.process.trusted import _namespaces, _spawn, _wire
from runtimes.process.trusted._reactor import PendingRequest, Reactor, SandboxRequestError
from runtimes.process.trusted._requests import FileRequests, ProcessRequests
from runtimes.process.trusted._sandboxes import GONE, SandboxRecord, SandboxTable
from runtimes.process.trusted._zygote import ZygoteClient

if TYPE_CHECKING:
    from collections.abc import Callable


class SandboxInit:
    """Dispatch requests to their handlers."""

    def __init__(
        self, server: socket.socket, host_monitor: socket.socket, config: _spawn.RuntimeConfig
    ) -> None:
        self._reactor = Reactor(server)
        self._sandboxes = SandboxTable(self._reactor, host_monitor, config)
        zygote = ZygoteClient(self._reactor, config, self._sandboxes.forget_process)
        self._processes = ProcessRequests(self._reactor, config, zygote)
        files = FileRequests(self._reactor, _namespaces.SAVED_FOLDERS)
        self._reactor.on_exit = self._sandboxes.forget_process
        self._requests: dict[str, Callable[[SandboxRecord, _wire.WireMessage], PendingRequest]] = {
            "check_archive": files.check_archive,
            "copy": self._sandboxes.copy,
            "events": self._processes.events,
            "exec": self._processes.command,
            "file": files.file,
            "kill_run": self._processes.kill_run,
            "list": files.list,
            "move_python": self._move_python,
            "pack": files.pack,
            "python": self._processes.python,
            "remove": files.remove,
            "shell": self._processes.shell,
            "signal": self._processes.signal,
            "stop": self._sandboxes.stop,
            "unpack": self._sandboxes.rebuild,
        }

    def serve(self) -> None:
        """Serve until the server closes its socket."""
        self._reactor.serve(self._start)

    def _start(self, message: _wire.WireMessage) -> PendingRequest:
        op = message.fields["op"]
        if op == "open":
            return self._sandboxes.open(message)
        if op == "warm":
            return self._processes.warm(message)
        sandbox = self._sandboxes.find(message.fields["sandbox"])
        return _unless_ended(sandbox, self._requests[op](sandbox, message))

    def _move_python(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        return self._processes.move_python(sandbox, self._sandboxes.find(message.fields["to"]), message)


def _unless_ended(sandbox: SandboxRecord, waiting: PendingRequest) -> PendingRequest:
    """Report any failure of a request as `gone` if the sandbox was stopped or its fork group has ended."""
    try:
        yield from waiting
    except (SandboxRequestError, OSError, ValueError):
        if not (sandbox.released or sandbox.fork_group.ending):
            raise
        raise SandboxRequestError(GONE, "gone") from None


def main(server: socket.socket, host_monitor: socket.socket, config: _spawn.RuntimeConfig) -> None:
    """Run as the first process of the runtime's pid namespace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Reserved for good, so that no descriptor of a starting shell session gets the number of its control socket.
    os.dup2(sys.stderr.fileno(), _spawn.CONTROL_FD, inheritable=False)
    try:
        init = SandboxInit(server, host_monitor, config)
        # Children share this memory until either side writes to it, as garbage collection would.
        gc.collect()
        gc.freeze()
        init.serve()
    except Exception as error:
        # Boundary of the process: otherwise the error would be lost.
        sys.stderr.write(f"agentflow: the sandbox init process failed: {error!r}\n")
        raise
