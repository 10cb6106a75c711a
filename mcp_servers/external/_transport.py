"""MCP over a command's pipes: one message a line."""

import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from mcp_servers.external._pipes import Pipes
from mcp_servers.external._words import one_line

__all__ = ["Talk", "talking"]

MIB = 1024 * 1024
LONGEST_MESSAGE = 32 * MIB
LONGEST_LINE = 2_000
LOGGED_LINES = 500
"""Lines of what a server says on its standard error that are logged."""

logger = logging.getLogger(__name__)

Incoming: TypeAlias = SessionMessage | Exception

Streams: TypeAlias = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]
"""What the SDK's client reads from and writes to."""


class Talk:
    """What goes to and fro between a server and us."""

    def __init__(self, server: str, pipes: Pipes) -> None:
        self._server = server
        self._pipes = pipes
        self._line = bytearray()
        self._said = bytearray()
        self._logged = 0
        self.last_words: deque[str] = deque(maxlen=3)
        """The last lines that it said on its standard error."""
        self.trouble = ""
        """Why its output can't be read any more."""
        self.over = anyio.Event()
        """It says nothing more."""

    async def listen(self, incoming: MemoryObjectSendStream[Incoming]) -> None:
        """Pass its messages on until it has no more to say; what it says beside them is logged."""
        try:
            await self._listen(incoming)
        finally:
            self.over.set()

    async def _listen(self, incoming: MemoryObjectSendStream[Incoming]) -> None:
        async with incoming:
            async for name, data in self._pipes.receive():
                if name == "stderr":
                    self._hear(data)
                    continue
                *lines, rest = data.split(b"\n")
                for line in lines:
                    self._line += line
                    await self._pass_on(bytes(self._line), incoming)
                    self._line.clear()
                self._line += rest
                if len(self._line) > LONGEST_MESSAGE:
                    self.trouble = f"a message of more than {LONGEST_MESSAGE // MIB} MiB"
                    return

    async def tell(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send our messages."""
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
            # Some servers print where only the protocol may speak; that must not end the connection.
            self._hear(line + b"\n")
            return
        try:
            await incoming.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    def _hear(self, data: bytes) -> None:
        self._said += data
        *lines, rest = self._said.split(b"\n")
        for line in lines:
            words = one_line(line[:LONGEST_LINE].decode(errors="replace"))
            if words:
                self.last_words.append(words)
                self._log(words)
        self._said = bytearray(rest[-LONGEST_LINE:])

    def _log(self, words: str) -> None:
        self._logged += 1
        if self._logged <= LOGGED_LINES:
            logger.info("mcp server %s says: %s", self._server, words)
        elif self._logged == LOGGED_LINES + 1:
            logger.info("mcp server %s says more than is logged", self._server)


@asynccontextmanager
async def talking(talk: Talk) -> AsyncGenerator[Streams]:
    """The streams that the SDK's client works with."""
    to_us, incoming = anyio.create_memory_object_stream[Incoming](64)
    outgoing, to_them = anyio.create_memory_object_stream[SessionMessage](0)
    async with to_us, to_them, incoming, outgoing, anyio.create_task_group() as group:
        group.start_soon(talk.listen, to_us)
        group.start_soon(talk.tell, to_them)
        try:
            yield incoming, outgoing
        finally:
            group.cancel_scope.cancel()
