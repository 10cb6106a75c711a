"""Server's end of a session's control socket. Everything received from it is untrusted."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from runtimes._framing import FrameDecoder, LineDecoder, decode_object, pack_frame

_MAX_REPLY_BYTES = 96 * 1024 * 1024
_CHUNK = 1 << 18

ReplyT = TypeVar("ReplyT")
PythonReply = dict[str, Any]
"""Reply of a Python session."""
ShellReply = list[bytes]
"""Reply of a shell session."""


class ControlSocket(Generic[ReplyT]):
    """Send requests and receive replies; a subclass decodes the replies."""

    def __init__(self, sock: socket.socket, decoder: FrameDecoder | LineDecoder) -> None:
        self._decoder = decoder
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._outgoing = bytearray()
        self.on_reply: Callable[[ReplyT], None] | None = None
        """Called with each complete reply."""
        self.on_close: Callable[[], None] | None = None
        """Called once, when the other end closes or sends a malformed reply."""
        self._open = True
        self._loop.add_reader(sock.fileno(), self._readable)

    def _cut(self) -> ReplyT | None:
        """Return the next complete reply, or `None` until more bytes arrive.

        :raises ValueError: if the stream is malformed.
        """
        raise NotImplementedError

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._decoder.feed(data)
        self._deliver()

    def listen(self, on_reply: Callable[[ReplyT], None], on_close: Callable[[], None]) -> None:
        """Set the callbacks, and deliver the replies received so far."""
        self.on_reply, self.on_close = on_reply, on_close
        self._deliver()
        if not self._open:
            on_close()

    def _deliver(self) -> None:
        try:
            while self._open and self.on_reply is not None and (reply := self._cut()) is not None:
                self.on_reply(reply)
            if self._decoder.buffered > _MAX_REPLY_BYTES:
                raise ValueError("a reply is too long")
        except (ValueError, RecursionError):
            self.close()

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

    def close(self) -> None:
        """Close this end."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        if self.on_close is not None:
            self.on_close()


class PythonControlSocket(ControlSocket[PythonReply]):
    """Control socket of a Python session: frames of JSON objects."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, FrameDecoder(_MAX_REPLY_BYTES))

    def _cut(self) -> PythonReply | None:
        payload = self._decoder.next()
        return None if payload is None else decode_object(payload)

    def request(self, fields: dict[str, object]) -> None:
        """Send one request."""
        self.send(pack_frame(json.dumps(fields).encode()))


class ShellControlSocket(ControlSocket[ShellReply]):
    """Control socket of a shell session: replies consist of `parts` strings that each end in a NUL."""

    parts = 2

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, LineDecoder(_MAX_REPLY_BYTES, b"\0"))
        self._received: ShellReply = []

    def _cut(self) -> ShellReply | None:
        self._received += self._decoder
        if len(self._received) < self.parts:
            return None
        reply, self._received = self._received[: self.parts], self._received[self.parts :]
        return reply

    def request(self, word: str, text: str) -> None:
        """Send one request.

        :raises ValueError: if the text contains a NUL character.
        """
        if "\0" in text:
            raise ValueError("a shell command can't contain a NUL character")
        self.send(word.encode() + b"\0" + text.encode("utf-8", "surrogateescape") + b"\0")
