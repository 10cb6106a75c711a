"""Limits of the connections of an HTTP server: time for the headers of a request, and number of connections."""

import asyncio
import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import anyio
from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADER_SECONDS = 10.0
"""Time for the headers of the next request, after connecting and after each answer."""

UNIDENTIFIED = 256
"""Number of connections that have sent no valid token yet; beyond it the oldest is closed."""

MAX_CONNECTIONS = 8192
"""Number of all connections; at most half of the descriptors that the process may open."""

CHECK_SECONDS = 1.0
"""Interval between checks of the time."""

# Takes the arguments of the web server.
_MAKE: Callable[..., asyncio.Protocol] = AutoHTTPProtocol

Peer: TypeAlias = tuple[str, int]


def max_connections() -> int:
    """Raise the limit of open descriptors as far as allowed, and return the number of connections that it permits."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, hard // 2)


class Connections:
    """The open connections of a server. Closes those whose headers don't arrive in time, and the oldest unidentified."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Create it empty.

        :param limit: maximum number of connections.
        """
        self.limit = limit
        """Maximum number of connections."""
        self._clock = clock
        self._open: dict[Peer, LimitedConnection] = {}
        # Both oldest first.
        self._waiting: OrderedDict[LimitedConnection, float] = OrderedDict()
        self._unidentified: dict[LimitedConnection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the class that the web server instantiates for each connection."""
        connections, make = self, _MAKE

        class OwnConnection(LimitedConnection):
            def __init__(self, **options: object) -> None:
                super().__init__(connections, make(**options))

        return OwnConnection

    def limited(self, connection: asyncio.Protocol) -> asyncio.Protocol:
        """Return the protocol of a connection that is one of these."""
        return LimitedConnection(self, connection)

    @contextmanager
    def answering(self, peer: Peer | None) -> Generator[Callable[[], None]]:
        """Enter when the headers of a request are complete; call the yielded function if its token is valid."""
        connection = self.begin_answer(peer)
        try:
            yield lambda: self.identify(connection)
        finally:
            self.end_answer(connection)

    def begin_answer(self, peer: Peer | None) -> "LimitedConnection | None":
        """Record that the headers of a request are complete; return its connection."""
        connection = None if peer is None else self._open.get(peer)
        if connection is not None:
            self._waiting.pop(connection, 0.0)
        return connection

    def identify(self, connection: "LimitedConnection | None") -> None:
        """Record that a request on the connection had a valid token."""
        if connection is not None:
            self._unidentified.pop(connection, None)

    def end_answer(self, connection: "LimitedConnection | None") -> None:
        """Record that a request is answered: the time for the next headers begins."""
        if connection is not None and self._open.get(connection.peer) is connection:
            self._waiting[connection] = self._clock()

    def abort_all(self) -> None:
        """Close every connection."""
        for connection in tuple(self._open.values()):
            connection.abort()

    async def watch(self) -> None:
        """Close connections whose headers do not arrive in time, until cancelled."""
        while True:
            await anyio.sleep(CHECK_SECONDS)
            self.expire()

    def expire(self) -> int:
        """Close connections whose headers are overdue; return their number."""
        overdue = self._clock() - HEADER_SECONDS
        late: list[LimitedConnection] = []
        for connection, since in self._waiting.items():
            if since > overdue:
                break
            late.append(connection)
        for connection in late:
            connection.abort()
        return len(late)

    def add(self, connection: "LimitedConnection") -> None:
        """Record a new connection; close the oldest unidentified one, or this one, if there are too many."""
        self._open[connection.peer] = connection
        self._waiting[connection] = self._clock()
        self._unidentified[connection] = None
        if len(self._unidentified) > UNIDENTIFIED or len(self._open) > self.limit:
            next(iter(self._unidentified)).abort()

    def remove(self, connection: "LimitedConnection") -> None:
        """Forget a closed connection."""
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
        self._waiting.pop(connection, None)
        self._unidentified.pop(connection, None)


@runtime_checkable
class _Abortable(Protocol):
    """Transport of a stream. Those of uvloop have no base class in common with asyncio's."""

    def abort(self) -> None: ...


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


class LimitedConnection(_WrappingProtocol):
    """One connection; the web server's protocol inside does the work."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        super().__init__(inner)
        self._connections = connections
        self._transport: asyncio.BaseTransport | None = None
        self.peer: Peer = ("", 0)
        """Address of the client, as in its requests."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.peer = (str(host), int(port))
        self._inner.connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection without waiting for the client."""
        self._connections.remove(self)
        if isinstance(self._transport, _Abortable):
            self._transport.abort()


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
