"""Ends of HTTP/1.1 messages in a stream of bytes, which a proxy passes on unchanged."""

import re
from dataclasses import dataclass
from typing import Protocol, Self

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of the first line and the headers of a message."""

SMALL_BYTES = 16 * 1024
"""Size up to which a body is passed on with its head, in one piece."""

HEAD_END = b"\r\n\r\n"

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}\Z")
_LENGTH = re.compile(rb"[0-9]{1,18}\Z")
_MAX_LINE = 4096


class FramingError(ValueError):
    """Bytes that are no HTTP/1.1 message."""


@dataclass(frozen=True, slots=True)
class MessageHead:
    """First line and headers of a message."""

    line: tuple[bytes, bytes, bytes]
    """The three parts of the first line."""
    fields: dict[bytes, bytes]
    """Values of the headers by lower-case name; of a repeated header the last."""

    @classmethod
    def parse(cls, head: bytes) -> Self:
        """Parse the bytes up to the empty line.

        :raises FramingError: if they are no head, or leave the end of the body open to interpretation.
        """
        first, *lines = head.split(b"\r\n")
        parts = first.split(b" ", 2)
        if len(parts) < 3:
            raise FramingError("the first line is incomplete")
        fields: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            if not colon or not name or name[:1] in b" \t" or name[-1:] in b" \t":
                raise FramingError("a header is malformed")
            if name in (b"content-length", b"transfer-encoding") and fields.setdefault(name, value) != value:
                raise FramingError(f"{name.decode()} is repeated")
            fields[name] = value
        return cls((parts[0], parts[1], parts[2]), fields)

    @property
    def closes(self) -> bool:
        """The sender ends the connection after this message."""
        return b"close" in self.fields.get(b"connection", b"").lower()

    @property
    def is_small(self) -> bool:
        """The body is of a known and small size, and its sender waits for nothing."""
        length = self.fields.get(b"content-length", b"")
        return b"expect" not in self.fields and len(length) < 6 and 0 < int(length or 0) <= SMALL_BYTES

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
        encoding, length = self.fields.get(b"transfer-encoding"), self.fields.get(b"content-length")
        if encoding is not None:
            if encoding.lower() != b"chunked" or length is not None:
                raise FramingError("the end of the body is unclear")
            return ChunkedBody()
        if length is None:
            return None
        if not _LENGTH.match(length):
            raise FramingError("content-length is no number")
        return SizedBody(int(length))


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
