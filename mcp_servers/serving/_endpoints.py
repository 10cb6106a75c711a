"""The doors of one table over HTTP: all backends at `/mcp`, each alone at `/<backend>/mcp`."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import ASGIApp, Scope

from mcp_servers.core._session_tools import SESSIONS
from mcp_servers.core._table import ToolTable
from mcp_servers.serving._access import HttpOptions, Scopes
from mcp_servers.serving._fair_limiter import FairLimiter
from mcp_servers.serving._metrics import Metrics, own_usage
from mcp_servers.serving._protocol import McpAdapter, RequestContext

__all__ = ["Endpoints", "admit"]

PRINCIPAL = "agentflow.principal"
"""The key of a request's scope under which its principal stands."""

EXPIRY_SECONDS = 5.0
"""How often idle sessions are looked for."""


class Endpoints:
    """A table as an HTTP server's inside: it answers requests that may come in."""

    def __init__(
        self, table: ToolTable, options: HttpOptions, extend: Callable[[Server[Any]], object] = lambda _: None
    ) -> None:
        """Make the doors.

        :param extend: gives each endpoint's server what the tool table has not.
        """
        self._table = table
        self._options = options
        self._extend = extend
        self._closing = anyio.Event()
        self._metrics = Metrics()
        self._managers = {path: self._manager(door) for path, door in self._doors().items()}
        self.by_path: Mapping[str, ASGIApp] = {
            path: manager.handle_request for path, manager in self._managers.items()
        }
        """What answers at each path; requests must have been admitted (`admit`)."""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Be ready to answer until `close`."""
        async with anyio.create_task_group() as group:
            for manager in self._managers.values():
                await group.start(self._run, manager)
            async with anyio.create_task_group() as ticking:
                ticking.start_soon(self._expire)
                task_status.started()
                await self._closing.wait()
                ticking.cancel_scope.cancel()

    async def warm(self, backends: Sequence[str], waiting: Callable[[Sequence[str]], object]) -> None:
        """Get those backends ready, one after the other, while calls to others are answered already.

        :param waiting: is told which are still waited for.
        :raises AgentFlowError: if one of them can't be got ready.
        """
        waiting(backends)
        for done, name in enumerate(backends, 1):
            await self._table.start([name])
            waiting(backends[done:])

    async def end_sessions(self) -> None:
        """End every session."""
        await self._table.sessions.close()

    def close(self) -> None:
        """End every stream, also those that only listen."""
        self._closing.set()

    def refused(self, status: int) -> None:
        """Count a request that was not let in."""
        self._metrics.refused(status)

    async def counted(self) -> str:
        """What it has counted of itself."""
        memory, descriptors = own_usage()
        return self._metrics.render(
            {
                "agentflow_sessions": ("Sessions alive.", len(self._table.sessions)),
                "process_resident_memory_bytes": ("Memory of the server's own process.", memory),
                "process_open_fds": ("Open descriptors of the server's own process.", descriptors),
            }
        )

    async def _run(
        self, manager: StreamableHTTPSessionManager, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED
    ) -> None:
        async with manager.run():
            task_status.started()
            await self._closing.wait()

    def _manager(self, door: McpAdapter) -> StreamableHTTPSessionManager:
        server = door.server()
        self._extend(server)
        return StreamableHTTPSessionManager(server, max_request_body_size=self._options.body_bytes)

    def _doors(self) -> dict[str, McpAdapter]:
        # Each backend has turns of its own: one that is blocked must not hold up the others.
        turns = {
            name: FairLimiter(self._options.calls_at_once, self._options.calls_waiting)
            for name in self._table.backends
        }
        scopes = Scopes(self._options.scopes)

        def door(backend: str | None) -> McpAdapter:
            return McpAdapter(
                self._table,
                principal=_principal,
                backend=backend,
                turns=turns.__getitem__,
                scopes=scopes,
                metrics=self._metrics,
            )

        alone = {f"/{name}/mcp": door(name) for name in self._table.backends if name != SESSIONS}
        return {"/mcp": door(None), **alone}

    async def _expire(self) -> None:
        while True:
            await anyio.sleep(EXPIRY_SECONDS)
            await self._table.sessions.expire()


def admit(scope: Scope, principal: str) -> None:
    """Say in a request's scope who sends it."""
    scope[PRINCIPAL] = principal
    # The SDK ties a connection of the handshake era to this user: nobody else can go on with it.
    scope["user"] = _user(principal)


@cache
def _user(principal: str) -> AuthenticatedUser:
    return AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))


def _principal(context: RequestContext) -> str:
    assert context.request is not None, "every request over HTTP comes with itself"
    principal: str = context.request.scope[PRINCIPAL]
    return principal
