"""Conversion from MCP to the results of the in-process tool table."""

import base64
from collections.abc import Mapping
from typing import TypedDict, cast

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox._transport import KIND_KEY
from mcp_servers import Image, ResourceLink, TextContent, Tool, ToolError, ToolResult
from mcp_servers.core import CARD_KEY, ERROR_KEY, UNUSABLE_KEY, Hints, Part

_KINDS = {
    types.REQUEST_TIMEOUT: ErrorKind.TIMEOUT,
    types.CONNECTION_CLOSED: ErrorKind.UNAVAILABLE,
    types.METHOD_NOT_FOUND: ErrorKind.UNAVAILABLE,
    types.INVALID_PARAMS: ErrorKind.BAD_ARGUMENTS,
}
"""Kinds of failures for the protocol's error codes."""


def tool_result(result: types.CallToolResult) -> ToolResult:
    """Return the result of a call."""
    data = cast("dict[str, object]", result.structured_content or {})
    if not result.is_error:
        return ToolResult(True, data, None, _parts(result.content, skip=_texts_of_data(result, data)))
    detail = (result.meta or {}).get(ERROR_KEY)
    if isinstance(detail, dict):
        known = cast("dict[str, object]", detail)
        data = cast("dict[str, object]", known.get("data", {}))
        error = ToolError(ErrorKind(str(known["kind"])), str(known["message"]))
        return ToolResult(False, data, error, _parts(result.content, skip=2 if data else 1))
    # An external server: treat all of its content as text.
    message = " ".join(block.text for block in result.content if isinstance(block, types.TextContent))
    return ToolResult(False, data, ToolError(ErrorKind.FAILED, message or "the call failed."))


def failure_of(error: MCPError, where: str) -> ToolFailure:
    """Return the failure that a protocol error means."""
    data: object = error.data
    if isinstance(data, dict) and KIND_KEY in data:
        kind = ErrorKind(str(cast("dict[str, object]", data)[KIND_KEY]))
    else:
        kind = _KINDS.get(error.code, ErrorKind.FAILED)
    return ToolFailure(kind, f"{where}: {error.message}")


def tool_of(listed: types.Tool) -> Tool:
    """Return a server's tool definition. It is called through its host."""
    family, _, verb = listed.name.partition("_")
    properties = cast("dict[str, object]", listed.input_schema.get("properties", {}))
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
        dump=lambda value: cast("dict[str, object]", value),
        session_parameter="session" if "session" in properties else None,
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
