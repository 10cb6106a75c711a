"""Message framing between a process and its workers, over pipes and stream sockets.

A frame is a four-byte big-endian length followed by that many bytes. Text protocols end each message with a
separator instead. A message is a line of JSON followed by raw bytes, so that large content never passes through a
JSON decoder. This module needs only the standard library: it also runs inside sandboxes. A blocking end uses
`read_frame` and `write_frame`; an asyncio or anyio end uses `FrameReader` and `pack_frame`; an end that is called
back with data feeds a `FrameDecoder` or a `LineDecoder`.

Messages that carry file descriptors use sequenced-packet sockets, which keep message boundaries themselves.

Decoded JSON can take a hundred times its size: 100 MiB of `[],` become 2.4 GiB of lists. `check_json` counts the values
of a payload before they are created, without creating any.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeGuard

MAX_FRAME_BYTES = 0xFFFFFFFF
"""Largest payload that the length field can express."""

_HEADER_BYTES = 4
_PIECE_BYTES = 1 << 16

# Looked up once: code that shares the interpreter inside a sandbox may replace them in their modules.
_os_write = os.write
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class FrameError(ValueError):
    """Stream that breaks the framing: an oversized, truncated or malformed message."""


class JsonLimits(NamedTuple):
    """Limits of a JSON payload from an untrusted peer."""

    max_bytes: int = 16 * 1024 * 1024
    """Size of the payload."""
    max_values: int = 250_000
    """Number of its values, those inside others included; each takes about 100 bytes, and its text."""


_JSON_LIMITS = JsonLimits()
_HEAD_LIMITS = JsonLimits(max_bytes=128 * 1024, max_values=4096)


class _Decoder(ABC):
    """Buffer of a stream that arrives in arbitrary pieces. It does no I/O."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        """Number of bytes that have arrived and were not returned yet, headers included."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    @abstractmethod
    def next(self) -> bytes | None:
        """Return the next complete message, or `None` until more bytes arrive.

        :raises FrameError: if the message is over the limit.
        """

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the messages that are complete by now."""
        while (message := self.next()) is not None:
            yield message


class FrameDecoder(_Decoder):
    """Decoder of frames for a stream that arrives in arbitrary pieces. It does no I/O.

    Example::

        decoder = FrameDecoder(limit=1024)
        decoder.feed(pack_frame(b"one") + pack_frame(b"two")[:3])
        assert list(decoder) == [b"one"]
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        super().__init__(limit)
        self._end = 0

    def next(self) -> bytes | None:
        """Return the next complete payload, or `None` until more bytes arrive.

        :raises FrameError: if the frame is over the limit.
        """
        if self.missing:
            return None
        payload = bytes(memoryview(self._buffer)[_HEADER_BYTES : self._end])
        del self._buffer[: self._end]
        return payload

    @property
    def missing(self) -> int:
        """Number of bytes up to the end of the header or, after it, of the frame; 0 if the frame is complete.

        :raises FrameError: if the frame is over the limit.
        """
        if len(self._buffer) < _HEADER_BYTES:
            return _HEADER_BYTES - len(self._buffer)
        size = int.from_bytes(self._buffer[:_HEADER_BYTES], "big")
        if size > self._limit:
            raise FrameError(f"a frame of {size} bytes is over the limit of {self._limit}")
        self._end = _HEADER_BYTES + size
        return max(0, self._end - len(self._buffer))

    def end(self) -> None:
        """Check that the stream ended between two frames.

        :raises FrameError: if it ended inside one.
        """
        if self._buffer:
            raise FrameError(f"the stream ended inside a frame, after {len(self._buffer)} bytes of it")


class LineDecoder(_Decoder):
    """Decoder of messages that each end with a one-byte separator. It does no I/O.

    Example::

        decoder = LineDecoder(limit=1024)
        decoder.feed(b"one\\ntw")
        assert list(decoder) == [b"one"]
    """

    def __init__(self, limit: int, separator: bytes = b"\n") -> None:
        super().__init__(limit)
        self._separator = separator
        self._searched = 0

    def next(self) -> bytes | None:
        """Return the next complete message without its separator, or `None` until more bytes arrive.

        :raises FrameError: if the message is over the limit.
        """
        end = self._buffer.find(self._separator, self._searched)
        if (len(self._buffer) if end < 0 else end) > self._limit:
            raise FrameError(f"a message is longer than the limit of {self._limit} bytes")
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(memoryview(self._buffer)[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line


class FrameReader:
    """Asynchronous reader of frames. A cancelled `read` loses nothing.

    Example::

        reader = FrameReader(process.stdout.receive, limit=1 << 20, end_of_stream=anyio.EndOfStream)
        while (payload := await reader.read()) is not None:
            ...
    """

    def __init__(
        self,
        receive: Callable[[], Awaitable[bytes]],
        limit: int = MAX_FRAME_BYTES,
        *,
        end_of_stream: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> None:
        """Read from a stream.

        :param receive: returns the next bytes; nothing at the end of the stream.
        :param limit: largest payload to accept, in bytes.
        :param end_of_stream: exceptions of `receive` that mean the end of the stream too.
        """
        self._receive = receive
        self._end_of_stream = end_of_stream
        self._decoder = FrameDecoder(limit)

    async def read(self) -> bytes | None:
        """Return the next payload, or `None` at the end of the stream.

        :raises FrameError: if the frame is over the limit, or the stream ends inside it.
        """
        while (payload := self._decoder.next()) is None:
            try:
                data = await self._receive()
            except self._end_of_stream:
                data = b""
            if not data:
                self._decoder.end()
                return None
            self._decoder.feed(data)
        return payload


def pack_frame(payload: bytes) -> bytes:
    """Return the frame of a payload.

    :raises FrameError: if the length field cannot express its size.

    Example::

        assert pack_frame(b"hi") == b"\\0\\0\\0\\2hi"
    """
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


def read_frame(read: Callable[[int], bytes], limit: int = MAX_FRAME_BYTES) -> bytes | None:
    """Read one frame, blocking, and no byte beyond it; return its payload, or `None` at the end of the stream.

    :param read: returns at most the given number of bytes, and nothing at the end of the stream.
    :param limit: largest payload to accept, in bytes.
    :raises FrameError: if the frame is over the limit, or the stream ends inside it.

    Example::

        while (payload := read_frame(sys.stdin.buffer.read)) is not None:
            write_frame(1, answer(payload))
    """
    decoder = FrameDecoder(limit)
    while (payload := decoder.next()) is None:
        piece = read(decoder.missing)
        if not piece:
            decoder.end()
            return None
        decoder.feed(piece)
    return payload


def write_frame(descriptor: int, payload: bytes) -> None:
    """Write one frame to a blocking descriptor.

    :raises OSError: if the other end is closed.

    Example::

        write_frame(sys.stdout.fileno(), b'{"ready": true}')
    """
    frame = memoryview(pack_frame(payload))
    while frame:
        frame = frame[_os_write(descriptor, frame) :]


def check_json(payload: bytes, limits: JsonLimits = _JSON_LIMITS) -> None:
    """Check the size and the number of values of a JSON payload before it is decoded.

    Reads each byte a few times with functions in C and creates nothing per value. Text is not mistaken for values. In
    malformed JSON, a decoder stops before the first value that was not counted.

    :raises FrameError: if a limit is exceeded.

    Example::

        check_json(b'{"text": "[[[[[[[["}', JsonLimits(max_values=2))
    """
    if len(payload) > limits.max_bytes:
        raise FrameError(f"a message of {len(payload)} bytes is over the limit of {limits.max_bytes}")
    if json_values(payload, few=limits.max_values, most=limits.max_values) > limits.max_values:
        raise FrameError(f"a message has more than {limits.max_values} values")


def _openings(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def json_values(payload: bytes, *, few: int, most: int) -> int:
    """Return the number of values of a JSON payload before it is decoded, in pieces, so that other threads run in between.

    :param few: a bound is enough if it is at most this.
    :param most: a number that is larger than this is only said to be larger.

    Example::

        assert json_values(b'{"text": "[[[[[[[["}', few=1, most=9) == 2
    """
    # Each value follows one of these, but they occur in text, too.
    if (bound := _openings(payload) + 1) <= few:
        return bound
    start, in_text, values, quotes = 0, 0, 1, 0
    while start < len(payload):
        piece = payload[start : start + _PIECE_BYTES]
        # An escaped character must not be separated from its backslash.
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = payload[start : start + _PIECE_BYTES + 1]
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        values += _openings(b" ".join(parts[in_text::2]))
        quotes += len(parts) - 1
        in_text = quotes % 2
        # A value has at most two texts, its key and itself; more of them follow each other without a separator.
        if values > most or quotes > 4 * most:
            return most + 1
    return values


def decode_object(payload: bytes, limits: JsonLimits = _JSON_LIMITS) -> dict[str, Any]:
    """Return the JSON object that a payload holds.

    :raises FrameError: if it holds anything else, or exceeds a limit.

    Example::

        assert decode_object(b'{"op": "run"}') == {"op": "run"}
    """
    check_json(payload, limits)
    try:
        value: object = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message is not JSON: {error}") from None
    if not _is_object(value):
        raise FrameError(f"a message is a JSON {type(value).__name__}, not an object")
    return value


def pack_message(head: dict[str, Any], data: bytes = b"") -> bytes:
    """Return the payload of a message: a JSON object and raw bytes.

    Example::

        assert pack_message({"size": 2}, b"hi") == b'{"size":2}\\nhi'
    """
    return b"%s\n%s" % (_to_json(head).encode(), data)


def unpack_message(payload: bytes, limits: JsonLimits = _HEAD_LIMITS) -> tuple[dict[str, Any], memoryview]:
    """Return the JSON object and the raw bytes of a message.

    :param limits: limits of the JSON object; the frame limits the rest.
    :raises FrameError: if the payload holds no such message, or its JSON exceeds a limit.

    Example::

        head, data = unpack_message(b'{"size":2}\\nhi')
    """
    end = payload.find(b"\n", 0, limits.max_bytes + 1)
    if end < 0:
        raise FrameError(f"a message has no JSON object of at most {limits.max_bytes} bytes before its data")
    return decode_object(payload[:end], limits), memoryview(payload)[end + 1 :]


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
