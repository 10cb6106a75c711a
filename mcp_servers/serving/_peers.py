"""The tool table of one server among several: calls that a router sent here are passed on to the server of their session.

A client of the handshake era sends everything to the server of its connection, and one that lists no tools names no session
in a header. Each server is an ordinary client of its peers, with the token of the caller.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from agentflow._decoding import DECODE_ERRORS
from agentflow._http_client import MAX_ANSWER_BYTES
from agentflow.actors import Hosted
from agentflow.errors import ErrorKind, ToolFailure, unwrap_group
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import TIMEOUT_KEY, ProgressSink, ResourceLink, ToolResult
from mcp_servers.core._session_tools import SessionList, SessionSummary
from mcp_servers.core._sessions import Resource, Session
from mcp_servers.core._table import LOCAL, ToolTable
from mcp_servers.core._tool import SESSION_ARGUMENT
from mcp_servers.serving._client import (
    ErrorResponseTransport,
    failure_of,
    list_tools,
    progress_relay,
    tool_result,
)
from mcp_servers.serving._content import kept_resource
from mcp_servers.serving._endpoints import SESSIONS_PATH, SessionsReport
from mcp_servers.serving._proxy import gone
from mcp_servers.serving._server_names import PeerAddress, server_of

if TYPE_CHECKING:
    from mcp_servers.core._sessions import DefaultSession

LISTING = ("session_list", "session:list")
"""The only tool that spans the sessions of all servers."""

CONNECT_SECONDS = 60.0
"""Seconds for connecting and for the list of tools."""

LIST_SECONDS = 5.0
"""Time for a peer to list the sessions of a client; one that takes longer is left out."""


class Peer:
    """Another server, as one of its clients."""

    def __init__(self, address: PeerAddress, token: str | None) -> None:
        self._address = address
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._lock = anyio.Lock()
        self._hosted = Hosted(self._connect)
        self._client: Client | None = None

    async def close(self) -> None:
        """Disconnect."""
        await self._hosted.close()

    async def call(
        self, name: str, arguments: Mapping[str, object], timeout: float | None, progress: ProgressSink | None
    ) -> ToolResult:
        """Call a tool there, once.

        :raises ToolFailure: if the server refuses the call, or can't be reached (`unavailable`).
        """
        try:
            client = await self._connected()
            result = await client.call_tool(
                name,
                dict(arguments),
                progress_callback=None if progress is None else progress_relay(progress),
                meta=None if timeout is None else {TIMEOUT_KEY: timeout},
            )
        except MCPError as error:
            raise failure_of(error, name) from None
        return tool_result(result)

    async def read(self, uri: str) -> Resource | None:
        """Return a resource of one of its sessions.

        :raises ToolFailure: if the server can't be reached.
        """
        client = await self._connected()
        try:
            reply = await client.read_resource(uri, cache_mode="bypass")
        except MCPError:
            return None
        return kept_resource(uri, reply.contents[0])

    async def sessions(self) -> SessionsReport:
        """Return what it reports about the sessions of the client."""
        async with self._http() as http:
            response = await http.get(self._address.url + SESSIONS_PATH)
            return msgspec.json.decode(response.raise_for_status().content, type=SessionsReport)

    def _http(self) -> httpx2.AsyncClient:
        transport = ErrorResponseTransport(self._address.socket)
        return httpx2.AsyncClient(
            transport=transport, headers=self._headers, timeout=httpx2.Timeout(None, connect=10.0)
        )

    async def _connected(self) -> Client:
        """Return the connection; a new one after it broke.

        :raises ToolFailure: if the server can't be reached.
        """
        async with self._lock:
            if self._client is None or not self._hosted.alive:
                self._hosted = Hosted(self._connect)
                try:
                    with anyio.fail_after(CONNECT_SECONDS):
                        self._client = await self._hosted.open()
                except Exception as error:  # boundary: connecting fails in as many ways as there are networks
                    error = unwrap_group(error)
                    message = " ".join((str(error) or type(error).__name__).split())
                    raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None
            return self._client

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Client]:
        url = f"{self._address.url}/mcp?structured=true"
        async with (
            self._http() as http,
            Client(
                streamable_http_client(url, http_client=http, max_sse_event_size=MAX_ANSWER_BYTES),
                client_info=types.Implementation(name="agentflow", version="1"),
            ) as client,
        ):
            await list_tools(client)
            yield client


class JoinedTable(ToolTable):
    """Tool table over the sessions of several servers: own sessions are served here, others by their server."""

    def __init__(
        self,
        name: str,
        addresses: Mapping[str, PeerAddress],
        tokens: Mapping[str, str],
        backends: Iterable[Backend],
        **options: Any,  # noqa: ANN401 -- those of `ToolTable`
    ) -> None:
        """Join other servers.

        :param name: name of this server.
        :param addresses: address of each other server by name; that of a server with workers reaches all of them.
        :param tokens: token of each principal.
        :param options: see `ToolTable`.
        """
        super().__init__(backends, **options)
        self._name = name
        self._addresses = addresses
        self._tokens = tokens
        self._peers: dict[tuple[str, str], Peer] = {}

    async def close(self) -> None:
        """Disconnect from the others, and end every session."""
        for peer in self._peers.values():
            await peer.close()
        await super().close()

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        principal: str = LOCAL,
        session: "str | Session | DefaultSession | None" = None,
        timeout: float | None = None,
        progress: ProgressSink | None = None,
    ) -> ToolResult:
        """Call a tool in the server that owns its session."""
        arguments = arguments or {}
        handle = arguments.get(SESSION_ARGUMENT)
        server = server_of(handle)
        if server is not None and server != self._name:
            return await self._call_there(server, name, arguments, principal, timeout, progress)
        result = await super().call(
            name, arguments, principal=principal, session=session, timeout=timeout, progress=progress
        )
        if result.ok and name in LISTING:
            return await self._with_others(principal, result)
        return result

    async def kept(self, principal: str) -> list[ResourceLink]:
        """Return links to the resources of the principal's sessions in all servers."""
        links = await super().kept(principal)
        return [*links, *(link for report in await self._reports(principal) for link in report.resources)]

    async def read(self, uri: str, principal: str) -> Resource | None:
        """Return a resource of one of the principal's sessions in any server."""
        server = server_of(uri.removeprefix("agentflow://").partition("/")[0])
        peer = None if server in (None, self._name) else self._peer(server, principal)
        if peer is None:
            return await super().read(uri, principal)
        try:
            return await peer.read(uri)
        except ToolFailure:
            return None

    def _peer(self, server: str | None, principal: str) -> Peer | None:
        """Return the server of that name, or the one whose worker it is."""
        if server is None:
            return None
        peer_name = server if server in self._addresses else server.partition("-")[0]
        if peer_name not in self._addresses or peer_name == self._name:
            return None
        key = peer_name, principal
        if key not in self._peers:
            self._peers[key] = Peer(self._addresses[peer_name], self._tokens.get(principal))
        return self._peers[key]

    async def _call_there(
        self,
        server: str,
        name: str,
        arguments: Mapping[str, object],
        principal: str,
        timeout: float | None,
        progress: ProgressSink | None,
    ) -> ToolResult:
        peer = self._peer(server, principal)
        try:
            if peer is not None:
                return await peer.call(self.tool(name).name, arguments, timeout, progress)
        except ToolFailure as failure:
            if failure.kind != ErrorKind.UNAVAILABLE:
                return ToolResult.failed(failure)
        session = str(arguments[SESSION_ARGUMENT])
        return ToolResult.failed(ToolFailure(ErrorKind.SESSION_NOT_FOUND, gone(session)))

    async def _with_others(self, principal: str, listing: ToolResult) -> ToolResult:
        """Merge the session lists of all servers, oldest first."""
        sessions = SessionList.model_validate(listing.data).sessions
        for report in await self._reports(principal):
            sessions += map(SessionSummary.model_validate, report.sessions)
        sessions.sort(key=lambda session: session.age_seconds, reverse=True)
        return ToolResult(True, SessionList(sessions=sessions).model_dump(mode="json"))

    async def _reports(self, principal: str) -> list[SessionsReport]:
        """Return the reports of the other servers; one that is gone or too slow is left out."""
        reports: list[SessionsReport] = []

        async def ask(peer: Peer) -> None:
            with anyio.move_on_after(LIST_SECONDS):
                try:
                    reports.append(await peer.sessions())
                except (httpx2.HTTPError, *DECODE_ERRORS):
                    return

        async with anyio.create_task_group() as group:
            for server in self._addresses:
                if (peer := self._peer(server, principal)) is not None:
                    group.start_soon(ask, peer)
        return reports
