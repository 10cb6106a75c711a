"""Client side of a server of ours: a transport that survives failures, and the meaning of answers."""

import base64
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import httpx2
import mcp_types as types
import msgspec
from mcp import Client
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from msgspec import Struct

from agentflow._decoding import DECODE_ERRORS
from agentflow._http_client import NO_COMPRESSION, AnswerRefused, read_parts, refuse_compressed
from agentflow._typeguards import is_object
from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import (
    ERROR_KEY,
    KIND_KEY,
    Image,
    Part,
    ProgressSink,
    ResourceLink,
    TextContent,
    ToolError,
    ToolResult,
)

KEEPALIVE_SECONDS: Final = 2.0
"""Seconds after which idle connections are dropped, before a server does: a call must not use a dying connection."""

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


class _FailureDetail(Struct):
    """Failure of one of our own servers, beside the text of its result."""

    kind: ErrorKind
    message: str
    data: dict[str, object] = {}


async def list_tools(client: Client) -> list[types.Tool]:
    """Return the tools of a server, page by page. The headers of calls follow from their schemas."""
    page = await client.list_tools()
    tools = page.tools
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


def tool_result(result: types.CallToolResult) -> ToolResult:
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


def failure_of(error: MCPError, where: str) -> ToolFailure:
    """Return the failure that a protocol error means."""
    if is_object(error.data) and KIND_KEY in error.data:
        kind = ErrorKind(error.data[KIND_KEY])
    else:
        kind = _KINDS.get(error.code, ErrorKind.FAILED)
    return ToolFailure(kind, f"{where}: {error.message}")


class ErrorResponseTransport(httpx2.AsyncHTTPTransport):
    """Answers failed requests with an error, and so answers that are refused: compressed, or too large.

    The protocol's client ends, with all calls in flight, when a request raises; with this transport it receives an error for
    that request and continues. No call is made twice: the caller must find out whether it has run.
    """

    def __init__(self, socket: str | None = None, token: Callable[[], str | None] | None = None) -> None:
        """:param socket: Unix socket of the server.
        :param token: returns the present bearer token, if any; `None`: requests have their own.
        """
        self._token = token
        super().__init__(
            uds=socket,
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE_SECONDS
            ),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, once."""
        request.headers.update(NO_COMPRESSION)
        try:
            response = await _received(await self._answer(request))
        except AnswerRefused as refused:
            return _failure(ErrorKind.OUTPUT_LIMIT, f"{refused}; the call may have run.")
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return _failure(ErrorKind.UNAVAILABLE, "no server answers.")
        except httpx2.TransportError as error:
            lost = f"the connection was lost ({type(error).__name__}); the call may have run or not."
            return _failure(ErrorKind.UNAVAILABLE, lost)
        refusal = _REFUSALS.get(response.status_code)
        return _refused(response, refusal) if refusal else response

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request with the present token."""
        if self._token is None:
            return await super().handle_async_request(request)
        _authorize(request, token := self._token())
        response = await super().handle_async_request(request)
        # A server that was started again has another token. It refused this one before any tool saw the request.
        if response.status_code == 401 and (present := self._token()) != token:
            await response.aclose()
            _authorize(request, present)
            response = await super().handle_async_request(request)
        return response


async def _received(response: httpx2.Response) -> httpx2.Response:
    """Return an answer with its whole body; events stay a stream, and the SDK bounds each of them.

    :raises AnswerRefused: if it is compressed or too large.
    """
    async with AsyncExitStack() as stack:
        stack.push_async_callback(response.aclose)
        refuse_compressed(response.headers)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            stack.pop_all()
            return response
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        body = await read_parts(response.stream)
        return httpx2.Response(response.status_code, headers=response.headers, content=body)


def _authorize(request: httpx2.Request, token: str | None) -> None:
    if token is not None:
        request.headers["authorization"] = f"Bearer {token}"


class _RefusalData(Struct):
    kind: ErrorKind | None = msgspec.field(name=KIND_KEY, default=None)


class _RefusalError(Struct):
    message: str
    data: _RefusalData | None = None


class _Refusal(Struct):
    error: _RefusalError


def _refused(response: httpx2.Response, kind: ErrorKind) -> httpx2.Response:
    """Return the failure that a server's refusal means."""
    try:
        error = msgspec.json.decode(response.content, type=_Refusal).error
    except DECODE_ERRORS:
        return _failure(kind, f"the server refuses with status {response.status_code}.")
    if error.data is not None and error.data.kind is not None:
        return _failure(error.data.kind, error.message)
    return _failure(kind, f"the server refuses: {error.message}")


def _failure(kind: ErrorKind, message: str) -> httpx2.Response:
    error = types.ErrorData(code=types.CONNECTION_CLOSED, message=message, data={KIND_KEY: kind})
    body = types.JSONRPCError(jsonrpc="2.0", id=None, error=error)
    return httpx2.Response(
        503, headers={"content-type": "application/json"}, content=body.model_dump_json(by_alias=True)
    )


def progress_relay(sink: ProgressSink) -> ProgressFnT:
    """Return the callback of the SDK that passes progress on."""

    async def report(progress: float, total: float | None, message: str | None) -> None:
        sink(progress, total, message)

    return report
