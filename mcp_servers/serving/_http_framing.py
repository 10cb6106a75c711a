"""Ends of HTTP/1.1 messages in a stream of bytes, which a proxy passes on unchanged, and its own responses."""

import json
import re
from collections.abc import Sequence
from typing import Protocol, Self

from mcp_types import INVALID_REQUEST

from agentflow.errors import ErrorKind
from mcp_servers.core._call import KIND_KEY
from mcp_servers.serving._server_names import CONNECTION_HEADER, SESSION_HEADER

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of the first line and the headers of a message."""

SMALL_BYTES = 16 * 1024
"""Size up to which a body is passed on with its head, in one piece."""

HEAD_END = b"\r\n\r\n"

TOOL_HEADER = b"mcp-name"
"""Header with the tool of a call."""
SESSIONS_HEADER = b"agentflow-sessions"
"""Header in which a worker reports the number of its sessions, and `; full` if the client can start no more."""

PROXY_HEADERS = (
    SESSION_HEADER,
    CONNECTION_HEADER,
    TOOL_HEADER,
    SESSIONS_HEADER,
    b"content-length",
    b"transfer-encoding",
    b"connection",
    b"expect",
    b"authorization",
    b"host",
    b"origin",
)
"""Headers that matter to a proxy."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEAD = re.compile(rb"([^\r\n ]+) ([^\r\n ]+) ([^\r\n]*)(?:\r\n" + _TOKEN + rb":[^\r\n]*)*+\Z")
_FIELD = re.compile(rb"\r\n(" + b"|".join(PROXY_HEADERS) + rb"):[ \t]*([^\r\n]*)", re.IGNORECASE)
_FRAMING = (b"content-length", b"transfer-encoding")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}\Z")
_LENGTH = re.compile(rb"[0-9]{1,18}\Z")
_MAX_LINE = 4096


class FramingError(ValueError):
    """Bytes that are no HTTP/1.1 message."""


class MessageHead:
    """First line and headers of a message."""

    __slots__ = ("fields", "line", "size")

    def __init__(self, line: Sequence[bytes], fields: dict[bytes, bytes], size: int | None) -> None:
        self.line = line
        """The three parts of the first line."""
        self.fields = fields
        """Values of the headers that matter to a proxy by lower-case name; of a repeated header the last."""
        self.size = size
        """Size of the body, if a header tells it."""

    @classmethod
    def parse(cls, head: bytes) -> Self:
        """Parse the bytes up to the empty line.

        :raises FramingError: if they are no head, or leave the end of the body open to interpretation.
        """
        whole = _HEAD.match(head)
        if whole is None:
            raise FramingError("the first line or a header is malformed")
        fields: dict[bytes, bytes] = {}
        for name, value in _FIELD.findall(head):
            name, value = name.lower(), value.rstrip(b" \t")
            if name in _FRAMING and fields.get(name, value) != value:
                raise FramingError(f"{name.decode()} is repeated")
            fields[name] = value
        length = fields.get(b"content-length")
        if length is not None and b"transfer-encoding" in fields:
            raise FramingError("the end of the body is unclear")
        if length is not None and not _LENGTH.match(length):
            raise FramingError("content-length is no number")
        return cls(whole.groups(), fields, None if length is None else int(length))

    @classmethod
    def of_whole(cls, data: bytes) -> Self | None:
        """Return the head of a message that is complete with a small body, and nothing else; otherwise `None`.

        :raises FramingError: as `parse`.
        """
        end = data.find(HEAD_END)
        if not 0 <= end <= MAX_HEAD_BYTES:
            return None
        head = cls.parse(data[:end])
        return head if head.size == len(data) - end - len(HEAD_END) <= SMALL_BYTES else None

    @property
    def closes(self) -> bool:
        """The sender ends the connection after this message."""
        return b"close" in self.fields.get(b"connection", b"").lower()

    @property
    def is_small(self) -> bool:
        """The body is of a known and small size, and its sender waits for nothing."""
        return self.size is not None and 0 < self.size <= SMALL_BYTES and b"expect" not in self.fields

    def request_body(self) -> "MessageBody":
        """Return the body that follows this head of a request.

        :raises FramingError: if its end is unclear.
        """
        return self._body() or SizedBody(0)

    def response_body(self, *, of_head: bool) -> "MessageBody":
        """Return the body that follows this head of a response.

        :param of_head: the request was a `HEAD` request.
        :raises FramingError: if its end is unclear.
        """
        status = self.line[1]
        if of_head or status[:1] == b"1" or status in (b"204", b"304"):
            return SizedBody(0)
        return self._body() or OpenBody()

    def _body(self) -> "MessageBody | None":
        encoding = self.fields.get(b"transfer-encoding")
        if encoding is None:
            return None if self.size is None else SizedBody(self.size)
        if encoding.lower() != b"chunked":
            raise FramingError("the end of the body is unclear")
        return ChunkedBody()


class MessageBody(Protocol):
    """The body of a message as it passes by."""

    @property
    def complete(self) -> bool:
        """All of it has passed."""
        ...

    def take(self, data: bytes | bytearray) -> int:
        """Return the number of bytes at the beginning of `data` that belong to the body.

        :raises FramingError: if the bytes can't be a body.
        """
        ...


class SizedBody:
    """Body of a known size."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def complete(self) -> bool:
        """All of it has passed."""
        return self._left == 0

    def take(self, data: bytes | bytearray) -> int:
        """Return the number of bytes at the beginning of `data` that belong to the body."""
        size = min(self._left, len(data))
        self._left -= size
        return size


class OpenBody:
    """Body that ends with its connection."""

    complete = False

    def take(self, data: bytes | bytearray) -> int:
        """Return the size of the data: all of it belongs to the body."""
        return len(data)


class ChunkedBody:
    """Body in chunks, each after a line with its size."""

    def __init__(self) -> None:
        self._left = 0
        self._line = b""
        self._trailer = False
        self.complete = False
        """All of it has passed."""

    def take(self, data: bytes | bytearray) -> int:
        """Return the number of bytes at the beginning of `data` that belong to the body.

        :raises FramingError: if the size of a chunk is malformed.
        """
        at = 0
        while at < len(data) and not self.complete:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            self._line += data[at : len(data) if end < 0 else end + 1]
            if len(self._line) > _MAX_LINE:
                raise FramingError("the line of a chunk is too long")
            if end < 0:
                return len(data)
            at = end + 1
            self._next(self._line.rstrip(b"\r\n"))
            self._line = b""
        return at

    def _next(self, line: bytes) -> None:
        if self._trailer:
            self.complete = not line
            return
        size = line.partition(b";")[0].strip()
        if not _SIZE.match(size):
            raise FramingError("the size of a chunk is malformed")
        length = int(size, 16)
        self._trailer = length == 0
        # The chunk and the line end after it.
        self._left = length + 2 if length else 0


def response(status: str, body: bytes, mime: str = "application/json", *, close: bool = False) -> bytes:
    """Return a whole response."""
    end = "connection: close\r\n" if close else ""
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: {mime}\r\ncontent-length: {len(body)}\r\n{end}\r\n".encode()
        + body
    )


def refusal(
    status: str, message: str, *, code: int = INVALID_REQUEST, kind: ErrorKind | None = None
) -> bytes:
    """Return a response that refuses a request and closes the connection.

    :param kind: kind of the failure of a tool call.
    """
    error: dict[str, object] = {"code": code, "message": message}
    if kind is not None:
        error["data"] = {KIND_KEY: kind}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return response(status, body, close=True)
