"""MCP over streamable HTTP: all backends at `/mcp`, each alone at `/<backend>/mcp`."""

import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import anyio
import uvicorn
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from agentflow.errors import AgentFlowError, ConfigurationError
from mcp_servers._access import Origins, RateLimit, Scopes, Tokens
from mcp_servers._guard import PRINCIPAL, Guard
from mcp_servers._http_options import HttpOptions
from mcp_servers._metrics import Metrics, own_usage
from mcp_servers._protocol import McpDoor, RequestContext
from mcp_servers._session_tools import SESSIONS
from mcp_servers._table import ToolTable
from mcp_servers._turns import Turns

__all__ = ["HttpServer"]

EXPIRY_SECONDS = 5.0
"""How often idle sessions are looked for."""

CLOSE_SECONDS = 5.0
"""Time for the web server to close its connections, when nothing is left to answer."""


class HttpServer:
    """Serves a started tool table."""

    def __init__(
        self,
        table: ToolTable,
        options: HttpOptions | None = None,
        listener: socket.socket | None = None,
        *,
        extend: Callable[[Server[Any]], object] = lambda _: None,
    ) -> None:
        """Get ready to serve.

        :param listener: a socket that listens already; by default one is made as the options say.
        :param extend: gives each endpoint's server what the tool table has not.
        :raises ConfigurationError: if the options would let strangers in, or the address can't be had.
        """
        self._table = table
        self._options = options or HttpOptions()
        self._options.check()
        self._socket = listener or self.listen(self._options.host, self._options.port)
        self._extend = extend
        self._scopes = Scopes(self._options.scopes)
        self._metrics = Metrics()
        self._stop = anyio.Event()
        self._warming = anyio.CancelScope()
        self._closing = anyio.Event()
        self.host, self.port = self._socket.getsockname()[:2]

    @staticmethod
    def listen(host: str, port: int) -> socket.socket:
        """A listening socket.

        :raises ConfigurationError: if the address can't be had.
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
                raise ConfigurationError(f"can't listen on {host}:{port}: {reason}") from None
            stack.pop_all()
        return listener

    @property
    def url(self) -> str:
        """Where all backends together are."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/mcp"

    def stop(self) -> None:
        """Take no more requests, let those in progress end for a while, end every session."""
        self._stop.set()
        self._warming.cancel()

    async def serve(self, ready: Callable[[], object] = lambda: None, warmup: Sequence[str] = ()) -> None:
        """Serve until `stop`.

        :param ready: is called when requests are answered and those backends are warm.
        :param warmup: backends to get ready, one after the other, while calls to others are answered already.
        :raises AgentFlowError: if one of them can't be got ready.
        """
        managers = {path: self._manager(door) for path, door in self._doors().items()}
        endpoints = {path: manager.handle_request for path, manager in managers.items()}
        guard = self._guard(endpoints)
        failure: AgentFlowError | None = None
        server = _Server(_config(self._with_cors(guard)))
        async with anyio.create_task_group() as group:
            for manager in managers.values():
                await group.start(self._run, manager)
            group.start_soon(server.serve, [self._socket])
            group.start_soon(self._expire)
            failure = await self._warm(guard, warmup)
            if failure is None:
                if not self._stop.is_set():
                    ready()
                await self._stop.wait()
            with anyio.move_on_after(self._options.grace_seconds):
                await guard.drain()
            await self._table.sessions.close()
            # The web server waits for every stream, also for those that only listen; this ends them.
            self._closing.set()
            server.should_exit = True
            with anyio.move_on_after(CLOSE_SECONDS):
                await server.finished.wait()
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _warm(self, guard: Guard, backends: Sequence[str]) -> AgentFlowError | None:
        """Get them ready, unless the server is stopped meanwhile. Gives what is wrong with one of them."""
        guard.waiting_for = tuple(backends)
        with self._warming:
            try:
                for name in backends:
                    await self._table.start([name])
                    guard.waiting_for = guard.waiting_for[1:]
            except AgentFlowError as error:
                return error
        return None

    async def _run(
        self, manager: StreamableHTTPSessionManager, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED
    ) -> None:
        async with manager.run():
            task_status.started()
            await self._closing.wait()

    def _manager(self, door: McpDoor) -> StreamableHTTPSessionManager:
        server = door.server()
        self._extend(server)
        return StreamableHTTPSessionManager(server, max_request_body_size=self._options.body_bytes)

    def _doors(self) -> dict[str, McpDoor]:
        turns = Turns(self._options.calls_at_once, self._options.calls_waiting)

        def door(backend: str | None) -> McpDoor:
            return McpDoor(
                self._table,
                principal=_principal,
                backend=backend,
                turns=turns,
                scopes=self._scopes,
                metrics=self._metrics,
            )

        alone = {f"/{name}/mcp": door(name) for name in self._table.backends if name != SESSIONS}
        return {"/mcp": door(None), **alone}

    def _guard(self, endpoints: Mapping[str, ASGIApp]) -> Guard:
        options = self._options
        rate = options.requests_per_minute
        return Guard(
            endpoints,
            origins=Origins(options.host, self.port, options.allowed_origins, options.allowed_hosts),
            tokens=None if options.tokens is None else Tokens(options.tokens),
            rate=None if rate is None else RateLimit(rate),
            scopes=self._scopes,
            metrics=self._count,
            refused=self._metrics.refused,
        )

    def _count(self) -> str:
        memory, descriptors = own_usage()
        return self._metrics.render(
            {
                "agentflow_sessions": ("Sessions alive.", len(self._table.sessions)),
                "process_resident_memory_bytes": ("Memory of the server's own process.", memory),
                "process_open_fds": ("Open descriptors of the server's own process.", descriptors),
            }
        )

    def _with_cors(self, app: ASGIApp) -> ASGIApp:
        """Browsers ask first and want to be told; for no other client this does anything."""
        if not self._options.allowed_origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=self._options.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("Mcp-Session-Id",),
        )

    async def _expire(self) -> None:
        while True:
            await anyio.sleep(EXPIRY_SECONDS)
            await self._table.sessions.expire()


class _Server(uvicorn.Server):
    """Leaves signals to the program, and says when it is done."""

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


def _principal(context: RequestContext) -> str:
    assert context.request is not None, "every request over HTTP comes with itself"
    principal: str = context.request.scope[PRINCIPAL]
    return principal
