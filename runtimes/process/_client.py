"""The server's side of the control socket: start the trusted processes, ask them, hear from them."""

import asyncio
import contextlib
import os
import resource
import secrets
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentflow.errors import InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes.process.trusted import _leftovers, _wire

_HERE = Path(__file__).parent
_START = (
    "import sys; sys.path.insert(0, {root!r}); from runtimes.process.trusted._warden import main; main({fds})"
)


class Client:
    """One warden with its mason, and the requests in flight."""

    def __init__(self) -> None:
        self._requests: dict[int, asyncio.Future[_wire.Message]] = {}
        self._exits: dict[int, Callable[[int], None]] = {}
        self._awaited_exits: dict[int, Callable[[int], None]] = {}
        self._moves: dict[str, asyncio.Future[int]] = {}
        self._number = 0
        self._outbox: deque[tuple[_wire.Fields, Sequence[int]]] = deque()
        self._closed: str | None = "not started"
        self.facts: dict[str, Any] = {}
        """What the mason said of this machine when it started."""

    @property
    def alive(self) -> bool:
        """It can be asked."""
        return self._closed is None

    async def start(self, preload: Sequence[str]) -> None:
        """Start the warden and wait until the mason is there.

        :raises IsolationUnavailable: if the isolation can't be had.
        """
        # Three descriptors a session: the common soft limit of 1024 would end at some 300 of them.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        ours, theirs = _wire.socket_pair()
        alive_read, self._alive = os.pipe2(os.O_CLOEXEC)
        folder = os.path.join(_leftovers.parent_folder(), secrets.token_hex(6))
        program = _START.format(root=str(_HERE.parent.parent), fds=f"{theirs.fileno()}, {alive_read}")
        self._process = _start_program(program, (theirs.fileno(), alive_read))
        theirs.close()
        os.close(alive_read)
        _wire.send(
            ours,
            {
                "folder": folder,
                "path": os.environ.get("PATH", os.defpath),
                "preload": list(preload),
                "shell_driver": (_HERE / "inside" / "_shell.bash").read_text(encoding="utf-8"),
                "shell_entry": (_HERE / "inside" / "_shell_entry.bash").read_text(encoding="utf-8"),
            },
        )
        self._socket = ours
        ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[_wire.Message] = self._loop.create_future()
        self._requests[0] = started
        self._closed = None
        self._loop.add_reader(ours.fileno(), self._readable)
        try:
            facts = (await started).fields
        except RuntimeFailure as error:
            raise IsolationUnavailable(f"the sandboxes' processes did not start: {error}") from error
        if not facts["started"]:
            await self.close()
            raise IsolationUnavailable(facts["error"])
        self.facts = facts

    def _readable(self) -> None:
        while True:
            try:
                message = _wire.receive(self._socket)
            except BlockingIOError:
                return
            except (ConnectionError, ValueError) as error:
                self._lost(str(error))
                return
            if message is None:
                self._lost("the runtime's builder process is gone")
                return
            self._dispatch(message)

    def _dispatch(self, message: _wire.Message) -> None:
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
            future.set_exception(RuntimeFailure(fields["error"]))
            # The fork may have been given up on the way to it; an error that nobody fetches is no news.
            future.exception()
        else:
            future.set_result(fields["pid"])

    def _lost(self, reason: str) -> None:
        if self._closed is not None:
            return
        self._closed = reason
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        error = InstanceGone(f"the runtime is closed: {reason}")
        for future in [*self._requests.values(), *self._moves.values()]:
            if not future.done():
                future.set_exception(error)
                # Whoever waited may be gone; an error that nobody fetches is no news.
                future.exception()
        self._requests.clear()
        self._moves.clear()
        handlers = [*self._exits.values(), *self._awaited_exits.values()]
        self._exits.clear()
        self._awaited_exits.clear()
        for handler in handlers:
            handler(-9)

    async def ask(
        self,
        op: str,
        fds: Sequence[int] = (),
        *,
        on_exit: Callable[[int], None] | None = None,
        **fields: object,
    ) -> _wire.Message:
        """Send a request and wait for its answer. The descriptors stay the caller's.

        Where the request starts a process, `on_exit` is called with its exit code (negative: by that signal).

        :raises InstanceGone: if it concerns an instance that has ended.
        :raises OSError: if the kernel refused, with its errno.
        :raises RuntimeFailure: if it failed otherwise.
        """
        if self._closed is not None:
            raise InstanceGone(f"the runtime is closed: {self._closed}")
        self._number += 1
        number = self._number
        future: asyncio.Future[_wire.Message] = self._loop.create_future()
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

    def _send(self, fields: _wire.Fields, fds: Sequence[int]) -> None:
        self._outbox.append((fields, fds))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
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

    def expect_move(self, member: str) -> asyncio.Future[int]:
        """A future of the pid of the interpreter that moves to a member."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._moves[member] = future
        return future

    async def close(self) -> None:
        """End every sandbox and wait until nothing is left."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        self._lost("closed")
        self._socket.close()
        waiting = self._loop.run_in_executor(None, self._process.wait)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)
        if not waiting.done():
            await waiting


def _start_program(program: str, fds: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start an interpreter that inherits nothing but two descriptors."""
    return subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        pass_fds=fds,
        env={"LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def _discard(future: asyncio.Future[_wire.Message]) -> None:
    if not future.cancelled() and future.exception() is None:
        for fd in future.result().fds:
            os.close(fd)


def _error_of(fields: _wire.Fields) -> Exception:
    import errno

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
    """A stream socket pair for a session's control channel: the server's end doesn't block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    return ours, theirs
