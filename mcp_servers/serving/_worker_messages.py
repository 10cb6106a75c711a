"""Messages between the front process of a server and its workers."""

from typing import TypeAlias

import msgspec

from mcp_servers.core._call import Part, ResourceLink, ToolError, ToolResult
from mcp_servers.core._session import Resource
from mcp_servers.core._shares import ClientQuota
from mcp_servers.serving._content import sound, sound_text


class StartWorker(msgspec.Struct, tag=True, kw_only=True):
    """To a worker: start to serve. Answered by `WarmingUp` until all backends are warm, or by `StartRefused`."""

    settings: dict[str, object]
    """The server's settings, without its tokens."""
    scopes: dict[str, list[str]]
    """Backends of each restricted principal."""
    quotas: dict[str, ClientQuota]
    """Principals among whom the worker is divided, each with its quota in this worker."""
    number: int
    """Number of the worker, counted from 1."""
    workers: int
    """Number of workers, among which the server's limits are divided."""


class WarmingUp(msgspec.Struct, tag=True):
    """The worker serves; these backends are still being warmed up."""

    backends: list[str]
    """Their names."""


class StartRefused(msgspec.Struct, tag=True):
    """The worker cannot serve."""

    message: str
    """The reason, in one line."""
    configuration: bool
    """True if the settings are invalid."""


class ForwardedRequest(msgspec.Struct, tag=True, kw_only=True):
    """To a worker: an admitted HTTP request. Answered by `HttpResponsePart`s."""

    method: str
    """HTTP method."""
    path: str
    """URL path."""
    query: bytes
    """Query string."""
    headers: list[tuple[bytes, bytes]]
    """Headers."""
    body: bytes
    """The whole body."""
    principal: str
    """The sender."""


class HttpResponsePart(msgspec.Struct, tag=True, kw_only=True):
    """A part of the answer to a request."""

    status: int
    """HTTP status, the same in every part."""
    headers: list[tuple[bytes, bytes]]
    """Headers, in the first part only."""
    body: bytes
    """The next part of the body."""
    more: bool
    """True if more parts follow."""
    sessions: int
    """Number of the worker's sessions."""
    full: bool
    """True if the worker has no session left for the sender of the request."""


class ToolCallRequest(msgspec.Struct, tag=True, kw_only=True):
    """A tool call for the worker that owns its session. Answered by `ProgressReport`s, if asked for, and a
    `ToolCallResponse`.
    """

    name: str
    """Name of the tool."""
    arguments: dict[str, object]
    """Arguments of the call."""
    principal: str
    """The caller."""
    timeout: float | None
    """Maximum seconds."""
    steps: bool
    """Send progress."""


class ProgressReport(msgspec.Struct, tag=True):
    """Progress of a call."""

    done: float
    """Amount done."""
    total: float | None
    """Total amount, if known."""
    message: str | None
    """One line about it."""


class ToolCallResponse(msgspec.Struct, tag=True):
    """Result of a call."""

    data: dict[str, object]
    """The data."""
    error: ToolError | None
    """The error of a failed call."""
    parts: list[Part]
    """Parts of the result."""

    @classmethod
    def of(cls, result: ToolResult) -> "ToolCallResponse":
        """Convert a result to a message, without values that JSON cannot represent."""
        error = result.error and ToolError(result.error.kind, sound_text(result.error.message))
        return cls(sound(result.data), error, [_sound_part(part) for part in result.parts])

    def unpacked(self) -> ToolResult:
        """Convert the message back to a result."""
        return ToolResult(self.error is None, self.data, self.error, tuple(self.parts))


class ListResources(msgspec.Struct, tag=True):
    """Request for the resources of a principal's sessions. Answered by `ResourceList`."""

    principal: str
    """Owner of the sessions."""


class ResourceList(msgspec.Struct, tag=True):
    """Resources of sessions."""

    links: list[ResourceLink]
    """Links to the resources."""


class ReadResource(msgspec.Struct, tag=True):
    """Request for one resource of a principal's sessions. Answered by `ResourceContent`."""

    principal: str
    """Owner of the session."""
    uri: str
    """URI of the resource."""


class ResourceContent(msgspec.Struct, tag=True):
    """A resource."""

    resource: Resource | None
    """The resource; `None` if not found."""


class MetricsRequest(msgspec.Struct, tag=True):
    """Request for a worker's metrics. Answered by `MetricsText`."""


class MetricsText(msgspec.Struct, tag=True):
    """Metrics in text form."""

    text: str
    """The text."""


class EndSessions(msgspec.Struct, tag=True):
    """To a worker: end every session. The answer is empty and comes when they have ended."""


class Forward(msgspec.Struct, tag=True):
    """To the front process: forward a request to another worker and return its answer."""

    worker: int
    """Number of the worker; 0: all others."""
    request: ToolCallRequest | ListResources | ReadResource
    """The request."""


Message: TypeAlias = (
    StartWorker
    | WarmingUp
    | StartRefused
    | ForwardedRequest
    | HttpResponsePart
    | ToolCallRequest
    | ProgressReport
    | ToolCallResponse
    | ListResources
    | ResourceList
    | ReadResource
    | ResourceContent
    | MetricsRequest
    | MetricsText
    | EndSessions
    | Forward
)
"""All messages."""


def _sound_part(part: Part) -> Part:
    fields = msgspec.structs.asdict(part).items()
    texts = {name: sound_text(value) for name, value in fields if isinstance(value, str)}
    return msgspec.structs.replace(part, **texts)
