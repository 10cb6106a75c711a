"""Connections to external servers: a URL, or the pipes of a command on this machine or in a sandbox."""

import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Literal, Protocol, Self, TypeAlias

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from agentflow.actors import SYSTEM_CLOCK, ActorError, Context, Process, ProcessEnded
from mcp_servers.external._content import one_line
from mcp_servers.external._message_limits import (
    BoundedMessages,
    Incoming,
    bounded_client,
    limits_of,
    too_large,
)
from mcp_servers.external._settings import MountSettings
from runtimes import WORKSPACE, FrameError, Instance, JsonLimits, LineDecoder, decode_untrusted

logger = logging.getLogger(__name__)

Piece: TypeAlias = tuple[Literal["stdout", "stderr"], bytes]
"""A chunk of output and its stream."""

CHUNK = 65_536
CONNECT_SECONDS = 10.0
MAX_LINE_BYTES = 2_000
MAX_LOGGED_LINES = 500
"""Maximum number of logged lines of a server's standard error."""
GRACE_SECONDS = 2.0
"""Time for a command to end after its input is closed and it is asked to."""


class Pipes(Protocol):
    """The interface of a running command; `runtimes.Stream` has it too."""

    async def send(self, data: bytes) -> None:
        """Write to standard input."""

    def receive(self) -> AsyncIterator[Piece]:
        """Yield output as it arrives, until both pipes close."""
        ...

    async def wait(self) -> int:
        """Return the exit status."""
        ...


class _CommandPipes:
    """Our ends of a command's pipes. Nothing here blocks the event loop."""

    def __init__(self, stdin: FileIO, stdout: FileIO, stderr: FileIO) -> None:
        self._stdin = stdin
        self._outputs: list[tuple[FileIO, Literal["stdout", "stderr"]]] = [
            (stdout, "stdout"),
            (stderr, "stderr"),
        ]
        self._sender, self._receiver = anyio.create_memory_object_stream[Piece](0)
        self.started = anyio.Event()
        self.ended = anyio.Event()
        self.status = 0
        self.failure: ActorError | None = None
        for file in (stdin, stdout, stderr):
            os.set_blocking(file.fileno(), False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._sender.close()
        self._receiver.close()

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._stdin.fileno(), left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._stdin)
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None

    async def receive(self) -> AsyncGenerator[Piece]:
        async for piece in self._receiver:
            yield piece

    async def wait(self) -> int:
        await self.ended.wait()
        return self.status

    async def run(self, process: Process, context: Context) -> None:
        """Run the process to its end."""
        try:
            await process.run(context)
        except ProcessEnded as error:
            self.status = error.status
        except ActorError as error:
            self.failure = error
        finally:
            self.started.set()
            self.ended.set()

    async def read(self) -> None:
        """Read both outputs independently until they end."""
        async with self._sender, anyio.create_task_group() as group:
            for file, name in self._outputs:
                group.start_soon(self._read, file, name)

    async def _read(self, file: FileIO, name: Literal["stdout", "stderr"]) -> None:
        while True:
            await anyio.wait_readable(file)
            data = os.read(file.fileno(), CHUNK)
            if not data:
                return
            try:
                await self._sender.send((name, data))
            except anyio.BrokenResourceError:
                continue  # nobody listens any more, but a full pipe must not keep the process from ending

    async def end(self, context: Context) -> None:
        """Close its input and ask it to end; if it does not, cancelling `run` kills it."""
        self._stdin.close()
        self._receiver.close()
        if context.stop_callback is not None:
            context.stop_callback()
        with anyio.move_on_after(GRACE_SECONDS):
            await self.ended.wait()


@asynccontextmanager
async def command_pipes(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None
) -> AsyncGenerator[Pipes]:
    """Run a command with pipes; on exit the command and all its descendants are gone.

    :raises ActorError: if it cannot be run.
    """
    with ExitStack() as ours, ExitStack() as theirs:
        (stdin, giving), (taking, stdout), (hearing, stderr) = _pipe(), _pipe(), _pipe()
        for file in (giving, taking, hearing):
            ours.enter_context(file)
        for file in (stdin, stdout, stderr):
            theirs.enter_context(file)
        pipes = ours.enter_context(_CommandPipes(giving, taking, hearing))
        process = Process(command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
        context = Context(command[0], SYSTEM_CLOCK, pipes.started.set)
        async with anyio.create_task_group() as group:
            group.start_soon(pipes.run, process, context)
            await pipes.started.wait()
            theirs.close()
            if pipes.failure is None:
                group.start_soon(pipes.read)
                try:
                    yield pipes
                finally:
                    with anyio.CancelScope(shield=True):
                        await pipes.end(context)
                    group.cancel_scope.cancel()
        if pipes.failure is not None:
            raise pipes.failure


def _pipe() -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return FileIO(reading, "r"), FileIO(writing, "w")


class PipeTransport:
    """Message exchange with a server over its pipes."""

    def __init__(self, server: str, pipes: Pipes, limits: JsonLimits) -> None:
        self._server = server
        self._pipes = pipes
        self._limits = limits
        self._unlogged = bytearray()
        self._logged = 0
        self._last_lines: deque[bytes] = deque(maxlen=3)
        self._trouble = ""
        self._over = anyio.Event()

    async def listen(self, incoming: MemoryObjectSendStream[Incoming]) -> None:
        """Forward messages until the output ends; other output is logged."""
        decoder = LineDecoder(self._limits.max_bytes)
        try:
            async with incoming:
                async for name, data in self._pipes.receive():
                    if name == "stderr":
                        self._record_output(data)
                        continue
                    decoder.feed(data)
                    await self._pass_on(decoder, incoming)
        except FrameError as error:
            over = decoder.buffered > self._limits.max_bytes
            self._trouble = too_large(self._limits) if over else str(error)
        finally:
            self._over.set()

    async def ended(self) -> str:
        """Wait for the end of the output and return the reason."""
        await self._over.wait()
        how = self._trouble
        if not how:
            # Its output ends shortly before the process does.
            with anyio.move_on_after(2):
                status = await self._pipes.wait()
                how = f"it ended with signal {-status}" if status < 0 else f"it ended with status {status}"
        words = " / ".join(filter(None, map(_words, self._last_lines)))
        return (how or "it closed its output") + (f"; it said: {words}" if words else "")

    async def tell(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send outgoing messages."""
        async with outgoing:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await self._pipes.send(text.encode() + b"\n")
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                    return

    async def _pass_on(self, lines: LineDecoder, incoming: MemoryObjectSendStream[Incoming]) -> None:
        for line in lines:
            if not line.strip():
                continue
            message = await decode_untrusted(line, _message_of, self._limits)
            if message is None:
                # Some servers print to standard output; that must not end the connection.
                self._record_output(line + b"\n")
                continue
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await incoming.send(SessionMessage(message))

    def _record_output(self, data: bytes) -> None:
        self._unlogged += data
        *lines, rest = self._unlogged.split(b"\n")
        for line in lines:
            if line.strip():
                self._last_lines.append(bytes(line[:MAX_LINE_BYTES]))
                self._log(self._last_lines[-1])
        self._unlogged = bytearray(rest[-MAX_LINE_BYTES:])

    def _log(self, line: bytes) -> None:
        self._logged += 1
        if self._logged <= MAX_LOGGED_LINES:
            logger.info("mcp server %s says: %s", self._server, _words(line))
        elif self._logged == MAX_LOGGED_LINES + 1:
            logger.info("mcp server %s logs more than the limit", self._server)


def _message_of(line: bytes) -> types.JSONRPCMessage | None:
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return None


def _words(line: bytes) -> str:
    return one_line(line.decode(errors="replace"))


@asynccontextmanager
async def pipe_streams(transport: PipeTransport) -> AsyncGenerator[TransportStreams]:
    """Yield the streams for the SDK's client."""
    to_us, incoming = anyio.create_memory_object_stream[Incoming](1)
    outgoing, to_them = anyio.create_memory_object_stream[SessionMessage](0)
    async with to_us, to_them, incoming, outgoing, anyio.create_task_group() as group:
        group.start_soon(transport.listen, to_us)
        group.start_soon(transport.tell, to_them)
        try:
            yield incoming, outgoing
        finally:
            group.cancel_scope.cancel()


class ServerConnection:
    """An open connection to a server."""

    def __init__(
        self, settings: MountSettings, streams: TransportStreams, transport: PipeTransport | None = None
    ) -> None:
        received, sent = streams
        self.streams: TransportStreams = (BoundedMessages(received, settings), sent)
        """The streams for the SDK's client."""
        self._transport = transport
        self._cut = anyio.Event()
        self._reason = ""

    def cut(self, reason: str) -> None:
        """Mark the connection as broken."""
        self._reason = self._reason or reason
        self._cut.set()

    async def ended(self) -> str:
        """Wait for the end of the connection and return the reason."""
        async with anyio.create_task_group() as group:
            if self._transport is not None:
                group.start_soon(self._watch, self._transport)
            await self._cut.wait()
            group.cancel_scope.cancel()
        return self._reason

    async def _watch(self, transport: PipeTransport) -> None:
        self.cut(await transport.ended())


Connector: TypeAlias = Callable[[], AbstractAsyncContextManager[ServerConnection]]
"""Opens a new connection."""


@asynccontextmanager
async def connect(
    name: str,
    settings: MountSettings,
    folder: Path | None,
    sandbox: Callable[[AsyncExitStack], Awaitable[Instance]],
) -> AsyncGenerator[ServerConnection]:
    """Open a connection to a server at a URL, or start its command on this machine or in a sandbox.

    :param folder: workspace of a command on this machine.
    :param sandbox: returns the instance for a command in a sandbox and pushes its cleanup on the stack.
    """
    limits = limits_of(settings)
    async with AsyncExitStack() as stack:
        if settings.url is not None:
            headers = {key: value.get_secret_value() for key, value in settings.headers.items()}
            timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
            http = await stack.enter_async_context(bounded_client(headers, timeout, limits))
            streams = await stack.enter_async_context(
                streamable_http_client(settings.url, http_client=http, max_sse_event_size=limits.max_bytes)
            )
            yield ServerConnection(settings, streams)
            return
        if settings.runtime is None:
            command, env = _filled(settings, str(folder or ""))
            env = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", **env}
            running = command_pipes(command, env=env, cwd=settings.cwd or folder)
        else:
            instance = await sandbox(stack)
            command, env = _filled(settings, WORKSPACE)
            cwd = None if settings.cwd is None else str(settings.cwd)
            running = await instance.open_stream(command, cwd=cwd, env=env)
        pipes = await stack.enter_async_context(running)
        transport = PipeTransport(name, pipes, limits)
        yield ServerConnection(settings, await stack.enter_async_context(pipe_streams(transport)), transport)


def _filled(settings: MountSettings, workspace: str) -> tuple[list[str], Mapping[str, str]]:
    """Return the command and its environment with the workspace path filled in."""
    command = [word.replace("{workspace}", workspace) for word in (*settings.command, *settings.args)]
    env = {
        key: value.get_secret_value().replace("{workspace}", workspace) for key, value in settings.env.items()
    }
    return command, env
