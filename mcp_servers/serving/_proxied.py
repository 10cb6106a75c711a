"""Connections of a worker behind the proxy."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

# Takes the arguments of the web server.
_MAKE: Callable[..., asyncio.Protocol] = H11Protocol


class _WrappingProtocol(asyncio.Protocol):
    """Passes the events of a connection on to the protocol inside, which does the work."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


JOINED_BYTES = 64 * 1024
"""Size from which joined writes are sent at once."""


class _JoinedWrites(asyncio.Transport):
    """Transport that sends what is written in one turn of the event loop in one piece."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces = bytearray()
        self.closed = False
        """Nothing more is sent, and what arrives is discarded until the other end closes the connection.

        Otherwise it would fail to send the rest of its request, and not read the answer.
        """

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces += data
        if len(self._pieces) > JOINED_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pieces:
            data = bytes(self._pieces)
            self._pieces.clear()
            self._transport.write(data)

    def close(self) -> None:
        if not self.is_closing():
            self._flush()
            self._transport.write_eof()
            self._transport.resume_reading()
        self.closed = True

    def abort(self) -> None:
        self._pieces.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self.closed or self._transport.is_closing()

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401 -- of the interface
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class ProxiedConnection(_WrappingProtocol):
    """Connection of a proxy, which limits its clients itself; the web server's protocol inside does the work."""

    def __init__(self, **options: object) -> None:
        super().__init__(_MAKE(**options))
        self._writes: _JoinedWrites

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have no base class in common with asyncio's.
        self._writes = _JoinedWrites(cast("asyncio.Transport", transport))
        self._inner.connection_made(self._writes)

    def data_received(self, data: bytes) -> None:
        if not self._writes.closed:
            super().data_received(data)
