"""Event loop of the sandbox init process: receive requests, send replies, reap children.

Each request is a generator that yields the sockets it waits for, so a slow request blocks no other.
"""

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from types import FrameType

from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _seccomp_broker, _spawn, _wire

PendingRequest = Generator[socket.socket, _wire.WireMessage | None, None]
"""A request in progress: it yields a socket and is resumed with the next message from it."""

MAX_REAPED = 64
"""Number of ended children that are reaped before other events are handled."""


class SandboxRequestError(Exception):
    """Failure of a request; `name` is the name of an errno, `gone` or `failed`."""

    def __init__(self, message: str, name: str = "failed", details: _wire.Fields | None = None) -> None:
        super().__init__(message)
        self.fields: _wire.Fields = {**(details or {}), "error": message, "name": name}
        """Fields of the reply."""


class Reactor:
    """Run requests; their meaning is up to the handlers."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.selector = selectors.DefaultSelector()
        """Watches every socket that a request waits for."""
        self.broker = _seccomp_broker.SeccompBroker(self.selector)
        """Answers the seccomp notifications of sandboxes."""
        self.children: set[int] = set()
        """Pids of its child processes: sessions, commands and helpers."""
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.on_exit: Callable[[int], None] | None = None
        """Called with the pid of each child that has ended."""
        self._wake = child_exit_wakeup()

    def serve(self, start: Callable[[_wire.WireMessage], PendingRequest]) -> None:
        """Serve until the server's end of the socket closes."""
        self.selector.register(self._wake, selectors.EVENT_READ, self._reap)
        self.selector.register(self._server, selectors.EVENT_READ, lambda: self._accept(start))
        while True:
            for key, _ in self.selector.select(self.broker.resume_paused()):
                key.data()

    def _accept(self, start: Callable[[_wire.WireMessage], PendingRequest]) -> None:
        message = _wire.receive(self._server)
        if message is None:
            os._exit(0)
        try:
            waiting = start(message)
        except SandboxRequestError as error:
            self._refuse(message, error)
            return
        self._advance(waiting, message, None)

    def _advance(
        self, waiting: PendingRequest, message: _wire.WireMessage, answer: _wire.WireMessage | None
    ) -> None:
        try:
            sock = waiting.send(answer)
        except StopIteration:
            close_all(message.fds)
            return
        except (SandboxRequestError, OSError, ValueError) as error:
            self._refuse(message, error)
            return

        def resume() -> None:
            self.selector.unregister(sock)
            self._advance(waiting, message, _wire.receive(sock))

        self.selector.register(sock, selectors.EVENT_READ, resume)

    def _refuse(self, message: _wire.WireMessage, error: Exception) -> None:
        self.reply(
            message, **(error.fields if isinstance(error, SandboxRequestError) else _wire.failure(error))
        )
        close_all(message.fds)

    def reply(self, message: _wire.WireMessage, fds: list[int] | None = None, **fields: object) -> None:
        """Reply to a request."""
        self.notify({"re": message.fields["n"], **fields}, fds or [])

    def notify(self, fields: _wire.Fields, fds: list[int] | None = None) -> None:
        """Send an event to the server."""
        with contextlib.suppress(ConnectionError):
            _wire.send(self._server, fields, fds or [])

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 512):
                pass
        for pid, status in ended_children():
            self.children.discard(pid)
            if self.on_exit is not None:
                self.on_exit(pid)
            self.notify({"event": "exit", "pid": pid, "status": status})

    def fork(self, body: Callable[[], None]) -> int:
        """Fork a child that runs `body` and exits."""
        pid = os.fork()
        if pid == 0:
            _spawn.run_child(body)
        self.children.add(pid)
        return pid

    def fork_into(self, namespace: int | None, body: Callable[[], None]) -> int:
        """Fork a child into another pid namespace; `None` creates one, with the child as its first process.

        :raises OSError: if the namespace has ended.
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


def check_report(message: _wire.WireMessage | None, if_died: str) -> None:
    """Check the report of a child process.

    :raises SandboxRequestError: if it reports a failure, or is `None` because the child died.
    """
    if message is None:
        raise SandboxRequestError(if_died)
    if "error" in message.fields:
        raise SandboxRequestError(
            message.fields["error"], message.fields.get("name", "failed"), message.fields
        )


def close_all(fds: list[int]) -> None:
    """Close descriptors; ignore negative ones."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def child_exit_wakeup() -> int:
    """Return a non-blocking descriptor that becomes readable when a child process ends."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap the child processes that have ended; yield pid and exit code of each.

    At most `MAX_REAPED`, so that a sandbox whose processes end fast does not delay the requests of others. The descriptor of
    `child_exit_wakeup` then becomes readable for the rest.
    """
    for _ in range(MAX_REAPED):
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)
    signal.raise_signal(signal.SIGCHLD)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor reports the signal."""
