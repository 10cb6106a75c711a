"""MCP over a command's pipes, one message per line."""

import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from mcp_servers.external._content import one_line
from mcp_servers.external._pipes import Pipes
from runtimes import MIB

MAX_MESSAGE_BYTES = 32 * MIB
MAX_LINE_BYTES = 2_000
MAX_LOGGED_LINES = 500
"""Maximum number of logged lines of a server's standard error."""

logger = logging.getLogger(__name__)

Incoming: TypeAlias = SessionMessage | Exception

Streams: TypeAlias = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]
"""Streams that the SDK's client reads from and writes to."""


class PipeTransport:
    """Message exchange with a server over its pipes."""

    def __init__(self, server: str, pipes: Pipes) -> None:
        self._server = server
        self._pipes = pipes
        self._line = bytearray()
        self._said = bytearray()
        self._logged = 0
        self.last_stderr_lines: deque[str] = deque(maxlen=3)
        """Last lines of its standard error."""
        self.trouble = ""
        """Reason why its output cannot be read any more."""
        self.over = anyio.Event()
        """Set when its output has ended."""

    async def listen(self, incoming: MemoryObjectSendStream[Incoming]) -> None:
        """Forward messages until the output ends; other output is logged."""
        try:
            await self._listen(incoming)
        finally:
            self.over.set()

    async def _listen(self, incoming: MemoryObjectSendStream[Incoming]) -> None:
        async with incoming:
            async for name, data in self._pipes.receive():
                if name == "stderr":
                    self._record_output(data)
                    continue
                *lines, rest = data.split(b"\n")
                for line in lines:
                    self._line += line
                    await self._pass_on(bytes(self._line), incoming)
                    self._line.clear()
                self._line += rest
                if len(self._line) > MAX_MESSAGE_BYTES:
                    self.trouble = f"a message of more than {MAX_MESSAGE_BYTES // MIB} MiB"
                    return

    async def tell(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send outgoing messages."""
        async with outgoing:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await self._pipes.send(text.encode() + b"\n")
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                    return

    async def _pass_on(self, line: bytes, incoming: MemoryObjectSendStream[Incoming]) -> None:
        if not line.strip():
            return
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            # Some servers print to standard output; that must not end the connection.
            self._record_output(line + b"\n")
            return
        try:
            await incoming.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    def _record_output(self, data: bytes) -> None:
        self._said += data
        *lines, rest = self._said.split(b"\n")
        for line in lines:
            words = one_line(line[:MAX_LINE_BYTES].decode(errors="replace"))
            if words:
                self.last_stderr_lines.append(words)
                self._log(words)
        self._said = bytearray(rest[-MAX_LINE_BYTES:])

    def _log(self, words: str) -> None:
        self._logged += 1
        if self._logged <= MAX_LOGGED_LINES:
            logger.info("mcp server %s says: %s", self._server, words)
        elif self._logged == MAX_LOGGED_LINES + 1:
            logger.info("mcp server %s logs more than the limit", self._server)


@asynccontextmanager
async def pipe_streams(transport: PipeTransport) -> AsyncGenerator[Streams]:
    """Yield the streams for the SDK's client."""
    to_us, incoming = anyio.create_memory_object_stream[Incoming](64)
    outgoing, to_them = anyio.create_memory_object_stream[SessionMessage](0)
    async with to_us, to_them, incoming, outgoing, anyio.create_task_group() as group:
        group.start_soon(transport.listen, to_us)
        group.start_soon(transport.tell, to_them)
        try:
            yield incoming, outgoing
        finally:
            group.cancel_scope.cancel()
