"""Proxy in front of several servers: routes each request by its headers and passes bytes on unchanged."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from mcp_types import INTERNAL_ERROR

from agentflow.errors import ErrorKind
from agentflow.http_server import Connections, LimitedConnection
from mcp_servers.serving._http_framing import (
    HEAD_END,
    MAX_HEAD_BYTES,
    SESSIONS_HEADER,
    TOOL_HEADER,
    FramingError,
    MessageBody,
    MessageHead,
    OpenBody,
    SizedBody,
    refusal,
)
from mcp_servers.serving._server_names import SESSION_HEADER, named_server, server_of

STARTING = (b"session_start", b"session:start")
"""The tool that starts a session, in any worker."""

LOST = "the server process of this call has ended and may or may not have completed it: call again."
NONE_AVAILABLE = "no server process is available: try again later."

# Statuses of requests without a valid token, and of those that need none.
_UNIDENTIFIED = (b"401", b"403", b"404", b"421")


class Upstream(Protocol):
    """A server behind the proxy, with what the choice among several needs."""

    socket: Path
    """The Unix socket on which it listens."""
    active: int
    """Requests that it is answering, without streams that only listen."""
    sessions: int
    """Number of its sessions when it last answered."""
    served: int
    """Number of requests sent to it so far."""
    full_for: set[bytes]
    """`Authorization` headers of clients that can start no more sessions in it."""


class Router(Protocol):
    """Knows the servers behind the proxy."""

    def server(self, name: str | None) -> Upstream | None:
        """Return the server of that name, if it is available."""
        ...

    def least_busy(self, *, starting: bytes | None, last: Upstream | None) -> Upstream | None:
        """Return the server with the fewest requests; `None` if none is available.

        :param starting: `Authorization` header of a client that starts a session: the fewest sessions count.
        :param last: server of the last request of the connection, preferred among equals.
        """
        ...

    def unreachable(self, server: Upstream) -> None:
        """Record that a server accepts no connections."""
        ...

    def local(self, head: MessageHead) -> Awaitable[bytes] | None:
        """Return the response to a request that the proxy itself answers."""
        ...


def choose(router: Router, head: MessageHead, last: Upstream | None) -> Upstream | None:
    """Return the server for a request; `None` if none is available.

    :param last: server of the last request of the connection.

    A server that is gone is replaced by another one, which reports that the session is not found.
    """
    named = router.server(named_server(head.fields))
    if named is not None:
        return named
    starts = head.fields.get(TOOL_HEADER) in STARTING
    return router.least_busy(starting=head.fields.get(b"authorization", b"") if starts else None, last=last)


_NOTHING_LEFT = SizedBody(0)


class _Exchange:
    """A request and its response."""

    def __init__(self, head: MessageHead, body: MessageBody) -> None:
        self.head = head
        self.request = body
        self.unsent = b""
        """Bytes of the request that wait for the rest of it, or for a connection to the server."""
        self.dispatched = False
        """The server is chosen."""
        self.server: Upstream | None = None
        self.link: _ServerLink | None = None
        self.started = False
        """A part of the final response has been passed on."""
        self.withheld = b""
        """Bytes of the response that wait for the rest of a head, or of a small body."""
        self.seen = 0
        """Number of them that are no longer to be parsed."""
        self.response: MessageBody | None = None
        self.small_response = False
        self.closes = head.closes or head.line[2] == b"HTTP/1.0"
        self.counts = head.line[0] != b"GET"

    def take_unsent(self) -> bytes:
        """Return the bytes of the request to send now."""
        data, self.unsent = self.unsent, b""
        return data

    @property
    def answered(self) -> bool:
        return self.response is not None and self.response.complete

    def lost(self) -> bytes:
        """Return the response in place of a server that has ended."""
        session = self.head.fields.get(SESSION_HEADER, b"").decode("latin-1")
        if session and server_of(session) is not None:
            return refusal(
                "502 Bad Gateway", gone(session), code=INTERNAL_ERROR, kind=ErrorKind.SESSION_NOT_FOUND
            )
        return refusal("502 Bad Gateway", LOST, code=INTERNAL_ERROR, kind=ErrorKind.UNAVAILABLE)


def gone(session: str) -> str:
    """Return one line for a call to a session whose server has ended."""
    return f"session {session!r} is gone: its server process has ended. Start a new one with session_start."


class ClientLink(asyncio.Protocol):
    """Connection of a client. Its connections to servers are its own, so that no client can disturb another."""

    def __init__(self, router: Router, connections: Connections, start_soon: Callable[..., object]) -> None:
        self._router = router
        self._connections = connections
        self._start_soon = start_soon
        self._transport: asyncio.Transport
        self._peer = ("", 0)
        self._received = bytearray()
        self._exchange: _Exchange | None = None
        self._links: dict[Upstream, _ServerLink] = {}
        self._connection: LimitedConnection | None = None
        self._last: Upstream | None = None
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have no base class in common with asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self._peer = (str(host), int(port))

    def data_received(self, data: bytes) -> None:
        if self._closed or (self._exchange is None and not self._received and self._begin_whole(data)):
            return
        self._received += data
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._end_exchange()
        for link in tuple(self._links.values()):
            link.abort()

    def pause_writing(self) -> None:
        if self._exchange is not None and self._exchange.link is not None:
            self._exchange.link.pause_reading()

    def resume_writing(self) -> None:
        # The exchange that filled the buffer may be over.
        for link in self._links.values():
            link.resume_reading()

    def server_paused(self) -> None:
        """Stop to read while the server takes no more of a request."""
        self._transport.pause_reading()

    def server_resumed(self) -> None:
        """Read again."""
        if not self._closed:
            self._transport.resume_reading()

    def server_answered(self, link: "_ServerLink", data: bytes) -> None:
        """Pass on a part of the response."""
        exchange = self._exchange
        if exchange is None or exchange.link is not link or self._closed:
            link.abort()
            return
        try:
            data = self._whole_response(exchange, data) or self._response_part(exchange, data)
        except FramingError:
            self._lose(exchange)
            return
        if data:
            exchange.started = True
            self._transport.write(data)
        if exchange.answered:
            self._finish(exchange)

    def server_lost(self, link: "_ServerLink") -> None:
        """End the exchange with a server that has closed the connection."""
        self._links = {server: other for server, other in self._links.items() if other is not link}
        exchange = self._exchange
        if exchange is not None and exchange.link is link:
            self._lose(exchange)

    def _advance(self) -> None:
        """Pass on received bytes as far as possible."""
        while self._received and not self._closed:
            exchange = self._exchange
            if exchange is None:
                if not self._begin():
                    return
            elif exchange.request.complete:
                # The client has sent the next request already.
                self._transport.pause_reading()
                return
            else:
                self._take_body(exchange)

    def _begin_whole(self, data: bytes) -> bool:
        """Begin an exchange if the data are one request with a small body, as of most calls; they are passed on unchanged."""
        try:
            head = MessageHead.of_whole(data)
        except FramingError:
            return False  # refused below
        if head is None or b"expect" in head.fields:
            return False
        self._exchange = exchange = _Exchange(head, _NOTHING_LEFT)
        exchange.unsent = data
        self._dispatch(exchange)
        return True

    def _begin(self) -> bool:
        """Begin an exchange if a whole head has arrived."""
        end = self._received.find(HEAD_END)
        if end < 0 or end > MAX_HEAD_BYTES:
            if len(self._received) > MAX_HEAD_BYTES:
                self._refuse("431 Request Header Fields Too Large", "the headers are too large")
            return False
        raw = bytes(self._received[: end + len(HEAD_END)])
        del self._received[: len(raw)]
        try:
            head = MessageHead.parse(raw[:end])
            exchange = self._exchange = _Exchange(head, head.request_body())
        except FramingError as error:
            self._refuse("400 Bad Request", str(error))
            return False
        exchange.unsent += raw
        if not head.is_small:
            self._dispatch(exchange)
        return True

    def _take_body(self, exchange: _Exchange) -> None:
        """Take received bytes of a body, and pass them on. The time for a head includes that for a small body."""
        try:
            size = exchange.request.take(self._received)
        except FramingError as error:
            self._refuse("400 Bad Request", str(error))
            return
        exchange.unsent += self._received[:size]
        del self._received[:size]
        if exchange.link is not None:
            exchange.link.write(exchange.take_unsent())
            if exchange.answered:
                self._finish(exchange)
        elif exchange.request.complete and not exchange.dispatched:
            self._dispatch(exchange)

    def _dispatch(self, exchange: _Exchange) -> None:
        """Send a request to its server."""
        exchange.dispatched = True
        self._connection = self._connections.begin_answer(self._peer)
        # Nothing that is posted concerns all servers.
        answer = None if exchange.head.line[0] == b"POST" else self._router.local(exchange.head)
        if answer is not None:
            self._start_soon(self._answer, exchange, answer)
        else:
            self._send_to_server(exchange)

    def _send_to_server(self, exchange: _Exchange) -> None:
        server = choose(self._router, exchange.head, self._last)
        if server is None:
            self._refuse("503 Service Unavailable", NONE_AVAILABLE, kind=ErrorKind.UNAVAILABLE)
            return
        exchange.server = self._last = server
        server.served += 1
        server.active += exchange.counts
        exchange.link = self._links.get(server)
        if exchange.link is None:
            self._transport.pause_reading()
            self._start_soon(self._connect, exchange, server)
        else:
            exchange.link.write(exchange.take_unsent())

    async def _connect(self, exchange: _Exchange, server: Upstream) -> None:
        """Connect to a server and send what has arrived of the request."""
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_unix_connection(partial(_ServerLink, self), str(server.socket))
        except OSError:
            # It has received nothing, so another one can answer.
            self._router.unreachable(server)
            server.active -= exchange.counts
            exchange.server = None
            if exchange is self._exchange and not self._closed:
                self._send_to_server(exchange)
            return
        if exchange is not self._exchange or self._closed:
            link.abort()
            return
        exchange.link = self._links[server] = link
        link.write(exchange.take_unsent())
        self._transport.resume_reading()

    async def _answer(self, exchange: _Exchange, answer: Awaitable[bytes]) -> None:
        """Send a response of the proxy itself."""
        data = await answer
        if exchange is self._exchange and not self._closed:
            self._transport.write(data)
            self._end_exchange()
            if exchange.closes or not exchange.request.complete:
                self._transport.close()
            else:
                self._transport.resume_reading()
                self._advance()

    def _whole_response(self, exchange: _Exchange, data: bytes) -> bytes:
        """Return the data if they are the whole response, as of most calls; otherwise nothing.

        :raises FramingError: if they are no response.
        """
        if exchange.response is not None or exchange.withheld:
            return b""
        head = MessageHead.of_whole(data)
        if head is None or head.line[1] != b"200" or exchange.head.line[0] == b"HEAD":
            return b""
        exchange.response = _NOTHING_LEFT
        exchange.closes = exchange.closes or head.closes
        self._note(exchange, head)
        return data

    def _response_part(self, exchange: _Exchange, data: bytes) -> bytes:
        """Take a part of a response; return what is to be passed on now.

        :raises FramingError: if it is no response, or more than that.
        """
        data, at = exchange.withheld + data, exchange.seen
        while exchange.response is None:
            end = data.find(HEAD_END, at)
            if end < 0:
                if len(data) - at > MAX_HEAD_BYTES:
                    raise FramingError("the headers are too large")
                exchange.withheld, exchange.seen = data[at:], 0
                return data[:at]
            head = MessageHead.parse(data[at:end])
            at = end + len(HEAD_END)
            if head.line[1][:1] != b"1":
                exchange.response = head.response_body(of_head=exchange.head.line[0] == b"HEAD")
                exchange.closes = exchange.closes or head.closes
                exchange.small_response = head.is_small
                self._note(exchange, head)
        if exchange.response.take(data[at:]) < len(data) - at:
            raise FramingError("more than a response")
        if exchange.small_response and not exchange.answered:
            exchange.withheld, exchange.seen = data, len(data)
            return b""
        exchange.withheld, exchange.seen = b"", 0
        return data

    def _note(self, exchange: _Exchange, head: MessageHead) -> None:
        """Note what a response tells about its server and the client."""
        if head.line[1] not in _UNIDENTIFIED:
            self._connections.identify(self._connection)
        report = head.fields.get(SESSIONS_HEADER)
        if report is not None and exchange.server is not None:
            count, _, full = report.partition(b";")
            exchange.server.sessions = int(count)
            client = exchange.head.fields.get(b"authorization", b"")
            (exchange.server.full_for.add if full else exchange.server.full_for.discard)(client)

    def _finish(self, exchange: _Exchange) -> None:
        """End an exchange whose response is complete, once the request is complete, too."""
        if exchange.closes:
            self._end_exchange()
            self._close(unread=not exchange.request.complete)
        elif exchange.request.complete:
            self._end_exchange()
            self._transport.resume_reading()
            self._advance()

    def _close(self, *, unread: bool) -> None:
        """Close the connection once the client has read the answer.

        :param unread: the client is still sending; what arrives is discarded for the time of a head.
        """
        if unread:
            self._closed = True
            self._received.clear()
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def _lose(self, exchange: _Exchange) -> None:
        """End an exchange whose server is gone. An answer that has begun remains visibly incomplete."""
        if not exchange.started:
            self._transport.write(exchange.lost())
        self._end_exchange()
        if not exchange.started or exchange.answered or isinstance(exchange.response, OpenBody):
            self._transport.close()
        else:
            self._transport.abort()

    def _refuse(self, status: str, message: str, *, kind: ErrorKind | None = None) -> None:
        """Refuse a request and close the connection."""
        if self._exchange is None or not self._exchange.started:
            self._transport.write(refusal(status, message, kind=kind))
        self._end_exchange()
        self._transport.close()

    def _end_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        self._connections.end_answer(self._connection)
        self._connection = None
        if exchange is None:
            return
        if exchange.server is not None:
            exchange.server.active -= exchange.counts
        if exchange.link is not None and not (exchange.answered and exchange.request.complete):
            # Its server learns that nobody waits for the answer.
            exchange.link.abort()
            self._links = {server: link for server, link in self._links.items() if link is not exchange.link}


class _ServerLink(asyncio.Protocol):
    """Connection to a server, for one client."""

    def __init__(self, client: ClientLink) -> None:
        self._client = client
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._client.server_answered(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.server_lost(self)

    def pause_writing(self) -> None:
        self._client.server_paused()

    def resume_writing(self) -> None:
        self._client.server_resumed()

    def write(self, data: bytes) -> None:
        """Send a part of a request."""
        self._transport.write(data)

    def pause_reading(self) -> None:
        """Stop to read while the client takes no more of a response."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()
