"""One external server under supervision."""

import logging
from collections.abc import Callable, Mapping

import anyio
import mcp_types as types
from mcp import ClientSession
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agentflow.actors import Backoff, ChildSpec, Context, Hosted, StartFailed, Supervisor
from agentflow.errors import AgentFlowError, ErrorKind, ToolFailure, unwrap_group
from mcp_servers.core._call import CallContext
from mcp_servers.external._connections import Connector, ServerConnection
from mcp_servers.external._content import one_line
from mcp_servers.external._message_limits import too_many_tools
from mcp_servers.external._settings import MountSettings

logger = logging.getLogger(__name__)

BACKOFF = Backoff(initial=0.1, maximum=10.0)
RESTARTS = 1_000_000
"""It is restarted for as long as it is mounted; only the pauses grow."""

SHUTDOWN_SECONDS = 8.0
SETTLE_SECONDS = 3.0
"""Time to find out why a connection broke."""

_KINDS = {
    types.CONNECTION_CLOSED: ErrorKind.UNAVAILABLE,
    types.METHOD_NOT_FOUND: ErrorKind.UNAVAILABLE,
    types.INVALID_PARAMS: ErrorKind.BAD_ARGUMENTS,
    types.REQUEST_TIMEOUT: ErrorKind.TIMEOUT,
}
"""Failure kind of a protocol error."""

SESSION_TERMINATED = "Session terminated"
"""The SDK's message when a URL no longer knows the connection because its server was restarted."""


class ConnectionEnded(AgentFlowError):
    """A connection to an external server has ended."""


class ToolListTooLong(AgentFlowError):
    """An external server lists more tools than its settings allow."""


class ExternalClient(ClientSession):
    """The SDK's client session, without its result validation."""

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """Skip validation: the SDK would trust the schema not to take forever. See `_checking`."""


class _Connection:
    """One connection, from start to end."""

    def __init__(self, line: ServerConnection) -> None:
        self.line = line
        info = types.Implementation(name="agentflow", version="1")
        self.client = ExternalClient(*line.streams, message_handler=self._record_output, client_info=info)
        self.changed = anyio.Event()
        self.down = anyio.Event()

    async def _record_output(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changed.set()


class MountedServer:
    """One external server: its tools as of mounting, and calls to them.

    It is restarted whenever it ends, with growing pauses while it fails. Running calls then fail; later calls wait for the
    restart, unless the last start has failed.
    """

    def __init__(
        self,
        name: str,
        settings: MountSettings,
        lines: Connector,
        *,
        tools: Mapping[str, types.Tool] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """:param tools: its tools, if known from another instance of the server.
        :param on_change: is called when `tools` change.
        """
        self.name = name
        """Name of the mount."""
        self.settings = settings
        """Settings of the mount."""
        self.tools: dict[str, types.Tool] | None = None if tools is None else dict(tools)
        """Tools by their own names, as of mounting; `None` before the first start."""
        self._lines = lines
        self._on_change = on_change
        self._refused: dict[str, str] = {}
        self._connection: _Connection | None = None
        self._up = anyio.Event()
        self._trouble = ""
        self._failing = False
        self._hosted = Hosted(self._supervisor)

    async def open(self) -> None:
        """Start the server.

        :raises ToolFailure: `unavailable`, with the reason in one line.
        """
        try:
            await self._hosted.open()
        except StartFailed as error:
            raise ToolFailure(
                ErrorKind.UNAVAILABLE,
                f"mcp server {self.name!r} cannot be started: {self._trouble or error.why}",
            ) from None

    async def close(self) -> None:
        """Stop the server. Does nothing if it has ended."""
        await self._hosted.close()

    def _supervisor(self) -> Supervisor:
        child = ChildSpec(
            id=self.name,
            start=lambda: self,
            shutdown=SHUTDOWN_SECONDS,
            start_timeout=self.settings.start_seconds,
        )
        return Supervisor([child], intensity=RESTARTS, period=60.0, backoff=BACKOFF, name=f"mcp:{self.name}")

    async def run(self, context: Context) -> None:
        """Run as a child of a supervisor: connect, serve calls, end when the server does."""
        ready, self._trouble = False, ""
        try:
            async with self._lines() as line:
                connection = _Connection(line)
                try:
                    await self._live(connection, context)
                except Exception as error:
                    # Recorded while the connection can still explain it; the error then propagates.
                    self._trouble = self._trouble or await _reason_of(connection, error)
                    raise
                finally:
                    ready = context.is_ready
                    self._down(connection)
        except Exception as error:
            # Recorded for the callers; the supervisor gets the error itself.
            self._trouble = self._trouble or _explained(unwrap_group(error))
            logger.warning("mcp server %s: %s", self.name, self._trouble)
            logger.debug("mcp server %s", self.name, exc_info=True)
            raise
        finally:
            self._failing = not ready

    async def _live(self, connection: _Connection, context: Context) -> None:
        async with connection.client as client:
            await negotiate(client)
            self._update_tools(await list_all_tools(client, self.settings))
            self._connection = connection
            self._failing = False
            self._up.set()
            context.ready()
            async with anyio.create_task_group() as group:
                group.start_soon(self._follow, connection)
                if announces_changes(client):
                    group.start_soon(_subscribe, connection)
                self._trouble = await connection.line.ended()
                # Fail the waiting calls first.
                self._down(connection)
                group.cancel_scope.cancel()
        raise ConnectionEnded(self._trouble)

    def _down(self, connection: _Connection) -> None:
        connection.down.set()
        self._connection = None
        if self._up.is_set():
            self._up = anyio.Event()

    async def _follow(self, connection: _Connection) -> None:
        """List the tools again whenever the server announces a change."""
        while True:
            await connection.changed.wait()
            connection.changed = anyio.Event()
            try:
                self._update_tools(await list_all_tools(connection.client, self.settings))
            except (MCPError, ValidationError, ToolListTooLong) as error:
                logger.warning(
                    "mcp server %s: its tools cannot be listed: %s", self.name, one_line(str(error))
                )

    def _update_tools(self, listed: list[types.Tool]) -> None:
        """Take the tools the first time; later compare them."""
        now = {tool.name: tool for tool in listed}
        mounted = self.tools
        if mounted is None or (self.settings.changes == "accept" and mounted != now):
            self.tools = now
            if self._on_change is not None:
                self._on_change()
            return
        self._refused = {}
        for name, tool in mounted.items():
            if name not in now:
                self._refused[name] = "its server no longer offers it"
            elif self.settings.changes == "refuse" and now[name] != tool:
                self._refused[name] = "its server has changed it since it was mounted"
        if more := len(now.keys() - mounted.keys()):
            logger.warning("mcp server %s: %d tools added later are ignored", self.name, more)

    async def call(
        self, tool: str, arguments: Mapping[str, object], context: CallContext
    ) -> types.CallToolResult:
        """Call a tool once.

        :raises ToolFailure: without an answer, after the time limit, or if the tool has changed.
        """
        where = f"mcp:{self.name}.{one_line(tool, 64)}"
        with anyio.move_on_after(context.seconds_left(self.settings.timeout)):
            connection = await self._connected(where)
            if reason := self._refused.get(tool):
                message = (
                    f"{where}: {reason}. Restart our server to accept the change, or set changes: accept."
                )
                raise ToolFailure(ErrorKind.DENIED, message)
            return await self._ask(connection, tool, arguments, context, where)
        raise ToolFailure(
            ErrorKind.TIMEOUT, f"{where}: the call timed out; the server was told to cancel it."
        )

    async def _ask(
        self,
        connection: _Connection,
        tool: str,
        arguments: Mapping[str, object],
        context: CallContext,
        where: str,
    ) -> types.CallToolResult:
        highest = -1.0

        async def report(progress: float, total: float | None, message: str | None) -> None:
            nonlocal highest
            if progress > highest:
                highest = progress
                context.progress(progress, total, None if message is None else one_line(message))

        listener = report if context.wants_progress else None
        try:
            return await connection.client.call_tool(tool, dict(arguments), progress_callback=listener)
        except MCPError as error:
            raise await self._failure(connection, error, where) from None
        except (RuntimeError, ValidationError) as error:
            message = f"{where}: the server's answer is invalid: {one_line(str(error))}"
            raise ToolFailure(ErrorKind.FAILED, message) from None

    async def _failure(self, connection: _Connection, error: MCPError, where: str) -> ToolFailure:
        if error.code == types.INVALID_REQUEST and error.message == SESSION_TERMINATED:
            connection.line.cut("it no longer knows this connection")
        elif error.code != types.CONNECTION_CLOSED:
            kind = _KINDS.get(error.code, ErrorKind.FAILED)
            return ToolFailure(kind, f"{where}: {one_line(error.message)}")
        with anyio.move_on_after(SETTLE_SECONDS):
            await connection.down.wait()
        reason = (self._trouble or "the connection was lost").rstrip(".")
        message = f"{where}: the server ended during the call: {reason}. It is restarted; the call may already have had an effect."
        return ToolFailure(ErrorKind.UNAVAILABLE, message)

    async def _connected(self, where: str) -> _Connection:
        """Return the connection; wait for it while the server restarts."""
        if self._connection is None and not self._failing and self._hosted.alive:
            with anyio.move_on_after(self.settings.start_seconds):
                await self._up.wait()
        if self._connection is None:
            reason = self._trouble or "it has ended"
            raise ToolFailure(ErrorKind.UNAVAILABLE, f"{where}: the server cannot be reached: {reason}")
        return self._connection


async def _subscribe(connection: _Connection) -> None:
    """Subscribe to tool changes, which servers of the stateless era announce only to subscribers."""
    try:
        async with listen(connection.client, tools_list_changed=True) as events:
            async for _ in events:
                connection.changed.set()
    except (MCPError, SubscriptionLost):
        logger.debug("a server announces no more changes", exc_info=True)


async def _reason_of(connection: _Connection, error: Exception) -> str:
    """Return the reason of a failed connection in one line."""
    cause = unwrap_group(error)
    if isinstance(cause, MCPError) and cause.code == types.CONNECTION_CLOSED:
        with anyio.move_on_after(SETTLE_SECONDS):
            return await connection.line.ended()
    return _explained(cause)


def _explained(error: Exception) -> str:
    text = one_line(str(error))
    plain = isinstance(error, AgentFlowError | MCPError)
    return text if plain and text else f"{type(error).__name__}: {text}".rstrip(": ")


async def negotiate(client: ClientSession) -> None:
    """Negotiate the protocol era and greet the server."""
    try:
        await client.discover()
    except (MCPError, ValidationError, RuntimeError) as error:
        if isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED:
            raise
        await client.initialize()


def announces_changes(client: ClientSession) -> bool:
    """Return true if the server announces tool changes to subscribers only."""
    capabilities = client.server_capabilities
    tools = None if capabilities is None else capabilities.tools
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and bool(tools and tools.list_changed)


async def list_all_tools(client: ClientSession, settings: MountSettings) -> list[types.Tool]:
    """List all tools of a server.

    :raises ToolListTooLong: if they exceed a limit of the settings.
    """
    capabilities = client.server_capabilities
    if capabilities is not None and capabilities.tools is None:
        return []
    tools: list[types.Tool] = []
    size, cursor = 0, None
    while True:
        page = await client.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools.extend(page.tools)
        size += len(page.model_dump_json(by_alias=True))
        if len(tools) > settings.max_tools:
            raise ToolListTooLong(too_many_tools(settings.max_tools))
        if size > settings.tools_bytes:
            raise ToolListTooLong(
                f"its list of tools has more than {settings.tools_bytes:,} bytes (`tools_bytes`)"
            )
        cursor = page.next_cursor
        if not cursor or not page.tools:
            return tools
