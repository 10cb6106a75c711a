"""MCP over streamable HTTP: a guarded port in front of a tool table."""

import asyncio
import errno
import json
import math
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

import anyio
from mcp.server import Server
from mcp_types import INVALID_REQUEST
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.http_server import (
    LARGE_BYTES,
    STOPPING,
    WAITING_CONNECTIONS,
    AsgiServer,
    BodyRefusedError,
    Connections,
    RequestBodies,
    body_size,
    identify,
    max_connections,
)
from mcp_servers.core._shares import Shares
from mcp_servers.core._table import LOCAL, ToolTable
from mcp_servers.serving._access import BearerTokens, HttpOptions, Origins, RateLimit, Scopes
from mcp_servers.serving._endpoints import SESSIONS_PATH, TableEndpoints, admit, respond
from mcp_servers.serving._protocol import STRUCTURED
from mcp_servers.serving._server_names import CONNECTION_HEADER
from runtimes import JsonLimits

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


HEALTH = "/health"
"""Liveness; needs no token."""
READY = "/ready"
"""Readiness; needs no token. Answers 200 from the time when every backend to warm up is warm until the server stops."""
METRICS = "/metrics"
"""Prometheus metrics; needs a token."""

METHODS = ("POST", "GET", "DELETE")
"""HTTP methods of an endpoint. All but POST belong to a connection of the handshake era."""

CLOSE = ((b"connection", b"close"),)
"""Header that closes a connection. Otherwise the web server receives the rest of a body that nobody reads."""

MAX_VALUES = 20_000
"""JSON values of a request. Decoding holds the event loop: this many take about 25 ms."""

CLOSE_SECONDS = 5.0
"""Time for the web server to close its connections after the last answer."""


class Guard:
    """ASGI application that checks host, origin, token and rate, in that order, and then calls the endpoint of the path."""

    def __init__(self, application: TableEndpoints, options: HttpOptions, port: int) -> None:
        """Guard an application that listens on this port. Without tokens every client is the principal `local`."""
        self._application = application
        self._origins = Origins(options.host, port, options.allowed_origins, options.allowed_hosts)
        self._tokens = None if options.tokens is None else BearerTokens(options.tokens)
        rate = options.requests_per_minute
        clients = options.clients()
        principals = options.tokens or (LOCAL,)
        self._rate = None if rate is None else RateLimit(rate, principals, file=options.rate_file)
        self._scopes = Scopes(options.scopes)
        self._requests = Shares(max_connections(), dict.fromkeys(clients))
        limits = JsonLimits(max_bytes=options.body_bytes, max_values=MAX_VALUES)
        self._bodies = RequestBodies(limits, several=len(clients) > 1)
        self.waiting_for: Sequence[str] = ()
        """Backends that are still being warmed up."""
        self.active = 0
        """Requests being answered, without streams that only listen."""
        self._stopping = False
        self._idle = anyio.Event()

    async def drain(self) -> None:
        """Refuse new requests and wait until running ones are answered."""
        self._stopping = True
        if self.active:
            await self._idle.wait()

    def close(self) -> None:
        """Refuse the requests that have not arrived completely."""
        self._bodies.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not self._origins.allow_host(headers.get(b"host")):
            return await self._refuse(send, 421, "this server does not serve that host")
        if not self._origins.allow_origin(headers.get(b"origin")):
            return await self._refuse(send, 403, "pages of that origin may not use this server")
        path = scope["path"].rstrip("/")
        if path == HEALTH:
            return await _answer(send, 200, {"status": "stopping" if self._stopping else "ok"})
        if path == READY:
            return await self._answer_ready(send)
        principal = LOCAL if self._tokens is None else self._tokens.principal(headers.get(b"authorization"))
        endpoint = self._application.by_path.get(path)
        if endpoint is None and path not in (METRICS, SESSIONS_PATH):
            # Before the token is checked: clients look for OAuth metadata without one, and 404 tells them that there is none.
            endpoints = f"; available: {', '.join(self._application.by_path)}" if principal else ""
            return await self._refuse(send, 404, f"unknown endpoint{endpoints}")
        if principal is None:
            size = body_size(scope["headers"])
            close = CLOSE if size is None or size > LARGE_BYTES else ()
            challenge = [(b"www-authenticate", b"Bearer"), *close]
            return await self._refuse(send, 401, "a valid bearer token is required", challenge)
        identify(scope)
        if path == SESSIONS_PATH:
            return await respond(send, 200, self._application.sessions_report(principal))
        if endpoint is None:
            text = await self._application.metrics_text()
            return await respond(send, 200, text.encode(), b"text/plain; version=0.0.4")
        if (switch := _switch(scope["query_string"])) not in ("", "true", "false"):
            return await self._refuse(send, 400, f"structured={switch}: use true or false")
        if scope["method"] not in METHODS or (scope["method"] != "POST" and CONNECTION_HEADER not in headers):
            allow = [(b"allow", ", ".join(METHODS).encode())]
            return await self._refuse(send, 405, f"{scope['method']} needs a connection: use POST", allow)
        backend = path.removesuffix("/mcp").removeprefix("/")
        if backend and not self._scopes.allow(principal, backend):
            return await self._refuse(send, 403, f"this token may not use the backend {backend!r}")
        if self._stopping:
            return await self._refuse(send, 503, STOPPING)
        seconds = self._rate.wait(principal) if self._rate and scope["method"] == "POST" else 0.0
        if seconds:
            retry = [(b"retry-after", str(math.ceil(seconds)).encode())]
            return await self._refuse(send, 429, "too many requests; try again later", retry)
        admit(scope, principal)
        return await self._run(endpoint, principal, scope, receive, send)

    async def _run(
        self, endpoint: ASGIApp, principal: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Let the endpoint answer an admitted request."""
        if self._requests.full(principal) is not None:
            return await self._refuse(
                send, 429, "too many requests of this client are running; try again later"
            )
        self._requests.take(principal)
        listens = scope["method"] == "GET"
        self.active += not listens
        try:
            if listens:
                await endpoint(scope, receive, send)
            else:
                async with self._bodies.read(principal, body_size(scope["headers"]), receive) as body:
                    await endpoint(scope, _replay(body, receive), send)
        except BodyRefusedError as refused:
            await self._refuse(send, refused.status, str(refused), CLOSE if refused.close else ())
        finally:
            self._requests.give(principal)
            self.active -= not listens
            if self._stopping and self.active == 0:
                self._idle.set()

    async def _answer_ready(self, send: Send) -> None:
        if self._stopping:
            return await _answer(send, 503, {"ready": False, "status": "stopping"})
        if self.waiting_for:
            return await _answer(send, 503, {"ready": False, "waiting_for": list(self.waiting_for)})
        return await _answer(send, 200, {"ready": True})

    async def _refuse(
        self, send: Send, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Answer with a JSON-RPC error that has no request id."""
        self._application.refused(status)
        error = {"code": INVALID_REQUEST, "message": message}
        await _answer(send, status, {"jsonrpc": "2.0", "id": None, "error": error}, headers)


def _switch(query: bytes) -> str:
    """Return the value of `structured` in a query; empty if there is none."""
    return parse_qs(query.decode("latin-1"), keep_blank_values=True).get(STRUCTURED, [""])[-1]


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def _answer(
    send: Send, status: int, body: Mapping[str, object], headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    await respond(send, status, json.dumps(body).encode(), headers=headers)


def listen(host: str, port: int) -> socket.socket:
    """Create a listening socket.

    :raises ConfigurationError: if the address is not available.
    """
    with ExitStack() as stack:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = addresses[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(WAITING_CONNECTIONS)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigurationError(f"cannot listen on {host}:{port}: {reason}") from None
        stack.pop_all()
    return listener


def listen_unix(path: Path) -> socket.socket:
    """Create a listening Unix socket, which only this user can connect to; one that a dead server left is replaced.

    :raises ConfigurationError: if the path is not available.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if path.is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(WAITING_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on {path}: {error.strerror or error}") from None
    return listener


def public_address(listener: socket.socket, options: HttpOptions) -> tuple[str, int]:
    """Return host and port for clients; behind a Unix socket those of the options."""
    if listener.family == socket.AF_UNIX:
        return options.host, options.port
    host, port, *_ = listener.getsockname()
    return host, port


def url_of(host: str, port: int) -> str:
    """Return the URL of all backends together."""
    return f"http://[{host}]:{port}/mcp" if ":" in host else f"http://{host}:{port}/mcp"


class HttpServer:
    """HTTP server for a started tool table. See docs/mcp-servers.md."""

    def __init__(
        self,
        table: ToolTable,
        options: HttpOptions | None = None,
        listener: socket.socket | None = None,
        *,
        extend: Callable[[Server[Any]], object] = lambda _: None,
    ) -> None:
        """:param listener: a listening socket; by default one is created from the options. For a Unix socket the options
            hold the address that clients use.
        :param extend: adds handlers to each endpoint's MCP server.
        :raises ConfigurationError: if the options would admit unauthorized clients, or the address is not available.
        """
        options = options or HttpOptions()
        options.check()
        self._application = TableEndpoints(table, options, extend)
        self._options = options
        self._socket = listener or listen(options.host, options.port)
        self._stop = anyio.Event()
        self._warming = anyio.CancelScope()
        self._failure: AgentFlowError | None = None
        self.host, self.port = public_address(self._socket, options)
        guard = self._guard = Guard(self._application, options, self.port)
        proxied = ProxiedConnection if self._socket.family == socket.AF_UNIX else None
        self._server = AsgiServer(self._with_cors(guard), name="tool server", protocol=proxied)

    @property
    def connections(self) -> Connections:
        """Its open connections."""
        return self._server.connections

    @property
    def url(self) -> str:
        """URL of all backends together."""
        return url_of(self.host, self.port)

    def stop(self) -> None:
        """Refuse new requests, let running ones finish for `grace_seconds`, end every session."""
        self._stop.set()
        self._warming.cancel()

    async def serve(
        self,
        ready: Callable[[], object] = lambda: None,
        warmup: Sequence[str] = (),
        *,
        waiting: Callable[[Sequence[str]], object] = lambda _: None,
    ) -> None:
        """Serve until `stop`.

        :param ready: is called when requests are answered and the backends in `warmup` are warm.
        :param warmup: backends to warm up, one after the other; calls to others are already answered meanwhile.
        :param waiting: is called with the backends that are not ready yet, whenever they change.
        :raises AgentFlowError: if a backend cannot be warmed up.
        """
        guard, server = self._guard, self._server
        async with anyio.create_task_group() as group:
            await group.start(self._application.run)
            group.start_soon(server.serve, [self._socket])
            await server.begun.wait()
            await self._warm(guard, warmup, waiting)
            if self._failure is None:
                if not self._stop.is_set():
                    ready()
                await self._stop.wait()
            with anyio.move_on_after(self._options.grace_seconds):
                await guard.drain()
            guard.close()
            await self._application.end_sessions()
            # The web server waits for every stream, including those that only listen; this ends them.
            self._application.close()
            server.should_exit = True
            with anyio.move_on_after(CLOSE_SECONDS):
                await server.finished.wait()
            group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _warm(
        self, guard: Guard, backends: Sequence[str], waiting: Callable[[Sequence[str]], object]
    ) -> None:
        """Warm the backends up, unless the server is stopped meanwhile."""

        def changed(names: Sequence[str]) -> None:
            guard.waiting_for = names
            waiting(names)

        with self._warming:
            try:
                await self._application.warm(backends, changed)
            except AgentFlowError as error:
                self._failure = error

    def _with_cors(self, app: ASGIApp) -> ASGIApp:
        """Answer CORS requests if web pages of other origins may use the server."""
        if not self._options.allowed_origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=self._options.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("Mcp-Session-Id",),
        )
