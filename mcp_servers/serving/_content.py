"""Results, resources and progress of the tool table as MCP sends them."""

import base64
import json
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias
from urllib.parse import parse_qs

import anyio
import mcp_types as types

from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ERROR_KEY, Image, Part, ProgressSink, ResourceLink, TextContent, ToolResult
from mcp_servers.core._sessions import Resource

PENDING = 64
"""Progress reports that may wait for a slow client; further ones are dropped."""


def call_result(result: ToolResult, *, structured: bool = True) -> types.CallToolResult:
    """Convert a tool result: data as structured content and text, parts as content, a failure with its kind.

    :param structured: send structured content; otherwise the data is only in the text.
    """
    text, data = _written(result.data)
    parts = [_part(part) for part in result.parts]
    error = result.error
    if error is None:
        shown = [] if parts and not data else [types.TextContent(text=text)]
        return types.CallToolResult(content=[*shown, *parts], structured_content=data if structured else None)
    message = sound_text(error.message)
    content = [types.TextContent(text=f"{error.kind}: {message}")]
    if data:
        content.append(types.TextContent(text=text))
    detail = {"kind": str(error.kind), "message": message, "data": data}
    return types.CallToolResult(content=[*content, *parts], is_error=True, _meta={ERROR_KEY: detail})


def resource_contents(resource: Resource) -> types.TextResourceContents | types.BlobResourceContents:
    """Convert a kept resource: text types as text, others as a blob."""
    if resource.mime.startswith("text/") or resource.mime.endswith("json"):
        text = resource.data.decode(errors="replace")
        return types.TextResourceContents(uri=resource.uri, mime_type=resource.mime, text=text)
    blob = base64.b64encode(resource.data).decode()
    return types.BlobResourceContents(uri=resource.uri, mime_type=resource.mime, blob=blob)


def kept_resource(uri: str, content: types.TextResourceContents | types.BlobResourceContents) -> Resource:
    """Convert the contents of a resource of another server back."""
    text = isinstance(content, types.TextResourceContents)
    data = content.text.encode() if text else base64.b64decode(content.blob)
    return Resource(uri, uri.rpartition("/")[2], content.mime_type or "", data)


def _part(part: Part) -> types.ContentBlock:
    if isinstance(part, TextContent):
        return types.TextContent(text=sound_text(part.text))
    if isinstance(part, Image):
        return types.ImageContent(data=base64.b64encode(part.data).decode(), mime_type=part.mime)
    return types.ResourceLink(uri=part.uri, name=part.name, mime_type=part.mime, size=part.size)


def _written(data: dict[str, object]) -> tuple[str, dict[str, object]]:
    """Return the data as JSON text and as JSON values, without values that JSON cannot represent."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError:
        data = sound(data)
        text = json.dumps(data, ensure_ascii=False)
    return text, data


def sound(data: Mapping[str, object]) -> dict[str, object]:
    """Return the data without values that JSON cannot represent."""
    return {sound_text(str(key)): _sound_value(member) for key, member in data.items()}


def _sound_value(value: object) -> object:
    """Replace lone surrogates by `?` and non-finite numbers by `null`."""
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_mapping(value):
        return sound(value)
    if is_list_or_tuple(value):
        return [_sound_value(member) for member in value]
    return value


def sound_text(text: str) -> str:
    """Return the text without characters that UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


@asynccontextmanager
async def relayed(
    report: Callable[[float, float | None, str | None], Awaitable[None]],
) -> AsyncGenerator[ProgressSink]:
    """Yield a sink that passes progress to `report` in order; every accepted report is sent before the block is left."""
    send, receive = anyio.create_memory_object_stream[tuple[float, float | None, str | None]](PENDING)

    def sink(done: float, total: float | None, message: str | None) -> None:
        try:
            send.send_nowait((done, total, message))
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # dropping a report is better than delaying the tool, or than failing for a client that has gone

    async def relay() -> None:
        async with receive:
            async for step in receive:
                await report(*step)

    async with anyio.create_task_group() as group:
        group.start_soon(relay)
        with send:
            yield sink


Keep: TypeAlias = Callable[[str, str, bytes], ResourceLink]
"""Keeps data as a resource, by name and MIME type."""

ENVELOPE_BYTES = 4096
"""Space for the JSON-RPC message around a result."""

RANGE_TEMPLATE = "agentflow://{session}/{number}/{name}{?offset,length}"
"""URI template of kept resources and their ranges."""

_RANGE = re.compile(r"(?P<uri>agentflow://[^?]+)\?(?P<query>.*)", re.DOTALL)


def fitted(result: ToolResult, event_bytes: int, *, structured: bool, keep: Keep) -> types.CallToolResult:
    """Convert a tool result to at most one event of `event_bytes`, with links in place of what does not fit.

    The largest images are replaced first. If the rest is still too large, the whole result is kept and the call fails with
    its URI.
    """
    limit = max(event_bytes - ENVELOPE_BYTES, 0)

    def converted(parts: list[Part]) -> tuple[types.CallToolResult, int]:
        whole = call_result(replace(result, parts=tuple(parts)), structured=structured)
        return whole, len(_json(whole))

    parts: list[Part] = list(result.parts)
    whole, size = converted(parts)
    images = [(len(part.data), number, part) for number, part in enumerate(parts) if isinstance(part, Image)]
    for _, number, image in sorted(images, key=lambda entry: entry[:2], reverse=True):
        if size <= limit:
            break
        parts[number] = keep(f"image-{number + 1}.{image.mime.rpartition('/')[2]}", image.mime, image.data)
        whole, size = converted([*parts, TextContent(_note(parts, result.parts))])
    if size <= limit:
        return whole
    link = keep("result.json", "application/json", _json(call_result(result, structured=structured)).encode())
    message = (
        f"the call has {'failed' if result.error else 'finished'}, but its result is too large for an event of this "
        f"connection: read the resource {link.uri} ({link.size} bytes), if necessary in ranges: ?offset=0&length={limit // 2}"
    )
    return call_result(ToolResult.failed(ToolFailure(ErrorKind.FAILED, message), (link,)))


def _note(parts: list[Part], before: tuple[Part, ...]) -> str:
    links = [
        now.uri
        for now, then in zip(parts, before, strict=True)
        if isinstance(now, ResourceLink) and now is not then
    ]
    return f"Too large for this connection, read as resources: {', '.join(links)}"


def _json(result: types.CallToolResult) -> str:
    """Return the result as ASCII, the longest form in which the SDK sends it."""
    return json.dumps(result.model_dump(mode="json", by_alias=True, exclude_none=True))


@dataclass(frozen=True, slots=True)
class ResourceRange:
    """A resource, or a range of its bytes: `URI?offset=0&length=1000000`."""

    uri: str
    """URI of the whole resource."""
    offset: int | None = None
    """First byte; `None` for the whole resource."""
    length: int | None = None
    """Maximum number of bytes; `None`: up to the end."""

    @classmethod
    def parse(cls, uri: str) -> "ResourceRange":
        """Split a URI into that of the resource and the range.

        :raises ValueError: if the range is invalid.
        """
        match = _RANGE.fullmatch(uri)
        if match is None:
            return cls(uri)
        parameters = parse_qs(match["query"], keep_blank_values=True)
        words = {
            name: values[0]
            for name, values in parameters.items()
            if len(values) == 1 and values[0].isdecimal()
        }
        if not parameters or set(words) != set(parameters) or not set(words) <= {"offset", "length"}:
            raise ValueError("Invalid range: use ?offset=BYTES&length=BYTES")
        return cls(
            match["uri"], int(words.get("offset", "0")), int(words["length"]) if "length" in words else None
        )

    def read(self, uri: str, resource: Resource) -> types.TextResourceContents | types.BlobResourceContents:
        """Convert the range of the resource that was asked for as `uri`; a range of an image or of half characters is a blob."""
        if self.offset is None:
            return resource_contents(resource)
        end = None if self.length is None else self.offset + self.length
        part = replace(resource, uri=uri, data=resource.data[self.offset : end])
        try:
            part.data.decode()
        except UnicodeDecodeError:
            contents = resource_contents(replace(part, mime="application/octet-stream"))
        else:
            contents = resource_contents(part)
        return contents.model_copy(
            update={
                "mime_type": resource.mime,
                "meta": {"agentflow/offset": self.offset, "agentflow/size": len(resource.data)},
            }
        )
