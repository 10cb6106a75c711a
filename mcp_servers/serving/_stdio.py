"""MCP over standard input and output.

This replaces the SDK's transport, which reads in a thread that cannot be cancelled (a signal would wait for the client's
next line), leaves malformed lines unanswered, and reads lines of any length.
"""

import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from mcp_servers.core._sessions import DefaultSession
from mcp_servers.core._table import LOCAL, ToolTable
from mcp_servers.serving._client_profiles import ClientProfiles
from mcp_servers.serving._protocol import AdapterOptions, McpAdapter

MAX_LINE = 64 * 1024 * 1024
"""Maximum bytes of one message; a longer one is refused."""

CHUNK = 256 * 1024


async def serve_stdio(
    table: ToolTable, *, backend: str | None = None, profiles: ClientProfiles | None = None
) -> None:
    """Serve one client on a started table until it closes standard input, then end its session.

    :param backend: serve only this backend.
    :param profiles: forms of results by client.

    Example::

        async with ToolTable([load_backend("bash")]) as table:
            await serve_stdio(table)
    """
    default = DefaultSession(table.sessions, LOCAL)
    options = AdapterOptions(profiles=profiles or ClientProfiles())
    adapter = McpAdapter(table, principal=lambda _: LOCAL, backend=backend, default=default, options=options)
    server = adapter.server()
    try:
        with _wire() as (source, sink):
            async with _messages(source, sink) as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await default.close()


@contextmanager
def _wire() -> Generator[tuple[int, int]]:
    """Yield private copies of descriptors 0 and 1; meanwhile 0 is empty and 1 is standard error.

    This keeps code in this process and its children from reading or writing the protocol.
    """
    sys.stdout.flush()
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0, inheritable=True)
        os.dup2(2, 1, inheritable=True)
        yield source, sink
    finally:
        sys.stdout.flush()
        os.dup2(source, 0)
        os.dup2(sink, 1)
        os.close(nothing)
        os.close(sink)
        # `source` stays open: the reading thread may be blocked on it, so its number must not be reused.


@asynccontextmanager
async def _messages(
    source: int, sink: int
) -> AsyncGenerator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """Yield the connection as the streams that the SDK's server takes."""
    incoming, for_server = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    from_server, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def write() -> None:
        async with outgoing:
            async for message in outgoing:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                await anyio.to_thread.run_sync(_write_all, sink, line, abandon_on_cancel=True)

    async def deliver(line: bytes | None) -> None:
        if line is None:
            await incoming.aclose()
            return
        message = _parse(line)
        if isinstance(message, types.JSONRPCError):
            await replies.send(SessionMessage(message))
        else:
            await incoming.send(SessionMessage(message))

    replies = from_server.clone()
    token = anyio.lowlevel.current_token()

    def read() -> None:
        # The event loop or the server may have ended while this thread waits for input.
        with suppress(
            anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.RunFinishedError, RuntimeError
        ):
            for line in _lines(source):
                anyio.from_thread.run(deliver, line, token=token)
            anyio.from_thread.run(deliver, None, token=token)

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        threading.Thread(target=read, name="stdio", daemon=True).start()
        try:
            yield for_server, from_server
        finally:
            incoming.close()
            replies.close()


def _lines(source: int) -> Generator[bytes]:
    """Yield lines as they arrive; an oversized line is truncated, which makes it malformed."""
    pending = bytearray()
    while chunk := os.read(source, CHUNK):
        head, *complete = chunk.split(b"\n")
        pending += head
        for tail in complete:
            yield bytes(pending[: MAX_LINE + 1])
            pending = bytearray(tail)
        del pending[MAX_LINE + 1 :]
    if pending:
        yield bytes(pending)


def _parse(line: bytes) -> types.JSONRPCMessage:
    """Return the message, or the error to answer with."""
    if len(line) > MAX_LINE:
        return _error(types.INVALID_REQUEST, f"Message too large: the limit is {MAX_LINE} bytes")
    text = line.decode(errors="replace")
    try:
        message = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
        if isinstance(message, types.JSONRPCNotification) and "id" in json.loads(text):
            return _error(types.INVALID_REQUEST, "Invalid request: the id must be a string or an integer")
        return message
    except ValidationError as error:
        malformed = any(detail["type"] == "json_invalid" for detail in error.errors())
        code, what = (
            (types.PARSE_ERROR, "Parse error") if malformed else (types.INVALID_REQUEST, "Invalid request")
        )
        return _error(code, what)


def _error(code: int, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=None, error=types.ErrorData(code=code, message=message))


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]
