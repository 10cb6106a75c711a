"""HTTP endpoints of one tool table: all backends at `/mcp`, each backend at `/<backend>/mcp`."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import anyio
import msgspec
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INVALID_REQUEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentflow.telemetry import observe_queue
from mcp_servers.core._call import ResourceLink
from mcp_servers.core._session_tools import SESSIONS, session_summaries
from mcp_servers.core._table import ToolTable
from mcp_servers.serving._access import HttpOptions, Scopes
from mcp_servers.serving._client_profiles import ClientProfiles
from mcp_servers.serving._fair_limiter import FairLimiter
from mcp_servers.serving._http_framing import SESSIONS_HEADER
from mcp_servers.serving._metrics import Metrics, own_usage
from mcp_servers.serving._post_response import PostResponse
from mcp_servers.serving._protocol import AdapterOptions, McpAdapter, RequestContext
from mcp_servers.serving._server_names import CONNECTION_HEADER, split_connection


class _Envelope(msgspec.Struct):
    method: object = None
    id: str | int | None = None


_DECODER = msgspec.json.Decoder(_Envelope)


class RequestIds:
    """Refuses a request whose id another running request of its connection has.

    The SDK would send the answer of both to the later one, and the earlier one would wait forever. This happens when two
    programs share the id of a connection.
    """

    def __init__(self, connection: bytes, max_body: int) -> None:
        """:param connection: name of the header with the id of the connection.
        :param max_body: requests above this size are passed on unread, to be refused.
        """
        self._connection = connection
        self._max_body = max_body
        self._running: set[tuple[bytes, str]] = set()

    async def run(self, application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer the request, or refuse it."""
        connection = dict(scope["headers"]).get(self._connection)
        if connection is None:
            return await application(scope, receive, send)
        messages = await self._read(receive)

        async def replay() -> Message:
            return messages.pop(0) if messages else await receive()

        envelope = _decode_envelope(b"".join(message.get("body", b"") for message in messages))
        if envelope.method is None or envelope.id is None:
            return await application(scope, replay, send)
        key = (connection, str(envelope.id))
        if key in self._running:
            return await _refuse(send, envelope.id)
        self._running.add(key)
        try:
            await application(scope, replay, send)
        finally:
            self._running.discard(key)
        return None

    async def _read(self, receive: Receive) -> list[Message]:
        """Read the body, of an oversized one only the first part."""
        messages: list[Message] = []
        size = 0
        while size <= self._max_body:
            messages.append(message := await receive())
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                break
        return messages


def _decode_envelope(body: bytes) -> _Envelope:
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Envelope()  # the application reports the error


async def _refuse(send: Send, number: str | int) -> None:
    message = f"request id {number!r} is in use by a running request of this connection: open a connection for each client"
    error = {"code": INVALID_REQUEST, "message": message}
    content = json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": content})


PRINCIPAL = "agentflow.principal"
"""Key of the principal in a request's ASGI scope."""

SESSIONS_PATH = "/sessions"
"""The live sessions of a client in this server alone; needs a token."""

EXPIRY_SECONDS = 5.0
"""Interval between checks for idle sessions."""


class SessionsReport(msgspec.Struct):
    """The sessions of a client in one server."""

    sessions: list[dict[str, object]]
    """The live sessions."""
    resources: list[ResourceLink]
    """Links to their resources."""


class TableEndpoints:
    """The HTTP application of a tool table in this process."""

    def __init__(
        self, table: ToolTable, options: HttpOptions, extend: Callable[[Server[Any]], object] = lambda _: None
    ) -> None:
        """:param extend: adds handlers to each endpoint's MCP server."""
        self._table = table
        self._options = options
        self._extend = extend
        self._closing = anyio.Event()
        self._metrics = Metrics()
        self._managers = {path: self._manager(adapter) for path, adapter in self._adapters().items()}
        self.by_path: Mapping[str, ASGIApp] = {
            path: self._answering(manager.handle_request) for path, manager in self._managers.items()
        }
        """ASGI application of each path; requests must have been admitted by `admit`."""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Answer requests until `close`."""
        async with anyio.create_task_group() as group:
            for manager in self._managers.values():
                await group.start(self._run, manager)
            async with anyio.create_task_group() as ticking:
                ticking.start_soon(self._expire)
                task_status.started()
                await self._closing.wait()
                ticking.cancel_scope.cancel()

    async def warm(self, backends: Sequence[str], waiting: Callable[[Sequence[str]], object]) -> None:
        """Warm the backends up, one after the other; calls to other backends are already answered meanwhile.

        :param waiting: is called with the names of the backends that are not ready yet.
        :raises AgentFlowError: if a backend cannot be warmed up.
        """
        waiting(backends)
        for done, name in enumerate(backends, 1):
            await self._table.start([name])
            waiting(backends[done:])

    async def end_sessions(self) -> None:
        """End every session."""
        await self._table.sessions.close()

    def close(self) -> None:
        """End every stream, including those that only listen."""
        self._closing.set()

    def refused(self, status: int) -> None:
        """Count a refused request."""
        self._metrics.refused(status)

    async def metrics_text(self) -> str:
        """Return the metrics in Prometheus text format."""
        sessions = {"agentflow_sessions": ("Live sessions.", len(self._table.sessions))}
        return self._metrics.render({**sessions, **own_usage()})

    def sessions_report(self, principal: str) -> bytes:
        """Return the sessions of a principal in this server, and links to their resources, as JSON."""
        summaries = session_summaries(self._table.sessions, principal)
        sessions = [summary.model_dump(mode="json") for summary in summaries]
        return msgspec.json.encode(SessionsReport(sessions, [*self._table.sessions.links(principal)]))

    async def _run(
        self, manager: StreamableHTTPSessionManager, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED
    ) -> None:
        async with manager.run():
            task_status.started()
            await self._closing.wait()

    def _answering(self, application: ASGIApp) -> ASGIApp:
        """Answer POST requests with JSON instead of events where possible, and refuse reused request ids."""
        ids = RequestIds(CONNECTION_HEADER, self._options.body_bytes)
        name = self._options.name

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if name is not None:
                scope, send = self._routed(scope, send, name)

            async def plainly(scope: Scope, receive: Receive, send: Send) -> None:
                await PostResponse(send).run(application, scope, receive)

            if scope["method"] == "POST":
                await ids.run(plainly, scope, receive, send)
            else:
                await application(scope, receive, send)

        return answer

    def _routed(self, scope: Scope, send: Send, name: str) -> tuple[Scope, Send]:
        """Name this server in the ids of connections, and report its load with each answer."""
        headers = [
            (key, _own_id(value, name) if key == CONNECTION_HEADER else value)
            for key, value in scope["headers"]
        ]
        principal: str = scope[PRINCIPAL]

        async def send_routed(message: Message) -> None:
            if message["type"] == "http.response.start":
                full = b"; full" if self._table.sessions.full(principal) else b""
                load = (SESSIONS_HEADER, b"%d%s" % (len(self._table.sessions), full))
                named = [
                    (key, value + b"-" + name.encode() if key.lower() == CONNECTION_HEADER else value)
                    for key, value in message["headers"]
                ]
                message = {**message, "headers": [*named, load]}
            await send(message)

        return {**scope, "headers": headers}, send_routed

    def _manager(self, adapter: McpAdapter) -> StreamableHTTPSessionManager:
        server = adapter.server()
        self._extend(server)
        return StreamableHTTPSessionManager(server, max_request_body_size=self._options.body_bytes)

    def _adapters(self) -> dict[str, McpAdapter]:
        # One limiter per backend: a blocked backend must not delay the others.
        quotas = {principal: quota.calls for principal, quota in self._options.clients().items()}
        limiters = {
            name: FairLimiter(self._options.max_concurrent_calls, self._options.max_waiting_calls, quotas)
            for name in self._table.backends
        }
        for limiter in limiters.values():
            observe_queue("tool calls", limiter)
        options = AdapterOptions(
            limiters=limiters.__getitem__,
            scopes=Scopes(self._options.scopes),
            metrics=self._metrics,
            profiles=ClientProfiles(self._options.profiles),
            routed=self._options.name is not None,
        )

        def adapter(backend: str | None) -> McpAdapter:
            return McpAdapter(self._table, principal=_principal, backend=backend, options=options)

        alone = {f"/{name}/mcp": adapter(name) for name in self._table.backends if name != SESSIONS}
        return {"/mcp": adapter(None), **alone}

    async def _expire(self) -> None:
        while True:
            await anyio.sleep(EXPIRY_SECONDS)
            await self._table.sessions.expire()


def _own_id(connection: bytes, name: str) -> bytes:
    """Return the SDK's id of a connection of this server; that of another server is unknown to the SDK."""
    sdk_id, server = split_connection(connection.decode("latin-1"))
    return sdk_id.encode("latin-1") if server == name else connection


async def respond(
    send: Send,
    status: int,
    content: bytes,
    mime: bytes = b"application/json",
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Send a whole response."""
    plain = [(b"content-type", mime), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await send({"type": "http.response.body", "body": content})


def admit(scope: Scope, principal: str) -> None:
    """Record the sender of a request in its scope."""
    scope[PRINCIPAL] = principal
    # The SDK ties a handshake-era connection to this user, so that no other principal can continue it.
    scope["user"] = _user(principal)


@cache
def _user(principal: str) -> AuthenticatedUser:
    return AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))


def _principal(context: RequestContext) -> str:
    assert context.request is not None, "HTTP requests carry their ASGI scope"
    principal: str = context.request.scope[PRINCIPAL]
    return principal
