"""One external server, kept running under supervision."""

import logging
from collections.abc import Callable, Mapping
from typing import cast

import anyio
import mcp_types as types
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from agentflow.actors import Backoff, ChildSpec, Context, Hosted, StartFailed, Supervisor
from agentflow.errors import AgentFlowError, ErrorKind, ToolFailure
from mcp_servers.core._call import CallContext
from mcp_servers.external._asking import Asking, agree, announces_changes, every_tool
from mcp_servers.external._line import Line, Lines
from mcp_servers.external._settings import MountSettings
from mcp_servers.external._words import one_line

__all__ = ["Mount"]

logger = logging.getLogger(__name__)

BACKOFF = Backoff(initial=0.1, maximum=10.0)
RESTARTS = 1_000_000
"""It is restarted for as long as it is mounted: the pauses alone are what grows."""

SHUTDOWN_SECONDS = 8.0
SETTLE_SECONDS = 3.0
"""Time to find out why a connection broke."""

_KINDS = {
    types.CONNECTION_CLOSED: ErrorKind.UNAVAILABLE,
    types.METHOD_NOT_FOUND: ErrorKind.UNAVAILABLE,
    types.INVALID_PARAMS: ErrorKind.BAD_ARGUMENTS,
    types.REQUEST_TIMEOUT: ErrorKind.TIMEOUT,
}
"""What an error of the protocol means for the caller."""

SESSION_TERMINATED = "Session terminated"
"""What the SDK says when an address no longer knows the connection, because what answers there was restarted."""


class Broken(AgentFlowError):
    """A connection to an external server has ended."""


class _Connection:
    """One connection, from its beginning to its end."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.asking = Asking(line.streams, self._hear)
        self.changed = anyio.Event()
        self.down = anyio.Event()

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changed.set()


class Mount:
    """One external server: its tools as they were when it was mounted, and the way to call them.

    It is restarted whenever it ends, after pauses that grow while it fails. Calls in flight fail then; later ones wait
    for it, unless its last start has failed.
    """

    def __init__(
        self,
        name: str,
        settings: MountSettings,
        lines: Lines,
        *,
        tools: Mapping[str, types.Tool] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Describe it.

        :param tools: its tools, if they are known from another server like it.
        :param on_change: is called when `tools` are others.
        """
        self.name = name
        """What it is called here."""
        self.settings = settings
        """How it is mounted."""
        self.tools: dict[str, types.Tool] | None = None if tools is None else dict(tools)
        """Its tools by their own names, as they were when it was mounted; `None` before its first start."""
        self._lines = lines
        self._on_change = on_change
        self._refused: dict[str, str] = {}
        self._connection: _Connection | None = None
        self._up = anyio.Event()
        self._trouble = ""
        self._failing = False
        self._hosted = Hosted(self._supervisor)

    async def open(self) -> None:
        """Start it.

        :raises ToolFailure: `unavailable`, saying in one line why it can't be started.
        """
        try:
            await self._hosted.open()
        except StartFailed as error:
            raise ToolFailure(
                ErrorKind.UNAVAILABLE,
                f"mcp server {self.name!r} can't be started: {self._trouble or error.why}",
            ) from None

    async def close(self) -> None:
        """End it. Fine if it has ended."""
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
        """Live, as a supervisor's child: connect, be there for calls, end when the server does."""
        ready, self._trouble = False, ""
        try:
            async with self._lines() as line:
                connection = _Connection(line)
                try:
                    await self._live(connection, context)
                except Exception as error:
                    # Noted while the line still tells; then it goes on its way.
                    self._trouble = self._trouble or await _reason_of(connection, error)
                    raise
                finally:
                    ready = context.is_ready
                    self._down(connection)
        except Exception as error:
            # Noted, then given to the supervisor: whatever a connection dies of, callers are told.
            self._trouble = self._trouble or _explained(_innermost(error))
            logger.warning("mcp server %s: %s", self.name, self._trouble)
            logger.debug("mcp server %s", self.name, exc_info=True)
            raise
        finally:
            self._failing = not ready

    async def _live(self, connection: _Connection, context: Context) -> None:
        async with connection.asking as asking:
            await agree(asking)
            self._take(await every_tool(asking))
            self._connection = connection
            self._failing = False
            self._up.set()
            context.ready()
            async with anyio.create_task_group() as group:
                group.start_soon(self._follow, connection)
                if announces_changes(asking):
                    group.start_soon(_subscribe, connection)
                self._trouble = await connection.line.ended()
                # Those who wait for an answer are told first.
                self._down(connection)
                group.cancel_scope.cancel()
        raise Broken(self._trouble)

    def _down(self, connection: _Connection) -> None:
        connection.down.set()
        self._connection = None
        if self._up.is_set():
            self._up = anyio.Event()

    async def _follow(self, connection: _Connection) -> None:
        """Look at the tools again whenever the server says that they changed."""
        while True:
            await connection.changed.wait()
            connection.changed = anyio.Event()
            try:
                self._take(await every_tool(connection.asking))
            except (MCPError, ValidationError) as error:
                logger.warning(
                    "mcp server %s: its tools can't be listed: %s", self.name, one_line(str(error))
                )

    def _take(self, listed: list[types.Tool]) -> None:
        """Take its tools over the first time; later on compare."""
        now = {tool.name: tool for tool in listed}
        known = self.tools
        if known is None or (self.settings.changes == "accept" and known != now):
            self.tools = now
            if self._on_change is not None:
                self._on_change()
            return
        self._refused = {}
        for name, tool in known.items():
            if name not in now:
                self._refused[name] = "its server doesn't offer it any more"
            elif self.settings.changes == "refuse" and now[name] != tool:
                self._refused[name] = "its server has changed it since it was mounted"
        if more := len(now.keys() - known.keys()):
            logger.warning("mcp server %s: %d tools that came later are left out", self.name, more)

    async def call(
        self, tool: str, arguments: Mapping[str, object], context: CallContext
    ) -> types.CallToolResult:
        """Call one of its tools, once.

        :raises ToolFailure: if there is no answer, in time or at all, or the tool is not what it was.
        """
        where = f"mcp:{self.name}.{one_line(tool, 64)}"
        with anyio.move_on_after(context.seconds_left(self.settings.timeout)):
            connection = await self._connected(where)
            if reason := self._refused.get(tool):
                message = f"{where}: {reason}. Restart us to take it as it is now, or set changes: accept."
                raise ToolFailure(ErrorKind.DENIED, message)
            return await self._ask(connection, tool, arguments, context, where)
        raise ToolFailure(ErrorKind.TIMEOUT, f"{where}: the call's time was up; the server was told to stop.")

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
            return await connection.asking.call_tool(tool, dict(arguments), progress_callback=listener)
        except MCPError as error:
            raise await self._failure(connection, error, where) from None
        except (RuntimeError, ValidationError) as error:
            message = f"{where}: the server's answer can't be used: {one_line(str(error))}"
            raise ToolFailure(ErrorKind.FAILED, message) from None

    async def _failure(self, connection: _Connection, error: MCPError, where: str) -> ToolFailure:
        if error.code == types.INVALID_REQUEST and error.message == SESSION_TERMINATED:
            connection.line.cut("it no longer knows the connection")
        elif error.code != types.CONNECTION_CLOSED:
            kind = _KINDS.get(error.code, ErrorKind.FAILED)
            return ToolFailure(kind, f"{where}: {one_line(error.message)}")
        with anyio.move_on_after(SETTLE_SECONDS):
            await connection.down.wait()
        reason = (self._trouble or "the connection was lost").rstrip(".")
        message = f"{where}: the server ended during the call: {reason}. It is started again; what it did may be done."
        return ToolFailure(ErrorKind.UNAVAILABLE, message)

    async def _connected(self, where: str) -> _Connection:
        """The connection; wait for it while the server is being restarted."""
        if self._connection is None and not self._failing and self._hosted.alive:
            with anyio.move_on_after(self.settings.start_seconds):
                await self._up.wait()
        if self._connection is None:
            reason = self._trouble or "it has ended"
            raise ToolFailure(ErrorKind.UNAVAILABLE, f"{where}: the server can't be reached: {reason}")
        return self._connection


async def _subscribe(connection: _Connection) -> None:
    """Servers of the stateless era announce changes only to those who listen."""
    try:
        async with listen(connection.asking, tools_list_changed=True) as events:
            async for _ in events:
                connection.changed.set()
    except (MCPError, SubscriptionLost):
        logger.debug("a server announces no more changes", exc_info=True)


async def _reason_of(connection: _Connection, error: Exception) -> str:
    """One line on why a connection failed."""
    cause = _innermost(error)
    if isinstance(cause, MCPError) and cause.code == types.CONNECTION_CLOSED:
        with anyio.move_on_after(SETTLE_SECONDS):
            return await connection.line.ended()
    return _explained(cause)


def _explained(error: Exception) -> str:
    text = one_line(str(error))
    known = isinstance(error, AgentFlowError | MCPError)
    return text if known and text else f"{type(error).__name__}: {text}".rstrip(": ")


def _innermost(error: Exception) -> Exception:
    """The error, out of the groups that it came in."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error
