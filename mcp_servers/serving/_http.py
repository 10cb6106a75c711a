"""MCP over streamable HTTP: a guarded port, and behind it a tool table, or several workers with one each."""

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
from mcp_servers.serving._access import HttpOptions, Origins, RateLimit, Scopes, Tokens
from mcp_servers.serving._endpoints import Endpoints
from mcp_servers.serving._guard import Guard

__all__ = ["HttpServer", "Inside", "Port"]

CLOSE_SECONDS = 5.0
"""Time for the web server to close its connections, when nothing is left to answer."""


class Inside(Protocol):
    """What answers behind a port."""

    by_path: Mapping[str, ASGIApp]
    """What answers at each path."""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Be ready to answer until `close`."""
        ...

    async def warm(self, backends: Sequence[str], waiting: Callable[[Sequence[str]], object]) -> None:
        """Get backends ready, while calls to others are answered already; tell which are still waited for."""
        ...

    async def end_sessions(self) -> None:
        """End every session."""
        ...

    def close(self) -> None:
        """End every stream, also those that only listen."""
        ...

    def refused(self, status: int) -> None:
        """Count a request that was not let in."""
        ...

    async def counted(self) -> str:
        """What it has counted of itself."""
        ...


class Port:
    """Lets in who may come, to whatever is inside."""

    def __init__(self, inside: Inside, options: HttpOptions, listener: socket.socket | None = None) -> None:
        """Get ready to serve.

        :param listener: a socket that listens already; by default one is made as the options say.
        :raises ConfigurationError: if the options would let strangers in, or the address can't be had.
        """
        options.check()
        self._inside = inside
        self._options = options
        self._socket = listener or self.listen(options.host, options.port)
        self._stop = anyio.Event()
        self._warming = anyio.CancelScope()
        self._failure: AgentFlowError | None = None
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
        :raises AgentFlowError: if one of them can't be got ready, or what is inside fails.
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
            await self._inside.end_sessions()
            # The web server waits for every stream, also for those that only listen; this ends them.
            self._inside.close()
            server.should_exit = True
            with anyio.move_on_after(CLOSE_SECONDS):
                await server.finished.wait()
            group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            await self._inside.run(task_status=task_status)
        except AgentFlowError as error:
            self._failure = error
            self.stop()

    async def _warm(self, guard: Guard, backends: Sequence[str]) -> None:
        """Get them ready, unless the server is stopped meanwhile."""

        def waiting(names: Sequence[str]) -> None:
            guard.waiting_for = tuple(names)

        waiting(backends)
        with self._warming:
            try:
                await self._inside.warm(backends, waiting)
            except AgentFlowError as error:
                self._failure = error

    def _guard(self) -> Guard:
        options = self._options
        rate = options.requests_per_minute
        return Guard(
            self._inside.by_path,
            origins=Origins(options.host, self.port, options.allowed_origins, options.allowed_hosts),
            tokens=None if options.tokens is None else Tokens(options.tokens),
            rate=None if rate is None else RateLimit(rate),
            scopes=Scopes(options.scopes),
            metrics=self._inside.counted,
            refused=self._inside.refused,
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


class HttpServer(Port):
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
        options = options or HttpOptions()
        super().__init__(Endpoints(table, options, extend), options, listener)


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
