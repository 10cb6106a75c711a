"""The web servers behind every port of this project: uvicorn for ASGI applications, and aiohttp's."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from urllib.parse import urlsplit

import anyio
import uvicorn
from aiohttp import web
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentflow._loopback import is_loopback
from agentflow.http_server._connections import Connections, max_connections
from agentflow.http_server._refusal_log import OncePerMinute

ACCEPTED_AT_ONCE = 4
"""Connections accepted in one turn of the event loop, before others are answered."""
WAITING_CONNECTIONS = 2048
"""Connections that wait to be accepted."""
NEVER = 86_400
"""Limit of a web server for idle connections, which `Connections` closes."""

_IDENTIFIED = "agentflow.identified"
_IDENTIFIED_KEY: web.RequestKey[Callable[[], None]] = web.RequestKey("identified")
_MAKE: Callable[..., asyncio.Protocol] = H11Protocol


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
    if not any(isinstance(filter_, OncePerMinute) for filter_ in logger.filters):
        logger.addFilter(OncePerMinute())
    return logger
