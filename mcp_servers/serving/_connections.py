"""Limits of the connections of an HTTP server: time for the headers of a request, and number of connections."""

import asyncio
import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol, TypeAlias, runtime_checkable

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
        self._open: dict[Peer, _Connection] = {}
        # Both oldest first.
        self._waiting: OrderedDict[_Connection, float] = OrderedDict()
        self._unidentified: dict[_Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the class that the web server instantiates for each connection."""
        connections, make = self, _MAKE

        class LimitedConnection(_Connection):
            def __init__(self, **options: object) -> None:
                super().__init__(connections, make(**options))

        return LimitedConnection

    def limited(self, connection: asyncio.Protocol) -> asyncio.Protocol:
        """Return the protocol of a connection that is one of these."""
        return _Connection(self, connection)

    @contextmanager
    def answering(self, peer: Peer | None) -> Generator[Callable[[], None]]:
        """Enter when the headers of a request are complete; call the yielded function if its token is valid."""
        connection = None if peer is None else self._open.get(peer)
        self._waiting.pop(connection, 0.0) if connection else None

        def identified() -> None:
            if connection is not None:
                self._unidentified.pop(connection, None)

        try:
            yield identified
        finally:
            if peer is not None and connection is not None and self._open.get(peer) is connection:
                self._waiting[connection] = self._clock()

    async def watch(self) -> None:
        """Close connections whose headers do not arrive in time, until cancelled."""
        while True:
            await anyio.sleep(CHECK_SECONDS)
            self.expire()

    def expire(self) -> int:
        """Close connections whose headers are overdue; return their number."""
        overdue = self._clock() - HEADER_SECONDS
        late: list[_Connection] = []
        for connection, since in self._waiting.items():
            if since > overdue:
                break
            late.append(connection)
        for connection in late:
            connection.abort()
        return len(late)

    def add(self, connection: "_Connection") -> None:
        """Record a new connection; close the oldest unidentified one, or this one, if there are too many."""
        self._open[connection.peer] = connection
        self._waiting[connection] = self._clock()
        self._unidentified[connection] = None
        if len(self._unidentified) > UNIDENTIFIED or len(self._open) > self.limit:
            next(iter(self._unidentified)).abort()

    def remove(self, connection: "_Connection") -> None:
        """Forget a closed connection."""
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
        self._waiting.pop(connection, None)
        self._unidentified.pop(connection, None)


@runtime_checkable
class _Abortable(Protocol):
    """Transport of a stream. Those of uvloop have no base class in common with asyncio's."""

    def abort(self) -> None: ...


class _Connection(asyncio.Protocol):
    """One connection; the web server's protocol inside does the work."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self._connections = connections
        self._inner = inner
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
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def abort(self) -> None:
        """Close the connection without waiting for the client."""
        self._connections.remove(self)
        if isinstance(self._transport, _Abortable):
            self._transport.abort()
