"""Control sockets of live sessions, the server's end: one reply for each request.

Everything received is untrusted. Replies carry the number of their request. Others are dropped: code inside can forge
the reply to its own run, whose true reply then comes too late, and a shell's child that the limit of processes stopped
can reply in its place. A session that sends too many of them, or anything malformed, is cut off.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from runtimes._framing import FrameDecoder, FrameError, LineDecoder, pack_frame, unpack_message
from runtimes.process._output import PacedReader

MIB = 1024 * 1024
MAX_REPLY_BYTES = 32 * MIB
"""Largest reply of a Python session: a value, an error and 24 MiB of displays."""
MAX_TEXT_BYTES = 5 * MIB
"""Largest text in it: a million characters of a value, and the note about the others."""
MAX_STATUS_BYTES = 256 * 1024
"""Largest reply of a shell to a command: its status and its working directory."""
MAX_STATE_BYTES = 32 * MIB
"""Largest state of a shell that is copied to a fork."""
MAX_UNASKED = 64
"""Number of replies between two requests that are dropped."""
_CHUNK = 1 << 18

ReplyT = TypeVar("ReplyT")


class ControlSocket(Generic[ReplyT]):
    """Send requests and receive replies; a subclass decodes the replies."""

    def __init__(self, sock: socket.socket, decoder: FrameDecoder | LineDecoder) -> None:
        self._decoder = decoder
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._outgoing = bytearray()
        self._awaited: tuple[int, asyncio.Future[ReplyT | None]] | None = None
        self._number: int = 0
        self._unasked = 0
        self._on_close: Callable[[str], None] | None = None
        self._open = True
        self._fault = ""
        self._reader = PacedReader(sock.fileno(), self._readable)

    def _cut(self) -> tuple[int, ReplyT] | None:
        """Return number and content of the next reply, or `None` until more bytes arrive.

        :raises ValueError: if the stream is malformed.
        """
        raise NotImplementedError

    def _expect(self, number: int) -> asyncio.Future[ReplyT | None]:
        """Expect the reply to a request, and no other; the future is not cancelled when the socket closes."""
        future: asyncio.Future[ReplyT | None] = self._loop.create_future()
        self._awaited = number, future
        self._unasked = 0
        return future

    def _readable(self) -> int:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.close()
            return 0
        self._decoder.feed(data)
        try:
            self._deliver()
        except (ValueError, RecursionError) as error:
            self.close(str(error))
        return len(data)

    def _deliver(self) -> None:
        while self._open and (reply := self._cut()) is not None:
            number, content = reply
            if self._awaited is not None and self._awaited[0] == number:
                (_, future), self._awaited = self._awaited, None
                # The caller may have given up.
                if not future.done():
                    future.set_result(content)
                continue
            self._unasked += 1
            if self._unasked > MAX_UNASKED:
                raise FrameError("it sent replies that nobody had asked for")

    def listen(self, on_close: Callable[[str], None]) -> None:
        """Set the callback for the end of the socket; its argument is the session's fault, if any."""
        self._on_close = on_close
        if not self._open:
            on_close(self._fault)

    def send(self, data: bytes) -> None:
        """Send without waiting; the rest is sent when the socket becomes writable."""
        if not self._open:
            return
        self._outgoing += data
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.add_writer(self._socket.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def close(self, fault: str = "") -> None:
        """Close this end."""
        if not self._open:
            return
        self._open = False
        self._fault = fault
        self._reader.close()
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        if self._on_close is not None:
            self._on_close(fault)


class PythonReply(NamedTuple):
    """Reply of a Python session."""

    fields: dict[str, Any]
    """Short fields: `run`, the number of the request, `cwd`, and the sizes of the parts of `data`."""
    data: memoryview
    """Value, error and displays."""


class PythonControlSocket(ControlSocket[PythonReply]):
    """Control socket of a Python session: frames of messages, each with the number of its request."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, FrameDecoder(MAX_REPLY_BYTES))
        self.ready = self._expect(0)
        """First reply of the session, sent on its own."""

    def _cut(self) -> tuple[int, PythonReply] | None:
        payload = self._decoder.next()
        if payload is None:
            return None
        reply = PythonReply(*unpack_message(payload))
        number = reply.fields.get("run")
        return (number if isinstance(number, int) else -1), reply

    def request(self, op: str, **fields: object) -> asyncio.Future[PythonReply | None]:
        """Send one request; return the future of its reply."""
        self._number += 1
        reply = self._expect(self._number)
        self.send(pack_frame(json.dumps({"op": op, "run": self._number, **fields}).encode()))
        return reply


ShellReply = list[bytes]
"""Reply of a shell session: status and working directory, and before them, if it was asked for, its state."""


class ShellControlSocket(ControlSocket[ShellReply]):
    """Control socket of a shell session: strings that each end in a NUL, the number of the request first."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, LineDecoder(MAX_STATE_BYTES, b"\0"))
        self._parts: list[bytes] = []
        self._dump = b"-"

    def _cut(self) -> tuple[int, ShellReply] | None:
        while len(self._parts) < self._size():
            part = self._decoder.next()
            if part is None:
                limit = MAX_STATUS_BYTES if self._size() == 3 else MAX_STATE_BYTES
                if sum(map(len, self._parts)) + self._decoder.buffered > limit:
                    raise FrameError(f"it sent a reply of more than {limit} bytes")
                return None
            self._parts.append(part)
        parts = self._parts
        self._parts = []
        # Compared as text: a number in another form, such as 01, would be a dump's reply of another length.
        number = self._number if parts[0] == b"%d" % self._number else -1
        return number, parts[1:-3] + parts[-2:]

    def _size(self) -> int:
        """Return the number of strings of the reply that has begun; a dump has two replies: the state comes before the other."""
        return 5 if self._parts and self._parts[0] == self._dump else 3

    def request(self, word: str, text: bytes) -> asyncio.Future[ShellReply | None]:
        """Send one request; return the future of its reply.

        :raises ValueError: if the text contains a NUL character.
        """
        if b"\0" in text:
            raise ValueError("a shell command can't contain a NUL character")
        self._number += 1
        if word == "dump":
            self._dump = b"%d" % self._number
        reply = self._expect(self._number)
        self.send(b"%d:%s\0%s\0" % (self._number, word.encode(), text))
        return reply
