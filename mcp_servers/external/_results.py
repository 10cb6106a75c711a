"""Conversion of an external server's answers to results."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import cast

import mcp_types as types

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ERROR_KEY, CallContext, Image, ResourceLink, TextContent
from mcp_servers.core._session import Session
from mcp_servers.external._sanitize import one_line
from mcp_servers.external._schema_checker import Checker

LONGEST_NAME = 200


class ContentPresenter:
    """Shows the content of an answer."""

    def __init__(self, context: CallContext, session: Session | None, longest: int) -> None:
        self._context = context
        self._session = session
        self._longest = longest

    def show(self, result: types.CallToolResult) -> None:
        """Show the content; a text that only repeats the data is left out."""
        for block in result.content:
            if isinstance(block, types.TextContent):
                if not _repeats(block.text, result.structured_content):
                    self._context.show(TextContent(self._cut(block.text)))
            elif isinstance(block, types.ImageContent | types.AudioContent):
                self._show_bytes(block.data, block.mime_type, "picture")
            elif isinstance(block, types.ResourceLink):
                name, mime = one_line(block.name, LONGEST_NAME), one_line(block.mime_type or "", LONGEST_NAME)
                self._context.show(ResourceLink(str(block.uri), name, mime, block.size or 0))
            else:
                self._show_resource(block.resource)

    def _show_resource(self, resource: types.TextResourceContents | types.BlobResourceContents) -> None:
        if isinstance(resource, types.TextResourceContents):
            self._context.show(TextContent(self._cut(resource.text)))
        else:
            self._show_bytes(
                resource.blob, resource.mime_type or "application/octet-stream", str(resource.uri)
            )

    def _show_bytes(self, encoded: str, mime: str, name: str) -> None:
        mime = one_line(mime, LONGEST_NAME)
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            self._context.show(TextContent(f"[{mime}: the server's base64 is broken]"))
            return
        if mime.startswith("image/"):
            self._context.show(Image(data, mime))
        elif mime.startswith("text/"):
            self._context.show(TextContent(self._cut(data.decode(errors="replace"))))
        elif self._session is not None:
            short = one_line(name.rpartition("/")[2] or "data", LONGEST_NAME)
            self._context.show(self._session.keep(short, mime, data))
        else:
            self._context.show(TextContent(f"[{mime}, {len(data)} bytes: not shown]"))

    def _cut(self, text: str) -> str:
        if len(text) <= self._longest:
            return text
        half = self._longest // 2
        left_out = f"{len(text) - 2 * half} of {len(text)} characters left out"
        if self._session is not None:
            link = self._session.keep("text.txt", "text/plain", text.encode("utf-8", "replace"))
            self._context.show(link)
            left_out += f"; the whole is at {link.uri}"
        return f"{text[:half]}\n… {left_out} …\n{text[-half:]}"


def data_of(where: str, result: types.CallToolResult, check: Checker | None) -> dict[str, object]:
    """Return the data of a result.

    :raises ToolFailure: if the result is an error or violates the tool's output schema.
    """
    given: object = result.structured_content
    data = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    if given is not None and not isinstance(given, dict):
        data = {"result": given}
    if result.is_error:
        raise _failure(where, result, data)
    if check is not None:
        wrong = "there is none" if given is None else check(cast("object", given))
        if wrong:
            message = f"{where}: the server's data isn't what its own schema says: {wrong}"
            raise ToolFailure(ErrorKind.FAILED, message, data)
    return data


def _failure(where: str, result: types.CallToolResult, data: dict[str, object]) -> ToolFailure:
    text = " ".join(block.text for block in result.content if isinstance(block, types.TextContent))
    kind = ErrorKind.FAILED
    told: object = (result.meta or {}).get(ERROR_KEY)
    if isinstance(told, Mapping):
        # An AgentFlow server includes the kind of the failure and the partial output.
        detail = cast("Mapping[str, object]", told)
        kind = next((known for known in ErrorKind if known == detail.get("kind")), kind)
        text = str(detail.get("message", text))
        if isinstance(kept := detail.get("data"), dict):
            data = cast("dict[str, object]", kept)
    return ToolFailure(kind, f"{where}: {one_line(text) or 'the call failed.'}", data)


def _repeats(text: str, data: object) -> bool:
    if data is None or not text.lstrip().startswith(("{", "[")):
        return False
    try:
        return cast("object", json.loads(text)) == data
    except (ValueError, RecursionError):
        return False
