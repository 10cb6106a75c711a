"""The mason's loop: requests in, answers out, children reaped.

Each request is a generator that yields the sockets it waits for, so that a slow one holds up nobody.
"""

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable, Generator
from types import FrameType

from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _seccomp_broker, _spawn, _wire

Waiting = Generator[socket.socket, _wire.Message | None, None]
"""A request in progress: yields a socket, gets its next message."""


class RequestError(Exception):
    """A request that can't be carried out; `name` is an errno's name or `failed`."""

    def __init__(self, message: str, name: str = "failed", details: _wire.Fields | None = None) -> None:
        super().__init__(message)
        self.fields: _wire.Fields = {**(details or {}), "error": message, "name": name}
        """How it is told."""


class Reactor:
    """Carries requests out; knows nothing of what they do."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.selector = selectors.DefaultSelector()
        """Watches every socket that somebody waits for."""
        self.gate = _seccomp_broker.Gate(self.selector)
        """Answers the gated calls of sandboxes."""
        self.children: set[int] = set()
        """Pids of its own children; those that are no session and no command do its own work."""
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.on_exit: Callable[[int], None] | None = None
        """Called with the pid of each child that ended."""
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def serve(self, start: Callable[[_wire.Message], Waiting]) -> None:
        """Serve until the server's end of the socket closes."""
        self.selector.register(self._wake, selectors.EVENT_READ, self._reap)
        self.selector.register(self._server, selectors.EVENT_READ, lambda: self._accept(start))
        while True:
            for key, _ in self.selector.select(self.gate.pause()):
                key.data()

    def _accept(self, start: Callable[[_wire.Message], Waiting]) -> None:
        message = _wire.receive(self._server)
        if message is None:
            os._exit(0)
        try:
            waiting = start(message)
        except RequestError as error:
            self._refuse(message, error)
            return
        self._advance(waiting, message, None)

    def _advance(self, waiting: Waiting, message: _wire.Message, answer: _wire.Message | None) -> None:
        try:
            sock = waiting.send(answer)
        except StopIteration:
            close_all(message.fds)
            return
        except (RequestError, OSError, ValueError) as error:
            self._refuse(message, error)
            return

        def resume() -> None:
            self.selector.unregister(sock)
            self._advance(waiting, message, _wire.receive(sock))

        self.selector.register(sock, selectors.EVENT_READ, resume)

    def _refuse(self, message: _wire.Message, error: Exception) -> None:
        self.reply(message, **(error.fields if isinstance(error, RequestError) else _wire.failure(error)))
        close_all(message.fds)

    def reply(self, message: _wire.Message, fds: list[int] | None = None, **fields: object) -> None:
        """Answer a request."""
        self.tell({"re": message.fields["n"], **fields}, fds or [])

    def tell(self, fields: _wire.Fields, fds: list[int] | None = None) -> None:
        """Send the server something."""
        with contextlib.suppress(ConnectionError):
            _wire.send(self._server, fields, fds or [])

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
            self.children.discard(pid)
            if self.on_exit is not None:
                self.on_exit(pid)
            self.tell({"event": "exit", "pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def fork(self, body: Callable[[], None]) -> int:
        """Fork a child that runs `body` and ends."""
        pid = os.fork()
        if pid == 0:
            _spawn.run_child(body)
        self.children.add(pid)
        return pid

    def fork_into(self, namespace: int | None, body: Callable[[], None]) -> int:
        """The same, into another pid namespace; `None` is a new one, of which the child is the first process.

        :raises OSError: if that namespace has ended.
        """
        if namespace is None:
            sc.unshare(sc.CLONE_NEWPID)
        else:
            sc.setns(namespace, sc.CLONE_NEWPID)
        try:
            pid = self.fork(body)
        finally:
            sc.setns(self._own_pid_namespace, sc.CLONE_NEWPID)
        return pid


def finished(message: _wire.Message | None, otherwise: str) -> None:
    """Check a child's report.

    :raises RequestError: if it says that something failed, or there is none because the child died.
    """
    if message is None:
        raise RequestError(otherwise)
    if "error" in message.fields:
        raise RequestError(message.fields["error"], message.fields.get("name", "failed"), message.fields)


def close_all(fds: list[int]) -> None:
    """Close descriptors; negative ones are none."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Nothing: the wake-up descriptor tells."""
