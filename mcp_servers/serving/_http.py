"""MCP over streamable HTTP: a guarded port in front of one tool table or of several worker processes."""

import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import anyio
import uvicorn
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus
from mcp.server import Server
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from agentflow.errors import AgentFlowError, ConfigurationError
from mcp_servers.core._table import ToolTable
from mcp_servers.serving._access import BearerTokens, HttpOptions, Origins, RateLimit, Scopes
from mcp_servers.serving._endpoints import TableEndpoints
from mcp_servers.serving._guard import Guard

CLOSE_SECONDS = 5.0
"""Time for the web server to close its connections after the last answer."""


class HttpApplication(Protocol):
    """An application behind a guarded port."""

    by_path: Mapping[str, ASGIApp]
    """ASGI application of each path."""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Answer requests until `close`."""
        ...

    async def warm(self, backends: Sequence[str], waiting: Callable[[Sequence[str]], object]) -> None:
        """Warm backends up while calls to others are already answered; report those not ready yet to `waiting`."""
        ...

    async def end_sessions(self) -> None:
        """End every session."""
        ...

    def close(self) -> None:
        """End every stream, including those that only listen."""
        ...

    def refused(self, status: int) -> None:
        """Count a refused request."""
        ...

    async def metrics_text(self) -> str:
        """Return the metrics in Prometheus text format."""
        ...


class GuardedServer:
    """An HTTP server with access control in front of an application."""

    def __init__(
        self, application: HttpApplication, options: HttpOptions, listener: socket.socket | None = None
    ) -> None:
        """Prepare to serve.

        :param listener: a listening socket; by default one is created from the options.
        :raises ConfigurationError: if the options would admit unauthorized clients, or the address is not available.
        """
        options.check()
        self._application = application
        self._options = options
        self._socket = listener or self.listen(options.host, options.port)
        self._stop = anyio.Event()
        self._warming = anyio.CancelScope()
        self._failure: AgentFlowError | None = None
        self.host, self.port = self._socket.getsockname()[:2]

    @staticmethod
    def listen(host: str, port: int) -> socket.socket:
        """Create a listening socket.

        :raises ConfigurationError: if the address is not available.
        """
        with ExitStack() as stack:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                family, kind, protocol, _, address = found[0]
                listener = stack.enter_context(socket.socket(family, kind, protocol))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(2048)
            except OSError as error:
                reason = error.strerror or error
                raise ConfigurationError(f"cannot listen on {host}:{port}: {reason}") from None
            stack.pop_all()
        return listener

    @property
    def url(self) -> str:
        """URL of all backends together."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/mcp"

    def stop(self) -> None:
        """Refuse new requests, let running ones finish for `grace_seconds`, end every session."""
        self._stop.set()
        self._warming.cancel()

    async def serve(self, ready: Callable[[], object] = lambda: None, warmup: Sequence[str] = ()) -> None:
        """Serve until `stop`.

        :param ready: is called when requests are answered and the backends in `warmup` are warm.
        :param warmup: backends to warm up, one after the other; calls to others are already answered meanwhile.
        :raises AgentFlowError: if a backend cannot be warmed up, or the application fails.
        """
        guard = self._guard()
        server = _Server(_config(self._with_cors(guard)))
        async with anyio.create_task_group() as group:
            await group.start(self._run)
            group.start_soon(server.serve, [self._socket])
            await self._warm(guard, warmup)
            if self._failure is None:
                if not self._stop.is_set():
                    ready()
                await self._stop.wait()
            with anyio.move_on_after(self._options.grace_seconds):
                await guard.drain()
            await self._application.end_sessions()
            # The web server waits for every stream, including those that only listen; this ends them.
            self._application.close()
            server.should_exit = True
            with anyio.move_on_after(CLOSE_SECONDS):
                await server.finished.wait()
            group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            await self._application.run(task_status=task_status)
        except AgentFlowError as error:
            self._failure = error
            self.stop()

    async def _warm(self, guard: Guard, backends: Sequence[str]) -> None:
        """Warm the backends up, unless the server is stopped meanwhile."""

        def waiting(names: Sequence[str]) -> None:
            guard.waiting_for = tuple(names)

        waiting(backends)
        with self._warming:
            try:
                await self._application.warm(backends, waiting)
            except AgentFlowError as error:
                self._failure = error

    def _guard(self) -> Guard:
        options = self._options
        rate = options.requests_per_minute
        return Guard(
            self._application.by_path,
            origins=Origins(options.host, self.port, options.allowed_origins, options.allowed_hosts),
            tokens=None if options.tokens is None else BearerTokens(options.tokens),
            rate=None if rate is None else RateLimit(rate),
            scopes=Scopes(options.scopes),
            metrics=self._application.metrics_text,
            refused=self._application.refused,
        )

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


class HttpServer(GuardedServer):
    """HTTP server for a started tool table. See docs/mcp-servers.md."""

    def __init__(
        self,
        table: ToolTable,
        options: HttpOptions | None = None,
        listener: socket.socket | None = None,
        *,
        extend: Callable[[Server[Any]], object] = lambda _: None,
    ) -> None:
        """Prepare to serve.

        :param listener: a listening socket; by default one is created from the options.
        :param extend: adds handlers to each endpoint's MCP server.
        :raises ConfigurationError: if the options would admit unauthorized clients, or the address is not available.
        """
        options = options or HttpOptions()
        super().__init__(TableEndpoints(table, options, extend), options, listener)


class _Server(uvicorn.Server):
    """Web server that leaves signals to the program and signals its end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.finished = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            self.finished.set()


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
