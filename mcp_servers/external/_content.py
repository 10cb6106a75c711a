"""Texts, schemas and answers of external servers.

They are data, shortened and stripped of invisible characters, never obeyed.
"""

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

import mcp_types as types

from agentflow._typeguards import is_list, is_mapping, is_object
from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._call import ERROR_KEY, CallContext, Image, ResourceLink, TextContent
from mcp_servers.core._running import shown
from mcp_servers.core._sessions import Session
from mcp_servers.external._schema_checker import Checker
from runtimes import JsonLimits, check_json

MAX_DESCRIPTION = 4_000
MAX_TITLE = 100

_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keywords whose members are named by the schema's author, so that `description` among them is a name."""

_VERBATIM = ("const", "enum", "default", "examples", "required")
"""Keywords that hold values, which must not change."""

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Characters that a person cannot see but a model reads, besides those with such a Unicode category."""


def clean(text: str, longest: int = MAX_DESCRIPTION) -> str:
    """Return the text without control and invisible characters, truncated to `longest`."""
    # Truncated first, so that no megabytes are scanned.
    shown = text[: 4 * longest]
    hidden = {ord(character): None for character in set(shown) if not _is_visible(character)}
    shown = shown.translate(hidden).strip()
    return shown if len(shown) <= longest else f"{shown[: longest - 2]} …"


def one_line(text: str, longest: int = 500) -> str:
    """Return the sanitized text on one line."""
    return " ".join(clean(text, longest).split())


def clean_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the schema with sanitized descriptions and titles, otherwise unchanged."""
    cleaned: dict[str, object] = {}
    for key, value in schema.items():
        if key in ("description", "$comment") and isinstance(value, str):
            cleaned[key] = clean(value)
        elif key == "title" and isinstance(value, str):
            cleaned[key] = one_line(value, MAX_TITLE)
        elif key in _VERBATIM:
            cleaned[key] = value
        elif key in _NAMED and is_mapping(value):
            cleaned[key] = {name: _clean_value(member) for name, member in value.items()}
        else:
            cleaned[key] = _clean_value(value)
    return cleaned


def _clean_value(value: object) -> object:
    if is_mapping(value):
        return clean_schema(value)
    if is_list(value):
        return [_clean_value(member) for member in value]
    return value


@lru_cache(maxsize=1 << 16)
def _is_visible(character: str) -> bool:
    if character in "\n\t":
        return True
    category = unicodedata.category(character)
    return category not in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp") and not _INVISIBLE.match(character)


MAX_NAME = 200
MAX_COMPARED = 4
"""Number of texts that are compared with the data."""
MAX_REPEATED = 1024 * 1024
"""Longest text that is compared with the data."""
REPEATED = JsonLimits(4 * MAX_REPEATED, 10_000)


class ContentPresenter:
    """Shows the content of an answer."""

    def __init__(self, context: CallContext, session: Session | None, longest: int) -> None:
        self._context = context
        self._session = session
        self._longest = longest

    def show(self, result: types.CallToolResult) -> None:
        """Show the content; a text that only repeats the data is left out."""
        # At most a few texts are compared: each can hold values that the limit of the message does not count.
        compared = 0
        for block in result.content:
            if isinstance(block, types.TextContent):
                compared += 1
                if compared > MAX_COMPARED or not _repeats(block.text, result.structured_content):
                    self._context.show(TextContent(self._cut(block.text)))
            elif isinstance(block, types.ImageContent | types.AudioContent):
                self._show_bytes(block.data, block.mime_type, "picture")
            elif isinstance(block, types.ResourceLink):
                name, mime = one_line(block.name, MAX_NAME), one_line(block.mime_type or "", MAX_NAME)
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
        mime = one_line(mime, MAX_NAME)
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
            short = one_line(name.rpartition("/")[2] or "data", MAX_NAME)
            self._context.show(self._session.keep(short, mime, data))
        else:
            self._context.show(TextContent(f"[{mime}, {len(data)} bytes: not shown]"))

    def _cut(self, text: str) -> str:
        return shown(text, "text.txt", self._longest, self._session, self._context)


def data_of(where: str, result: types.CallToolResult, check: Checker | None) -> dict[str, object]:
    """Return the data of a result.

    :raises ToolFailure: if the result is an error or violates the tool's output schema.
    """
    structured: object = result.structured_content
    data: dict[str, object] = (
        structured if is_object(structured) else {} if structured is None else {"result": structured}
    )
    if result.is_error:
        raise _failure(where, result, data)
    if check is not None:
        problem = "there is none" if structured is None else check(structured)
        if problem:
            message = f"{where}: the server's data isn't what its own schema says: {problem}"
            raise ToolFailure(ErrorKind.FAILED, message, data)
    return data


def _failure(where: str, result: types.CallToolResult, data: dict[str, object]) -> ToolFailure:
    text = " ".join(block.text for block in result.content if isinstance(block, types.TextContent))
    kind = ErrorKind.FAILED
    detail: object = (result.meta or {}).get(ERROR_KEY)
    if is_mapping(detail):
        # An AgentFlow server includes the kind of the failure and the partial output.
        kind = next((member for member in ErrorKind if member == detail.get("kind")), kind)
        text = str(detail.get("message", text))
        if is_object(partial := detail.get("data")):
            data = partial
    return ToolFailure(kind, f"{where}: {one_line(text) or 'the call failed.'}", data)


def _repeats(text: str, data: object) -> bool:
    if data is None or len(text) > MAX_REPEATED or not text.lstrip().startswith(("{", "[")):
        return False
    try:
        check_json(text.encode(), REPEATED)
        repeated: object = json.loads(text)
        return repeated == data
    except (ValueError, RecursionError):
        return False
