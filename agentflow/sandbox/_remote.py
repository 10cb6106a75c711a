"""Tools of a server, through the official MCP client over streamable HTTP."""

import base64
import json
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypedDict

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from agentflow._http_client import MAX_ANSWER_BYTES
from agentflow._typeguards import is_object
from agentflow.actors import Hosted
from agentflow.errors import ErrorKind, ToolFailure, unwrap_group
from agentflow.sandbox._launch import ServerLauncher, local_token
from agentflow.sandbox._tool_host import Names, ToolHost
from mcp_servers import Tool, ToolResult
from mcp_servers.core import (
    CARD_KEY,
    HANG_SECONDS,
    TIMEOUT_KEY,
    UNUSABLE_KEY,
    Hints,
    ProgressSink,
    did_you_mean,
    seconds_until_hung,
)
from mcp_servers.serving import ErrorResponseTransport, failure_of, list_tools, progress_relay, tool_result

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 60.0
"""Seconds for connecting and for the list of tools."""

GRACE_SECONDS = 5.0
"""Seconds to wait beyond a call's timeout: the server ends the call first and returns its output."""

RESOURCE_NOT_FOUND = -32002
"""Error code of servers with a handshake; newer ones use `INVALID_PARAMS`."""


class RemoteToolHost(ToolHost):
    """Connection to a server. Sessions live there, by handle. A call reaches a tool at most once."""

    def __init__(
        self,
        url: str,
        token: str | None,
        launcher: ServerLauncher | None = None,
        *,
        spare: float | None = HANG_SECONDS,
        wall: float | None = None,
    ) -> None:
        """:param spare: time that it has for a call without a time limit, beyond that of the call's program; `None`: no limit.
        :param wall: time limit of programs.
        """
        super().__init__()
        self._spare = spare
        self._wall = wall
        self._launcher = launcher
        self._url = url
        self._token = token
        self._lock = anyio.Lock()
        self._hosted = Hosted(self._connect)
        self._client: Client | None = None
        self._names = Names(())

    @property
    def names(self) -> Names:
        """The tools, by all their names."""
        return self._names

    async def open(self) -> None:
        """Connect and list the tools; start the server first if configured and none answers."""
        try:
            if self._launcher is not None:
                await self._launcher.ensure()
            await self._connected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect."""
        await _drop(self._hosted)
        if self._launcher is not None:
            await self._launcher.close()

    async def warmup(self, backends: Iterable[str]) -> None:
        """Check that the server has these backends; the server itself starts them."""
        backend_names = {tool.backend for tool in self._names.tools}
        for name in backends:
            if name not in backend_names:
                message = f"no backend {name!r} at {self._url}.{did_you_mean(name, backend_names)}"
                raise ToolFailure(ErrorKind.TOOL_NOT_FOUND, message)

    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, object],
        *,
        session: str | None,
        timeout: float | None,
        progress: ProgressSink | None,
    ) -> ToolResult:
        """Call a tool, once."""
        call_arguments = dict(arguments)
        if tool.stateful and session is not None:
            call_arguments.setdefault("session", session)
        try:
            _check_json(tool.name, call_arguments)
            client = await self._connected()
            seconds = timeout
            if seconds is None:
                seconds = seconds_until_hung(self._spare, self._wall, call_arguments.get("timeout"))
            result = await client.call_tool(
                tool.name,
                call_arguments,
                read_timeout_seconds=None if seconds is None else seconds + GRACE_SECONDS,
                progress_callback=None if progress is None else progress_relay(progress),
                meta=None if timeout is None else {TIMEOUT_KEY: timeout},
            )
        except ToolFailure as failure:
            return _failed(failure)
        except MCPError as error:
            return _failed(failure_of(error, tool.name)).without_secrets()
        except (RuntimeError, ValidationError) as error:
            message = f"{tool.name}: the server's answer can't be read: {' '.join(str(error).split())}"
            return ToolResult.failed(ToolFailure(ErrorKind.FAILED, message)).without_secrets()
        return tool_result(result).without_secrets()

    async def read(self, uri: str) -> bytes:
        """Return the target of a result's link."""
        client = await self._connected()
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                resource = await client.read_resource(uri, cache_mode="bypass")
        except TimeoutError:
            message = f"{self._url}: {uri!r} was not sent within {CONNECT_SECONDS:g} s."
            raise ToolFailure(ErrorKind.TIMEOUT, message) from None
        except MCPError as error:
            if error.code in (types.INVALID_PARAMS, RESOURCE_NOT_FOUND):
                raise ToolFailure(
                    ErrorKind.NOT_FOUND, f"no result named {uri!r}; it may have expired."
                ) from None
            raise failure_of(error, self._url) from None
        content = resource.contents[0]
        if isinstance(content, types.TextResourceContents):
            return content.text.encode()
        return base64.b64decode(content.blob)

    async def _connected(self) -> Client:
        """Return the shared connection; a new one after it broke."""
        if self._client is not None and self._hosted.alive:
            return self._client
        async with self._lock:
            if self._client is None or not self._hosted.alive:
                hosted = Hosted(self._connect)
                try:
                    with anyio.fail_after(CONNECT_SECONDS):
                        client = await hosted.open()
                        tools = await list_tools(client)
                except Exception as error:  # boundary: connecting fails in as many ways as there are networks
                    await _drop(hosted)
                    raise self._explain(error) from None
                except BaseException:
                    await _drop(hosted)
                    raise
                self._hosted, self._client, self._names = hosted, client, Names(map(_tool_of, tools))
            return self._client

    def _explain(self, error: Exception) -> ToolFailure:
        error = unwrap_group(error)
        if isinstance(error, MCPError):
            return failure_of(error, self._url)
        return ToolFailure(ErrorKind.UNAVAILABLE, f"{self._url}: {type(error).__name__}: {error}")

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Client]:
        timeout = httpx2.Timeout(None, connect=10.0)
        transport = ErrorResponseTransport(token=self._present_token)
        async with (
            httpx2.AsyncClient(transport=transport, timeout=timeout) as http,
            Client(
                streamable_http_client(self._url, http_client=http, max_sse_event_size=MAX_ANSWER_BYTES),
                client_info=types.Implementation(name="agentflow", version="1"),
            ) as client,
        ):
            yield client

    def _present_token(self) -> str | None:
        # Read for each request: a local server that was started again has another one.
        return self._token or local_token(self._url)


def _failed(failure: ToolFailure) -> ToolResult:
    """Return the result of a call that the server did not answer, or refused."""
    return replace(ToolResult.failed(failure), server_lost=failure.kind is ErrorKind.UNAVAILABLE)


async def _drop(hosted: Hosted[Client]) -> None:
    try:
        with anyio.CancelScope(shield=True):
            await hosted.close()
    except Exception:  # boundary: errors of a connection that is no longer needed are irrelevant
        logger.debug("a connection broke while it was closed", exc_info=True)


def _check_json(tool: str, arguments: Mapping[str, object]) -> None:
    """Refuse arguments that can't be encoded: they would break the connection for all calls."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ToolFailure(
            ErrorKind.BAD_ARGUMENTS, f"{tool}: this value can't be encoded as JSON: {error}"
        ) from None


def _tool_of(listed: types.Tool) -> Tool:
    """Return a server's tool definition. It is called through its host."""
    family, _, verb = listed.name.partition("_")
    return Tool(
        backend=family if verb else "",
        verb=verb or family,
        title=listed.title or listed.name,
        description=listed.description or "",
        input_schema=dict(listed.input_schema),
        output_schema=None if listed.output_schema is None else dict(listed.output_schema),
        hints=_hints(listed.annotations or types.ToolAnnotations()),
        bind=dict,
        invoke=_elsewhere,
        dump=lambda value: value if is_object(value) else {},
        session_parameter="session" if "session" in listed.input_schema.get("properties", {}) else None,
        unusable=str((listed.meta or {}).get(UNUSABLE_KEY, "")),
        **_card((listed.meta or {}).get(CARD_KEY)),
    )


class _Card(TypedDict, total=False):
    limits: tuple[str, ...]
    practices: tuple[str, ...]
    examples: tuple[Mapping[str, object], ...]


def _card(meta: object) -> _Card:
    """Return a server's usage notes of a tool; empty unless it is one of our servers."""
    try:
        return msgspec.convert(meta or {}, _Card)
    except msgspec.ValidationError:
        return {}


async def _elsewhere(**_: object) -> object:
    raise ToolFailure(ErrorKind.UNAVAILABLE, "this tool is on a server: call it by Sandbox.execute.")


def _hints(annotations: types.ToolAnnotations) -> Hints:
    """Return the four annotations, with the protocol's defaults for missing ones."""
    return Hints(
        read_only=bool(annotations.read_only_hint),
        destructive=annotations.destructive_hint is not False,
        idempotent=bool(annotations.idempotent_hint),
        open_world=annotations.open_world_hint is not False,
    )
