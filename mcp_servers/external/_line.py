"""The line to an external server: a command on this machine or in a sandbox, or an address."""

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
from mcp_servers.external._transport import LONGEST_MESSAGE, Streams, Talk, talking
from runtimes import WORKSPACE, Instance

__all__ = ["Line", "Lines", "by_address", "in_instance", "on_this_machine"]

CONNECT_SECONDS = 10.0


class Line:
    """An open line to a server."""

    def __init__(self, streams: Streams, talk: Talk | None = None, pipes: Pipes | None = None) -> None:
        self.streams = streams
        """What the SDK's client works with."""
        self._talk = talk
        self._pipes = pipes
        self._cut = anyio.Event()
        self._reason = ""

    def cut(self, reason: str) -> None:
        """It is of no use any more."""
        self._reason = self._reason or reason
        self._cut.set()

    async def ended(self) -> str:
        """Why it ended, once it has."""
        async with anyio.create_task_group() as group:
            if self._talk is not None and self._pipes is not None:
                group.start_soon(self._watch, self._talk, self._pipes)
            await self._cut.wait()
            group.cancel_scope.cancel()
        return self._reason

    async def _watch(self, talk: Talk, pipes: Pipes) -> None:
        await talk.over.wait()
        how = talk.trouble
        if not how:
            # Its output ends a little before it does.
            with anyio.move_on_after(2):
                status = await pipes.wait()
                how = f"it ended with signal {-status}" if status < 0 else f"it ended with status {status}"
        words = " / ".join(talk.last_words)
        self.cut((how or "it closed its output") + (f"; it said: {words}" if words else ""))


Lines: TypeAlias = Callable[[], AbstractAsyncContextManager[Line]]
"""Opens a line, anew each time."""


def by_address(settings: MountSettings) -> Lines:
    """Lines to a server that speaks HTTP."""

    @asynccontextmanager
    async def line() -> AsyncGenerator[Line]:
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        assert settings.url is not None
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
            streamable_http_client(
                settings.url, http_client=http, max_sse_event_size=LONGEST_MESSAGE
            ) as streams,
        ):
            # Not the same classes as for pipes, but what they do is the same.
            yield Line(cast("Streams", streams))

    return line


def on_this_machine(name: str, settings: MountSettings, folder: Path | None) -> Lines:
    """Lines to a command that runs beside us."""

    @asynccontextmanager
    async def line() -> AsyncGenerator[Line]:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        filled, named = _filled(settings, str(folder or ""))
        async with (
            command_pipes(filled, env={**environment, **named}, cwd=settings.cwd or folder) as pipes,
            _talking(name, pipes) as line,
        ):
            yield line

    return line


def in_instance(
    name: str,
    settings: MountSettings,
    get: Callable[[AsyncExitStack], Awaitable[Instance]],
) -> Lines:
    """Lines to a command that runs in a sandbox.

    :param get: gives the instance; what is to be done at the line's end goes on the stack.
    """

    @asynccontextmanager
    async def line() -> AsyncGenerator[Line]:
        async with AsyncExitStack() as stack:
            instance = await get(stack)
            filled, named = _filled(settings, WORKSPACE)
            cwd = None if settings.cwd is None else str(settings.cwd)
            pipes = await stack.enter_async_context(await instance.open_stream(filled, cwd=cwd, env=named))
            yield await stack.enter_async_context(_talking(name, pipes))

    return line


@asynccontextmanager
async def _talking(name: str, pipes: Pipes) -> AsyncGenerator[Line]:
    talk = Talk(name, pipes)
    async with talking(talk) as streams:
        yield Line(streams, talk, pipes)


def _filled(settings: MountSettings, workspace: str) -> tuple[list[str], Mapping[str, str]]:
    """Command and variables, with the folder put in."""
    command = [word.replace("{workspace}", workspace) for word in (*settings.command, *settings.args)]
    named = {
        key: value.get_secret_value().replace("{workspace}", workspace) for key, value in settings.env.items()
    }
    return command, named
