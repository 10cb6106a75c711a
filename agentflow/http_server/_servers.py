"""The web servers behind every port of this project, uvicorn for ASGI applications and aiohttp's, and their connections.

Connections are limited in number, and in the time for what does not arrive or is not read.
"""

import array
import asyncio
import fcntl
import logging
import resource
import socket
import termios
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import TypeAlias, cast
from urllib.parse import urlsplit

import anyio
import uvicorn
from aiohttp import web
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentflow._loopback import is_loopback
from agentflow.telemetry import get_logger

ACCEPTED_AT_ONCE = 4
"""Connections accepted in one turn of the event loop, before others are answered."""
WAITING_CONNECTIONS = 2048
"""Connections that wait to be accepted."""
NEVER = 86_400
"""Limit of a web server for idle connections, which `Connections` closes."""

_IDENTIFIED = "agentflow.identified"
_IDENTIFIED_KEY: web.RequestKey[Callable[[], None]] = web.RequestKey("identified")
_MAKE: Callable[..., asyncio.Protocol] = H11Protocol
HEADER_SECONDS = 10.0
"""Time for the headers of a request, from the connecting or from their first byte."""
IDLE_SECONDS = 60.0
"""Time between two requests of a connection."""
STALLED_SECONDS = 120.0
"""Time for which a client may read nothing of an answer that waits for it."""
QUIET_SECONDS = 1.0
"""Time after which a connection without a request gives way if there are too many."""
LINGER_SECONDS = 2.0
"""Time for a client to read a refusal."""
HEAD_BYTES = 64 * 1024
"""Size of the headers of a request."""
WAITING_BYTES = 32 * 1024 * 1024
"""Size of all headers that have not arrived completely."""
MAX_CONNECTIONS = 8192
"""Number of all connections; at most a third of the descriptors that the process may open."""
CHECK_SECONDS = 0.5
"""Interval between checks of the time."""

Peer: TypeAlias = tuple[str, int]
_HEAD_ENDS = (b"\r\n\r\n", b"\n\n")
MINUTE = 60.0
_MAX_KINDS = 256
_log = get_logger(__name__)


def identify(request: Scope | web.Request) -> None:
    """Record that a request has a valid token: its connection is kept longer than others if there are too many.

    See docs/security.md.
    """
    identified = (
        request.get(_IDENTIFIED_KEY) if isinstance(request, web.Request) else request.get(_IDENTIFIED)
    )
    if identified is not None:
        identified()


def cross_site(request: web.Request, host: str) -> str:
    """Return the reason to refuse a request from a web page of another host or origin; empty: there is none.

    See docs/security.md.

    :param host: address that the server listens on. On a loopback address, the `Host` of another machine is that of a page
        whose name was made to resolve to this one.
    """
    if is_loopback(host) and not is_loopback(_name_of(request.host)):
        return "the Host header names another machine; use 127.0.0.1"
    if (origin := request.headers.get("Origin")) and origin != f"http://{request.host}":
        return "a web page of another origin can't use this server"
    return ""


def _name_of(host: str) -> str:
    """Return a `Host` header without its port; empty if it is none."""
    try:
        return urlsplit(f"http://{host}").hostname or ""
    except ValueError:
        return ""


def max_connections() -> int:
    """Raise the limit of open descriptors as far as allowed, and return the number of connections that it permits.

    See docs/security.md.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, hard // 3)


class Connections:
    """The open connections of a server.

    A connection that waits for a request is closed after a time, or gives way to a new one if there are too many: those
    that never sent a valid token first, and none with bytes that have arrived but are not read yet. What finds no room is
    answered with 503. Time in which the whole process was suspended does not count.
    """

    def __init__(
        self, limit: int, *, name: str = "server", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """:param limit: maximum number of connections.
        :param name: name of the server in the log.
        """
        self.limit = limit
        """Maximum number of connections."""
        self.log = _RefusalLog(name)
        """Log of what is refused."""
        self._clock = clock
        self._suspended = 0.0
        self._by_peer: dict[Peer, LimitedConnection] = {}
        # All oldest first.
        self._open: dict[LimitedConnection, None] = {}
        self._heads: dict[LimitedConnection, float] = {}
        self._idle: dict[LimitedConnection, float] = {}
        self._stalled: dict[LimitedConnection, float] = {}
        self._leaving: dict[LimitedConnection, float] = {}
        self._head_bytes = 0
        self._made_room = -QUIET_SECONDS

    def __len__(self) -> int:
        return len(self._open)

    def limited(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """Return the protocol of one of these connections.

        :param make: makes the protocol inside, which answers. It is made when the headers of the first request are complete.
        """
        return LimitedConnection(self, make)

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
        connection = None if peer is None else self._by_peer.get(peer)
        if connection is not None:
            self._heads.pop(connection, 0.0)
            self._idle.pop(connection, 0.0)
            connection.release_head()
        return connection

    def identify(self, connection: "LimitedConnection | None") -> None:
        """Record that a request on the connection had a valid token."""
        if connection is not None:
            connection.identified = True

    def end_answer(self, connection: "LimitedConnection | None") -> None:
        """Record that a request is answered: the time until the next one begins."""
        if connection is not None and connection in self._open:
            self._idle[connection] = self._now()

    def abort_all(self) -> None:
        """Close every connection."""
        for connection in (*self._open, *self._leaving):
            connection.abort()

    @contextmanager
    def watched(self) -> Generator[None]:
        """Close connections whose time is over during the block, and afterwards those that wait for a request."""
        loop = asyncio.get_running_loop()

        def check(planned: float, *, again: bool = False) -> None:
            nonlocal timer
            late = self._clock() - planned
            wait = CHECK_SECONDS
            if late > CHECK_SECONDS and not again:
                # The process was suspended, or did something else: what arrived meanwhile is read before anything expires.
                self._suspended += late
                wait /= 10
            else:
                self.expire()
            timer = loop.call_later(wait, partial(check, self._clock() + wait, again=wait < CHECK_SECONDS))

        timer = loop.call_later(CHECK_SECONDS, check, self._clock() + CHECK_SECONDS)
        try:
            yield
        finally:
            timer.cancel()
            for connection in (*self._heads, *self._leaving):
                connection.abort()

    def expire(self) -> int:
        """Close connections whose time is over; return their number."""
        late = [*self._older(self._heads, HEADER_SECONDS), *self._older(self._idle, IDLE_SECONDS)]
        late = [connection for connection in late if not connection.is_busy()]
        late += [
            *self._older(self._stalled, STALLED_SECONDS),
            *self._older(self._leaving, LINGER_SECONDS),
        ]
        for connection in late:
            connection.abort()
        return len(late)

    def add(self, connection: "LimitedConnection") -> bool:
        """Record a new connection; return false if there is no room for it."""
        if len(self._open) >= self.limit and not self._make_room():
            self.log.refused("too many connections")
            return False
        self._by_peer[connection.peer] = connection
        self._open[connection] = None
        self._heads[connection] = self._now()
        return True

    def begin_head(self, connection: "LimitedConnection") -> bool:
        """Record bytes of a further request; return true while its headers are incomplete."""
        if self._idle.pop(connection, None) is not None:
            self._heads[connection] = self._now()
        return connection in self._heads

    def count_head_bytes(self, size: int) -> bool:
        """Count bytes of headers that wait for their rest; return false if that is too much."""
        self._head_bytes += size
        return self._head_bytes <= WAITING_BYTES

    def stalled(self, connection: "LimitedConnection", stalled: bool) -> None:
        """Record that a client reads nothing, or reads again."""
        if stalled:
            self._stalled[connection] = self._now()
        else:
            self._stalled.pop(connection, None)

    def leave(self, connection: "LimitedConnection") -> None:
        """Keep a refused connection until its client has read the answer."""
        self.remove(connection)
        self._leaving[connection] = self._now()
        if len(self._leaving) > self.limit:
            next(iter(self._leaving)).abort()

    def remove(self, connection: "LimitedConnection") -> None:
        """Forget a closed connection."""
        if self._by_peer.get(connection.peer) is connection:
            del self._by_peer[connection.peer]
        for group in (self._open, self._heads, self._idle, self._stalled, self._leaving):
            group.pop(connection, None)

    def _now(self) -> float:
        return self._clock() - self._suspended

    def _older(
        self, group: "dict[LimitedConnection, float]", seconds: float
    ) -> "Generator[LimitedConnection]":
        """Yield the connections that have been in a group for so long."""
        before = self._now() - seconds
        for connection, since in group.items():
            if since > before:
                return
            yield connection

    def _make_room(self) -> bool:
        """Close connections that wait for a request, of the addresses that have most of them; return whether there were any."""
        now = self._now()
        if now - self._made_room < QUIET_SECONDS / 10:
            return False
        self._made_room = now
        quiet = [*self._older(self._heads, QUIET_SECONDS), *self._older(self._idle, QUIET_SECONDS)]
        quiet = [connection for connection in quiet if not connection.is_busy()]
        quiet = [connection for connection in quiet if not connection.identified] or quiet
        by_host: dict[str, list[LimitedConnection]] = {}
        for connection in quiet:
            by_host.setdefault(connection.peer[0], []).append(connection)
        if not by_host:
            return False
        most = max(map(len, by_host.values()))
        greediest = [candidate for host in by_host.values() if len(host) == most for candidate in host]
        for connection in greediest[: max(1, self.limit // 8)]:
            connection.abort()
        return True


class LimitedConnection(asyncio.Protocol):
    """One connection; the protocol inside does the work from the first request on."""

    def __init__(self, connections: Connections, make: Callable[[], asyncio.Protocol]) -> None:
        self._connections = connections
        self._make = make
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport
        self._head = bytearray()
        self._held = 0
        self._has_room = True
        self._left = False
        self.peer: Peer = ("", 0)
        """Address of the client, as in its requests."""
        self.identified = False
        """A request on it had a valid token."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have no base class in common with asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        # Behind a Unix socket, a proxy limits its clients.
        if peer := transport.get_extra_info("peername"):
            self.peer = (str(peer[0]), int(peer[1]))
            # asyncio does it only for listeners that name their protocol; without it, each answer may wait for 40 ms.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._has_room = self._connections.add(self)
            if not self._has_room:
                self._connections.leave(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.release_head()
        self._connections.remove(self)
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            waits = self._connections.begin_head(self) and all(end not in data for end in _HEAD_ENDS)
            if not waits or self._hold_head_bytes(len(data)):
                self._inner.data_received(data)
        elif not self._left:
            self._take_head(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        self._connections.stalled(self, True)
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._connections.stalled(self, False)
        if self._inner is not None:
            self._inner.resume_writing()

    def is_busy(self) -> bool:
        """Return true if bytes have arrived that are not read yet, or an answer is not sent yet."""
        if self._transport.is_closing():
            return False
        unread = array.array("i", [0])
        fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.FIONREAD, unread)
        return unread[0] > 0 or self._transport.get_write_buffer_size() > 0

    def abort(self) -> None:
        """Close the connection without waiting for the client."""
        self._connections.remove(self)
        self._transport.abort()

    def _take_head(self, data: bytes) -> None:
        """Keep the bytes until the headers are complete; then let the protocol inside answer."""
        start = max(0, len(self._head) - 3)
        self._head += data
        ends = [end_index for end in _HEAD_ENDS if (end_index := self._head.find(end, start)) >= 0]
        # What is no request at all is answered by the protocol inside.
        if self._head[:1].isalpha() and min(ends, default=len(self._head)) > HEAD_BYTES:
            self._refuse("431 Request Header Fields Too Large", "the headers are too large")
            return
        if self._head[:1].isalpha() and not ends:
            self._hold_head_bytes(len(data))
            return
        if not self._has_room:
            self._refuse(
                "503 Service Unavailable", "the server has too many connections", "retry-after: 1\r\n"
            )
            return
        head = bytes(self._head)
        self.release_head()
        self._inner = self._make()
        self._inner.connection_made(self._transport)
        self._inner.data_received(head)

    def _refuse(self, status: str, message: str, header: str = "") -> None:
        """Answer in place of the protocol inside; what else arrives is discarded, so that the client reads the answer."""
        self._left = True
        self.release_head()
        body = f'{{"error": {{"message": "{message}"}}}}'
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self._transport.write(f"{head}connection: close\r\n{header}\r\n{body}".encode())
        self._transport.write_eof()
        self._connections.leave(self)

    def _hold_head_bytes(self, size: int) -> bool:
        """Count bytes of incomplete headers; close the connection and return false if all connections have too many."""
        self._held += size
        if not (fits := self._connections.count_head_bytes(size)):
            self._connections.log.refused("too many incomplete requests")
            self.abort()
        return fits

    def release_head(self) -> None:
        """Forget bytes of headers."""
        self._connections.count_head_bytes(-self._held)
        self._held = 0
        self._head.clear()


class AsgiServer(uvicorn.Server):
    """Web server for an ASGI application. It leaves signals to the program and signals its end."""

    def __init__(
        self, app: ASGIApp, *, name: str, protocol: Callable[..., asyncio.Protocol] | None = None
    ) -> None:
        """:param name: name of the server in the log.
        :param protocol: makes the protocol of each connection, if a proxy in front limits them; by default they are limited here.
        """
        self.connections = Connections(max_connections(), name=name)
        """Its open connections."""
        super().__init__(
            uvicorn.Config(
                self._counted(app),
                http=protocol or self._protocol,  # type: ignore[arg-type]  # only called
                timeout_keep_alive=NEVER,
                ws="none",
                # The address of a client in its requests is that of its connection.
                proxy_headers=False,
                backlog=ACCEPTED_AT_ONCE,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        _quiet("uvicorn.error")
        self.begun = anyio.Event()
        self.finished = anyio.Event()

    def _protocol(self, **options: object) -> asyncio.Protocol:
        return self.connections.limited(lambda: _MAKE(**options))

    def _counted(self, app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            with self.connections.answering(scope.get("client")) as identified:
                scope[_IDENTIFIED] = identified
                await app(scope, receive, send)

        return answer

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the program."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        for listener in sockets or ():
            # The event loop has set the queue of the socket to the number that it accepts at a time.
            listener.listen(WAITING_CONNECTIONS)
        self.begun.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`."""
        with self.connections.watched():
            try:
                # A server cut short leaves its listener in the event loop, and the next one with the same descriptor
                # would accept nothing.
                with anyio.CancelScope(shield=True):
                    await super().serve(sockets)
            finally:
                self.finished.set()


@asynccontextmanager
async def serving(
    app: web.Application, host: str = "127.0.0.1", port: int = 0, *, name: str = "server"
) -> AsyncGenerator[str]:
    """Serve an application of aiohttp, and yield its address. A call whose client leaves is cancelled.

    See docs/security.md.

    :param name: name of the server in the log.
    :raises OSError: if the address can't be used.
    """
    connections = Connections(max_connections(), name=name)
    app.middlewares.insert(0, _counting(connections))
    # A stop does not wait for requests that wait for something to happen.
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=NEVER,
        logger=_quiet("aiohttp.server"),
    )
    await runner.setup()
    make = runner.server
    assert make is not None
    try:
        listener = await asyncio.get_running_loop().create_server(
            lambda: connections.limited(make), host, port, backlog=ACCEPTED_AT_ONCE
        )
        for listening in listener.sockets:
            # The event loop has set the queue of the socket to the number that it accepts at a time.
            with socket.fromfd(listening.fileno(), listening.family, listening.type) as shared:
                shared.listen(WAITING_CONNECTIONS)
        with closing(listener), connections.watched():
            address = f"[{host}]" if ":" in host else host
            yield f"http://{address}:{listener.sockets[0].getsockname()[1]}"
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


def _counting(connections: Connections) -> Callable[..., Awaitable[web.StreamResponse]]:
    @web.middleware
    async def count(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        peer = None if request.transport is None else request.transport.get_extra_info("peername")
        with connections.answering(peer and (str(peer[0]), int(peer[1]))) as identified:
            request[_IDENTIFIED_KEY] = identified
            return await handler(request)

    return count


def _quiet(name: str) -> logging.Logger:
    """Return a library's logger that writes each kind of line once a minute."""
    logger = logging.getLogger(name)
    if not any(isinstance(filter_, _OncePerMinute) for filter_ in logger.filters):
        logger.addFilter(_OncePerMinute())
    return logger


class _Repetitions:
    """Lets each kind of line pass once a minute, and counts the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def seen(self, kind: str) -> int | None:
        """Return how often the kind was held back since its last line; `None` to hold this one back, too."""
        since, held = self._kinds.get(kind, (-MINUTE, 0))
        now = self._clock()
        if now - since < MINUTE:
            self._kinds[kind] = (since, held + 1)
            return None
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (now, 0)
        return held


class _RefusalLog:
    """Log of a server's refusals."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        """:param server: name of the server in each line."""
        self._server = server
        self._repetitions = _Repetitions(clock)

    def refused(self, reason: str) -> None:
        """Log a refusal for this reason, unless there was one in the last minute."""
        if (before := self._repetitions.seen(reason)) is not None:
            _log.warning("requests are refused", server=self._server, reason=reason, more_before=before)


class _OncePerMinute(logging.Filter):
    """Filter of a library's logger: each kind of line once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._repetitions = _Repetitions(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        return self._repetitions.seen(str(record.msg)) is not None
