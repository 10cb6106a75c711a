"""Connections to external servers: a command on this machine or in a sandbox, or a URL."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias, cast

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client

from mcp_servers.external._pipes import Pipes, command_pipes
from mcp_servers.external._settings import MountSettings
from mcp_servers.external._transport import MAX_MESSAGE_BYTES, PipeTransport, Streams, pipe_streams
from runtimes import WORKSPACE, Instance

CONNECT_SECONDS = 10.0


class ServerConnection:
    """An open connection to a server."""

    def __init__(
        self, streams: Streams, transport: PipeTransport | None = None, pipes: Pipes | None = None
    ) -> None:
        self.streams = streams
        """The streams for the SDK's client."""
        self._talk = transport
        self._pipes = pipes
        self._cut = anyio.Event()
        self._reason = ""

    def cut(self, reason: str) -> None:
        """Mark the connection as broken."""
        self._reason = self._reason or reason
        self._cut.set()

    async def ended(self) -> str:
        """Wait for the end of the connection and return the reason."""
        async with anyio.create_task_group() as group:
            if self._talk is not None and self._pipes is not None:
                group.start_soon(self._watch, self._talk, self._pipes)
            await self._cut.wait()
            group.cancel_scope.cancel()
        return self._reason

    async def _watch(self, transport: PipeTransport, pipes: Pipes) -> None:
        await transport.over.wait()
        how = transport.trouble
        if not how:
            # Its output ends shortly before the process does.
            with anyio.move_on_after(2):
                status = await pipes.wait()
                how = f"it ended with signal {-status}" if status < 0 else f"it ended with status {status}"
        words = " / ".join(transport.last_stderr_lines)
        self.cut((how or "it closed its output") + (f"; it said: {words}" if words else ""))


Connector: TypeAlias = Callable[[], AbstractAsyncContextManager[ServerConnection]]
"""Opens a new connection."""


def http_connector(settings: MountSettings) -> Connector:
    """Return a connector for a server that speaks HTTP."""

    @asynccontextmanager
    async def line() -> AsyncGenerator[ServerConnection]:
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        assert settings.url is not None
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
            streamable_http_client(
                settings.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            # Other classes than for pipes, with the same interface.
            yield ServerConnection(cast("Streams", streams))

    return line


def local_connector(name: str, settings: MountSettings, folder: Path | None) -> Connector:
    """Return a connector for a command on this machine."""

    @asynccontextmanager
    async def line() -> AsyncGenerator[ServerConnection]:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        filled, named = _filled(settings, str(folder or ""))
        async with (
            command_pipes(filled, env={**environment, **named}, cwd=settings.cwd or folder) as pipes,
            _talking(name, pipes) as line,
        ):
            yield line

    return line


def sandbox_connector(
    name: str,
    settings: MountSettings,
    get: Callable[[AsyncExitStack], Awaitable[Instance]],
) -> Connector:
    """Return a connector for a command in a sandbox.

    :param get: returns the instance and pushes its cleanup on the stack.
    """

    @asynccontextmanager
    async def line() -> AsyncGenerator[ServerConnection]:
        async with AsyncExitStack() as stack:
            instance = await get(stack)
            filled, named = _filled(settings, WORKSPACE)
            cwd = None if settings.cwd is None else str(settings.cwd)
            pipes = await stack.enter_async_context(await instance.open_stream(filled, cwd=cwd, env=named))
            yield await stack.enter_async_context(_talking(name, pipes))

    return line


@asynccontextmanager
async def _talking(name: str, pipes: Pipes) -> AsyncGenerator[ServerConnection]:
    transport = PipeTransport(name, pipes)
    async with pipe_streams(transport) as streams:
        yield ServerConnection(streams, transport, pipes)


def _filled(settings: MountSettings, workspace: str) -> tuple[list[str], Mapping[str, str]]:
    """Return the command and its environment with the workspace path filled in."""
    command = [word.replace("{workspace}", workspace) for word in (*settings.command, *settings.args)]
    named = {
        key: value.get_secret_value().replace("{workspace}", workspace) for key, value in settings.env.items()
    }
    return command, named
