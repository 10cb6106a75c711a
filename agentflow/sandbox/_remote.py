"""Tools of a server, through the official MCP client over streamable HTTP."""

import base64
import json
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypedDict

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from msgspec import Struct
from pydantic import ValidationError

from agentflow._typeguards import is_object
from agentflow.actors import Hosted
from agentflow.errors import ErrorKind, ToolFailure, unwrap_group
from agentflow.sandbox._launch import ServerLauncher, local_token
from agentflow.sandbox._names import Names
from agentflow.sandbox._tool_host import ToolHost
from mcp_servers import Image, ResourceLink, TextContent, Tool, ToolError, ToolResult
from mcp_servers.core import (
    CARD_KEY,
    ERROR_KEY,
    TIMEOUT_KEY,
    UNUSABLE_KEY,
    Hints,
    Part,
    ProgressSink,
    did_you_mean,
)

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""Seconds to wait beyond a call's timeout: the server ends the call first and returns its output."""

RESOURCE_NOT_FOUND = -32002
"""Error code of servers with a handshake; newer ones use `INVALID_PARAMS`."""

KEEPALIVE_SECONDS: Final = 2.0
"""Seconds after which idle connections are dropped, before a server does: a call must not use a dying connection."""

KIND_KEY: Final = "agentflow/kind"
"""Key in an error's `data` for the `ErrorKind` of an error made here."""

_REFUSALS: Final = {
    401: ErrorKind.DENIED,
    403: ErrorKind.DENIED,
    413: ErrorKind.BAD_ARGUMENTS,
    421: ErrorKind.DENIED,
    429: ErrorKind.BUSY,
    502: ErrorKind.UNAVAILABLE,
    503: ErrorKind.UNAVAILABLE,
}
"""Kinds of the statuses with which a server refuses a request before any tool sees it."""

_KINDS = {
    types.REQUEST_TIMEOUT: ErrorKind.TIMEOUT,
    types.CONNECTION_CLOSED: ErrorKind.UNAVAILABLE,
    types.METHOD_NOT_FOUND: ErrorKind.UNAVAILABLE,
    types.INVALID_PARAMS: ErrorKind.BAD_ARGUMENTS,
}
"""Kinds of failures for the protocol's error codes."""


class RemoteToolHost(ToolHost):
    """Connection to a server. Sessions live there, by handle. A call is sent exactly once."""

    def __init__(self, url: str, token: str | None, launcher: ServerLauncher | None = None) -> None:
        super().__init__()
        self._launcher = launcher
        self._url = url
        self._token = token
        self._turn = anyio.Lock()
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
        known = {tool.backend for tool in self._names.tools}
        for name in backends:
            if name not in known:
                message = f"no backend {name!r} at {self._url}.{did_you_mean(name, known)}"
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
        given = dict(arguments)
        if tool.stateful and session is not None:
            given.setdefault("session", session)
        try:
            _check_json(tool.name, given)
            client = await self._connected()
            result = await client.call_tool(
                tool.name,
                given,
                read_timeout_seconds=None if timeout is None else timeout + GRACE_SECONDS,
                progress_callback=None if progress is None else _relay(progress),
                meta=None if timeout is None else {TIMEOUT_KEY: timeout},
            )
        except ToolFailure as failure:
            return ToolResult.failed(failure)
        except MCPError as error:
            return ToolResult.failed(_failure_of(error, tool.name)).without_secrets()
        except (RuntimeError, ValidationError) as error:
            message = f"{tool.name}: the server's answer can't be read: {' '.join(str(error).split())}"
            return ToolResult.failed(ToolFailure(ErrorKind.FAILED, message)).without_secrets()
        return _tool_result(result).without_secrets()

    async def read(self, uri: str) -> bytes:
        """Return the target of a result's link."""
        client = await self._connected()
        try:
            found = await client.read_resource(uri, cache_mode="bypass")
        except MCPError as error:
            if error.code in (types.INVALID_PARAMS, RESOURCE_NOT_FOUND):
                raise ToolFailure(ErrorKind.NOT_FOUND, f"nothing is kept as {uri!r}, or no longer.") from None
            raise _failure_of(error, self._url) from None
        content = found.contents[0]
        if isinstance(content, types.TextResourceContents):
            return content.text.encode()
        return base64.b64decode(content.blob)

    async def _connected(self) -> Client:
        """Return the shared connection; a new one after it broke."""
        if self._client is not None and self._hosted.alive:
            return self._client
        async with self._turn:
            if self._client is None or not self._hosted.alive:
                hosted = Hosted(self._connect)
                try:
                    client = await hosted.open()
                    tools = await _list_tools(client)
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
            return _failure_of(error, self._url)
        return ToolFailure(ErrorKind.UNAVAILABLE, f"{self._url}: {type(error).__name__}: {error}")

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Client]:
        token = self._token or local_token(self._url)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        timeout = httpx2.Timeout(None, connect=10.0)
        async with (
            httpx2.AsyncClient(transport=SteadyTransport(), headers=headers, timeout=timeout) as http,
            Client(
                streamable_http_client(self._url, http_client=http, max_sse_event_size=None),
                client_info=types.Implementation(name="agentflow", version="1"),
            ) as client,
        ):
            yield client


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
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: no JSON can say this: {error}") from None


def _relay(sink: ProgressSink) -> ProgressFnT:
    async def report(progress: float, total: float | None, message: str | None) -> None:
        sink(progress, total, message)

    return report


async def _list_tools(client: Client) -> list[types.Tool]:
    page = await client.list_tools()
    tools = page.tools
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


class _FailureDetail(Struct):
    """Failure of one of our own servers, beside the text of its result."""

    kind: ErrorKind
    message: str
    data: dict[str, object] = {}


def _tool_result(result: types.CallToolResult) -> ToolResult:
    """Return the result of a call."""
    data: dict[str, object] = result.structured_content or {}
    if not result.is_error:
        return ToolResult(True, data, None, _parts(result.content, skip=_texts_of_data(result, data)))
    detail = (result.meta or {}).get(ERROR_KEY)
    if isinstance(detail, dict):
        failure = msgspec.convert(detail, _FailureDetail)
        parts = _parts(result.content, skip=2 if failure.data else 1)
        return ToolResult(False, failure.data, ToolError(failure.kind, failure.message), parts)
    # An external server: treat all of its content as text.
    message = " ".join(block.text for block in result.content if isinstance(block, types.TextContent))
    return ToolResult(False, data, ToolError(ErrorKind.FAILED, message or "the call failed."))


def _texts_of_data(result: types.CallToolResult, data: dict[str, object]) -> int:
    """Count the leading blocks that only repeat the data."""
    if data:
        return 1
    empty = result.structured_content is not None and len(result.content) == 1
    return int(empty and isinstance(result.content[0], types.TextContent) and result.content[0].text == "{}")


def _parts(content: list[types.ContentBlock], *, skip: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    for block in content[skip:]:
        if isinstance(block, types.TextContent):
            parts.append(TextContent(block.text))
        elif isinstance(block, types.ImageContent):
            parts.append(Image(base64.b64decode(block.data), block.mime_type))
        elif isinstance(block, types.ResourceLink):
            parts.append(ResourceLink(block.uri, block.name, block.mime_type or "", block.size or 0))
    return tuple(parts)


def _failure_of(error: MCPError, where: str) -> ToolFailure:
    """Return the failure that a protocol error means."""
    if is_object(error.data) and KIND_KEY in error.data:
        kind = ErrorKind(error.data[KIND_KEY])
    else:
        kind = _KINDS.get(error.code, ErrorKind.FAILED)
    return ToolFailure(kind, f"{where}: {error.message}")


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


def _card(said: object) -> _Card:
    """Return a server's usage notes of a tool; empty unless it is one of our servers."""
    try:
        return msgspec.convert(said or {}, _Card)
    except msgspec.ValidationError:
        return {}


async def _elsewhere(**_: object) -> object:
    raise ToolFailure(ErrorKind.UNAVAILABLE, "this tool is on a server: call it by Sandbox.execute.")


def _hints(given: types.ToolAnnotations) -> Hints:
    """Return the four annotations, with the protocol's defaults for missing ones."""
    return Hints(
        read_only=bool(given.read_only_hint),
        destructive=given.destructive_hint is not False,
        idempotent=bool(given.idempotent_hint),
        open_world=given.open_world_hint is not False,
    )


class SteadyTransport(httpx2.AsyncHTTPTransport):
    """Answers in place of a failed server.

    The protocol's client ends, with all calls in flight, when a request raises; with this transport it receives an error for
    that request and continues. Nothing is sent twice: the caller must find out whether the call has run.
    """

    def __init__(self) -> None:
        super().__init__(
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE_SECONDS
            )
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, once."""
        try:
            response = await super().handle_async_request(request)
            refusal = _REFUSALS.get(response.status_code)
            if refusal or response.headers.get("content-type", "").startswith("application/json"):
                await response.aread()
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return _failure(ErrorKind.UNAVAILABLE, "no server answers.")
        except httpx2.TransportError as error:
            lost = f"the connection was lost ({type(error).__name__}); the call may have run or not."
            return _failure(ErrorKind.UNAVAILABLE, lost)
        return _failure(refusal, _reason(response)) if refusal else response


class _RefusalError(Struct):
    message: str


class _Refusal(Struct):
    error: _RefusalError


def _reason(response: httpx2.Response) -> str:
    """Return the reason of a server's refusal."""
    try:
        refusal = msgspec.json.decode(response.content, type=_Refusal)
        return f"the server refuses: {refusal.error.message}"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return f"the server refuses with status {response.status_code}."


def _failure(kind: ErrorKind, message: str) -> httpx2.Response:
    error = types.ErrorData(code=types.CONNECTION_CLOSED, message=message, data={KIND_KEY: kind})
    body = types.JSONRPCError(jsonrpc="2.0", id=None, error=error)
    return httpx2.Response(
        503, headers={"content-type": "application/json"}, content=body.model_dump_json(by_alias=True)
    )
