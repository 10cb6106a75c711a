"""Server's side of the control socket of a sandbox builder: send requests, receive replies and events."""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes.process.trusted import _wire

_BATCH = 64


class RequestChannel:
    """Requests in flight to one builder, the sandbox init process or a container's first process, and its events."""

    def __init__(self, lost: str = "the runtime is closed") -> None:
        """Create a channel without a socket.

        :param lost: start of the error message after the builder is gone.
        """
        self._lost = lost
        self._requests: dict[int, asyncio.Future[_wire.WireMessage]] = {}
        self._exits: dict[int, Callable[[int], None]] = {}
        self._awaited_exits: dict[int, Callable[[int], None]] = {}
        self._moves: dict[str, asyncio.Future[int]] = {}
        self._number = 0
        self._socket: socket.socket | None = None
        self._outbox: deque[tuple[_wire.Fields, Sequence[int]]] = deque()
        self._closed: str | None = "not started"
        self.facts: dict[str, Any] = {}
        """Facts about the machine that the builder reported when it started."""

    @property
    def alive(self) -> bool:
        """The builder accepts requests."""
        return self._closed is None

    async def open(self, sock: socket.socket) -> None:
        """Take over the socket and wait for the builder's first message, its `facts`.

        :raises RuntimeFailure: if it dies instead.
        """
        self._socket = sock
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[_wire.WireMessage] = self._loop.create_future()
        self._requests[0] = started
        self._closed = None
        self._loop.add_reader(sock.fileno(), self._readable)
        self.facts = (await started).fields

    def _readable(self) -> None:
        # Bounded: a flood of events must not keep other work of the event loop waiting.
        for _ in range(_BATCH):
            if self._socket is None:
                return
            try:
                message = _wire.receive(self._socket)
                if message is None:
                    raise ConnectionError("the builder's process is gone")
                self._dispatch(message)
            except BlockingIOError:
                return
            except (ConnectionError, ValueError, KeyError, TypeError) as error:
                self.lose(str(error))
                return

    def _dispatch(self, message: _wire.WireMessage) -> None:
        fields = message.fields
        if "re" in fields or "started" in fields:
            number = fields.get("re", 0)
            handler = self._awaited_exits.pop(number, None)
            if handler is not None and "pid" in fields:
                self._exits[fields["pid"]] = handler
            future = self._requests.pop(number, None)
            if future is not None and not future.done():
                future.set_result(message)
                return
        elif fields["event"] == "exit":
            handler = self._exits.pop(fields["pid"], None)
            if handler is not None:
                handler(fields["status"])
        elif fields["event"] == "moved":
            self._moved(fields)
        for fd in message.fds:
            os.close(fd)

    def _moved(self, fields: _wire.Fields) -> None:
        future = self._moves.pop(fields["to"], None)
        if future is None or future.done():
            return
        if "error" in fields:
            future.set_exception(_error_of(fields))
            # Mark the exception as retrieved: the caller may have been cancelled.
            future.exception()
        else:
            future.set_result(fields["pid"])

    def lose(self, reason: str) -> None:
        """Fail pending and later requests with this reason."""
        if self._closed is not None:
            return
        self._closed = reason
        assert self._socket is not None
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        error = InstanceGone(f"{self._lost}: {reason}")
        for future in [*self._requests.values(), *self._moves.values()]:
            if not future.done():
                future.set_exception(error)
                # Mark the exception as retrieved: the caller may have been cancelled.
                future.exception()
        self._requests.clear()
        self._moves.clear()
        handlers = [*self._exits.values(), *self._awaited_exits.values()]
        self._exits.clear()
        self._awaited_exits.clear()
        for handler in handlers:
            handler(-9)

    def hang_up(self) -> None:
        """Close the socket, which tells the builder to stop."""
        self.lose("closed")
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def ask(
        self,
        op: str,
        fds: Sequence[int] = (),
        *,
        on_exit: Callable[[int], None] | None = None,
        **fields: object,
    ) -> _wire.WireMessage:
        """Send a request and wait for the reply. The caller keeps its descriptors.

        If the request starts a process, `on_exit` is called with its exit code (negative: number of a signal).

        :raises InstanceGone: if the instance has ended.
        :raises OSError: if the kernel refused it, with its errno.
        :raises RuntimeFailure: if it failed for another reason.
        """
        if self._closed is not None:
            raise InstanceGone(f"{self._lost}: {self._closed}")
        self._number += 1
        number = self._number
        future: asyncio.Future[_wire.WireMessage] = self._loop.create_future()
        self._requests[number] = future
        if on_exit is not None:
            self._awaited_exits[number] = on_exit
        copies = [os.dup(fd) for fd in fds]
        self._send({"op": op, "n": number, **fields}, copies)
        try:
            message = await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_discard)
            raise
        if "error" in message.fields:
            raise _error_of(message.fields)
        return message

    def post(self, op: str, **fields: object) -> None:
        """Send a request and ignore the reply."""
        if self._closed is None:
            self._number += 1
            self._send({"op": op, "n": self._number, **fields}, ())

    def _send(self, fields: _wire.Fields, fds: Sequence[int]) -> None:
        self._outbox.append((fields, fds))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        assert self._socket is not None
        while self._outbox:
            fields, fds = self._outbox[0]
            try:
                _wire.send(self._socket, fields, fds)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._flush)
                return
            except OSError:
                self._outbox.clear()
                return
            self._outbox.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._socket.fileno())

    def expect_move(self, sandbox: str) -> asyncio.Future[int]:
        """Return a future with the pid of the interpreter that moves into a sandbox."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._moves[sandbox] = future
        return future


def _discard(future: asyncio.Future[_wire.WireMessage]) -> None:
    if not future.cancelled() and future.exception() is None:
        for fd in future.result().fds:
            os.close(fd)


def _error_of(fields: _wire.Fields) -> Exception:
    name = fields.get("name", "failed")
    if name == "gone":
        return InstanceGone(fields["error"])
    number = getattr(errno, name, None)
    if isinstance(number, int):
        if "path" in fields:
            return OSError(number, fields["reason"], fields["path"])
        return OSError(number, fields["error"].split("] ", 1)[-1])
    return RuntimeFailure(fields["error"])


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return a stream socket pair for a session's control channel; the server's end, the first, does not block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    return ours, theirs
