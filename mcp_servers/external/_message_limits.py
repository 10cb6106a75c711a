"""Limits of messages from external servers: size and values before decoding, tools and content after it."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import Context
from types import TracebackType
from typing import Any, Self

import httpx2
import mcp_types as types
from mcp.client._transport import ReadStream
from mcp.shared.message import SessionMessage

from agentflow._typeguards import is_list
from mcp_servers.external._settings import MountSettings
from runtimes import MIB, FrameError, JsonLimits, decode_untrusted

EVENTS = "text/event-stream"

Incoming = SessionMessage | Exception
"""Message of a server, or the reason why one could not be read."""

BYTES_PER_VALUE = 160
"""A message may have as many values as this number fits into its maximum size: 104,857 in 16 MiB."""
MAX_BLOCKS = 1_000
"""Maximum number of texts, images and files in one result."""

# In an atomic group, because "\r\n" is one line end.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


def limits_of(settings: MountSettings) -> JsonLimits:
    """Return the limits of one message."""
    return JsonLimits(settings.message_bytes, max(1_000, settings.message_bytes // BYTES_PER_VALUE))


def too_large(limits: JsonLimits) -> str:
    """Return the reason for refusing a message that exceeds the size limit."""
    size = limits.max_bytes
    shown = f"{size // MIB} MiB" if size % MIB == 0 else f"{size:,} bytes"
    return f"a message of more than {shown} (`message_bytes`)"


class BoundedBody(httpx2.AsyncByteStream):
    """Body of an HTTP response that passes on each JSON message only after checking it, and an error instead of a refused one.

    The SDK decodes messages on the event loop and limits only the size of events.
    """

    def __init__(self, response: httpx2.Response, limits: JsonLimits) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._body = response.stream
        self._request = response.request
        self._limits = limits
        headers = response.headers
        self._events = headers.get("content-type", "").lower().startswith(EVENTS)
        self._compressed = headers.pop("content-encoding", "identity") != "identity"
        if self._events:
            # Events are always UTF-8; another encoding would hide line ends.
            headers["content-type"] = EVENTS

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        try:
            if self._compressed:
                raise FrameError("it is compressed although we accept no compression")
            async with aclosing(self._messages()) as messages:
                async for message in messages:
                    await decode_untrusted(
                        _data_of(message) if self._events else message, bytes, self._limits
                    )
                    yield message
        except FrameError as error:
            yield self._refusal(f"the server's answer is refused: {error}")

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()

    async def _messages(self) -> AsyncGenerator[bytes]:
        """Yield each event, or the whole body."""
        pending, searched = bytearray(), 0
        async for data in self._body:
            pending += data
            while self._events and (end := _EVENT_END.search(pending, searched)):
                self._check_size(end.end())
                yield bytes(pending[: end.end()])
                del pending[: end.end()]
                searched = 0
            searched = max(0, len(pending) - 3)
            self._check_size(len(pending))
        yield bytes(pending)

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_bytes:
            raise FrameError(too_large(self._limits))

    def _refusal(self, reason: str) -> bytes:
        """Return an error for the request that waits for this answer, if any."""
        try:
            request = types.jsonrpc_message_adapter.validate_json(self._request.content, by_name=False)
        except ValueError:
            return b""
        if not isinstance(request, types.JSONRPCRequest):
            return b""
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=reason)
        answer = types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
        body = answer.model_dump_json(by_alias=True, exclude_none=True).encode()
        return b"data: " + body + b"\n\n" if self._events else body


def _data_of(event: bytes) -> bytes:
    """Return the data of an event; its other fields are not JSON."""
    return b"\n".join(line[5:] for line in _LINE_END.split(event) if line.startswith(b"data:"))


def bounded_client(
    headers: dict[str, str], timeout: httpx2.Timeout, limits: JsonLimits
) -> httpx2.AsyncClient:
    """Return an HTTP client whose responses are bounded. It accepts no compression, which would hide their size."""

    async def bound(response: httpx2.Response) -> None:
        response.stream = BoundedBody(response, limits)

    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"}, timeout=timeout, event_hooks={"response": [bound]}
    )


class BoundedMessages:
    """Received messages with at most so many tools and pieces of content: the SDK validates each of them, twice."""

    def __init__(self, messages: ReadStream[Incoming], settings: MountSettings) -> None:
        self._messages = messages
        self._max_tools = settings.max_tools

    @property
    def last_context(self) -> Context | None:
        """Context of the sender of the last message, which the SDK looks up."""
        return getattr(self._messages, "last_context", None)

    async def receive(self) -> Incoming:
        """Return the next message."""
        return self._bounded(await self._messages.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._messages.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        return self._bounded(await self._messages.__anext__())

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._messages.__aexit__(exc_type, exc_val, exc_tb)

    def _bounded(self, item: Incoming) -> Incoming:
        if not isinstance(item, SessionMessage) or not isinstance(item.message, types.JSONRPCResponse):
            return item
        result: dict[str, Any] = item.message.result
        if is_list(tools := result.get("tools")) and len(tools) > self._max_tools:
            error = types.ErrorData(code=types.INTERNAL_ERROR, message=too_many_tools(self._max_tools))
            return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=item.message.id, error=error))
        if is_list(content := result.get("content")) and len(content) > MAX_BLOCKS:
            left_out = f"[{len(content) - MAX_BLOCKS} more pieces of content are left out]"
            result["content"] = [*content[:MAX_BLOCKS], {"type": "text", "text": left_out}]
        return item


def too_many_tools(limit: int) -> str:
    """Return the reason for refusing a list of tools."""
    return f"it lists more than {limit:,} tools (`max_tools`)"
