"""What the front of a server and its workers say to each other."""

from collections.abc import Callable
from dataclasses import astuple
from typing import Any, Final, TypeAlias, cast

import msgspec

from mcp_servers.core._call import Image, Part, ResourceLink, Text, ToolError, ToolResult
from mcp_servers.core._resource_store import Resource
from mcp_servers.serving._content import sound, sound_text

__all__ = [
    "MESSAGE",
    "Begin",
    "Call",
    "End",
    "Found",
    "Kept",
    "ListKept",
    "Message",
    "Metrics",
    "Read",
    "Refused",
    "Request",
    "Response",
    "Result",
    "Step",
    "To",
    "Waiting",
    "Written",
]


class Begin(msgspec.Struct, tag=True, kw_only=True):
    """To a worker: begin to serve. Answered by `Waiting` until all is warm, or by `Refused`."""

    settings: dict[str, object]
    """The server's settings, without its tokens."""
    scopes: dict[str, list[str]]
    """The backends of each principal that may not use all."""
    number: int
    """Which worker it is, counted from 1."""
    workers: int
    """How many there are: what the whole server may is divided among them."""


class Waiting(msgspec.Struct, tag=True):
    """It serves, and these backends are to be warm and are not yet."""

    backends: list[str]
    """Their names."""


class Refused(msgspec.Struct, tag=True):
    """It can't serve."""

    message: str
    """Why, in one line."""
    configuration: bool
    """The settings are wrong."""


class Request(msgspec.Struct, tag=True, kw_only=True):
    """To a worker: an HTTP request that may come in. Answered by `Response`s."""

    method: str
    """Its method."""
    path: str
    """Its path."""
    query: bytes
    """Its query."""
    headers: list[tuple[bytes, bytes]]
    """Its headers."""
    body: bytes
    """Its whole body."""
    principal: str
    """Who sends it."""


class Response(msgspec.Struct, tag=True, kw_only=True):
    """A piece of the answer to a request."""

    status: int
    """Its status, the same in every piece."""
    headers: list[tuple[bytes, bytes]]
    """Its headers, in the first piece."""
    body: bytes
    """The next part of the body."""
    more: bool
    """There is more to come."""
    sessions: int
    """How many sessions the worker has now."""


class Call(msgspec.Struct, tag=True, kw_only=True):
    """Call a tool, in the worker that has its session. Answered by `Step`s, if they are wanted, and a `Result`."""

    name: str
    """The tool."""
    arguments: dict[str, object]
    """Its arguments."""
    principal: str
    """Who calls."""
    timeout: float | None
    """The longest that it may take."""
    steps: bool
    """Its progress is wanted."""


class Step(msgspec.Struct, tag=True):
    """Progress of a call."""

    done: float
    """What is done."""
    total: float | None
    """All there is to do, if known."""
    message: str | None
    """A line about it."""


class Result(msgspec.Struct, tag=True):
    """The result of a call."""

    data: dict[str, object]
    """Its data."""
    error: ToolError | None
    """Why it failed, if it did."""
    parts: list[tuple[str, list[Any]]]
    """What it showed: the type of each part, and its fields."""

    @classmethod
    def of(cls, result: ToolResult) -> "Result":
        """The message for a result; without what a wire can't carry."""
        error = result.error and ToolError(result.error.kind, sound_text(result.error.message))
        parts = [(type(part).__name__, astuple(part)) for part in result.parts]
        return cls(sound(result.data), error, [(kind, [*map(_sound, part)]) for kind, part in parts])

    def unpacked(self) -> ToolResult:
        """The result."""
        parts = tuple(_PARTS[kind](*fields) for kind, fields in self.parts)
        return ToolResult(self.error is None, self.data, self.error, parts)


class ListKept(msgspec.Struct, tag=True):
    """What do the sessions of a principal keep? Answered by `Kept`."""

    principal: str
    """Whose sessions."""


class Kept(msgspec.Struct, tag=True):
    """What sessions keep."""

    links: list[ResourceLink]
    """Where each thing is, and what."""


class Read(msgspec.Struct, tag=True):
    """Read what a session of a principal keeps. Answered by `Found`."""

    principal: str
    """Whose session."""
    uri: str
    """Where it is."""


class Found(msgspec.Struct, tag=True):
    """Something that a session keeps."""

    resource: Resource | None
    """It, if it is there."""


class Metrics(msgspec.Struct, tag=True):
    """What has a worker counted? Answered by `Written`."""


class Written(msgspec.Struct, tag=True):
    """A text."""

    text: str
    """The text."""


class End(msgspec.Struct, tag=True):
    """To a worker: end every session. Answered by nothing, when it is done."""


class To(msgspec.Struct, tag=True):
    """To the front: ask another worker. Answered as that one answers."""

    worker: int
    """Which; 0: all the others."""
    question: Call | ListKept | Read
    """What."""


Message: TypeAlias = (
    Begin
    | Waiting
    | Refused
    | Request
    | Response
    | Call
    | Step
    | Result
    | ListKept
    | Kept
    | Read
    | Found
    | Metrics
    | Written
    | End
    | To
)
"""Everything that is said."""

MESSAGE: Final = cast("type[Message]", Message)
"""The same, as a value."""


_PARTS: Final[dict[str, Callable[..., Part]]] = {kind.__name__: kind for kind in (Text, Image, ResourceLink)}


def _sound(field: object) -> object:
    return sound_text(field) if isinstance(field, str) else field
