"""A tool call: its context, its result, and the keys that carry both over MCP."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import anyio
import msgspec
from pydantic import BaseModel, ConfigDict

from agentflow._secrets import has_secrets, mask_data, mask_remembered, mask_text
from agentflow._terminal import printable
from agentflow.errors import ErrorKind, ToolFailure

ERROR_KEY: Final = "agentflow/error"
"""Key in the `_meta` of a failed result that holds `kind`, `message` and `data`. They are not in `structuredContent`,
because some clients validate that against the output schema even when the call failed."""

TIMEOUT_KEY: Final = "agentflow/timeout"
"""Key in the `_meta` of a request that holds the call's time limit in seconds."""

KIND_KEY: Final = "agentflow/kind"
"""Key in the `data` of a protocol error that holds the `ErrorKind` of the call."""

HANG_SECONDS: Final = 600.0
"""Default time that a call without a time limit has, beyond that of its program."""

_RESERVE_SHARE = 8
_MAX_RESERVE_SECONDS = 0.5


def seconds_until_hung(spare: float | None, wall_seconds: float | None, *timeouts: object) -> float | None:
    """Return the time after which a call without a time limit counts as hung; `None`: never.

    >>> seconds_until_hung(600, 60, None, 90), seconds_until_hung(600, 60), seconds_until_hung(600, None)
    (690, 660, None)

    :param spare: time beyond that of its program.
    :param wall_seconds: time limit of programs without a timeout.
    :param timeouts: timeouts of its program; the first number counts.
    """
    program = next((timeout for timeout in timeouts if isinstance(timeout, int | float)), wall_seconds)
    return None if spare is None or program is None else spare + max(program, 0)


class Output(BaseModel):
    """Base class of the values that tools return. Attribute docstrings become descriptions in the output schema.

    Fields must be serialisable as JSON. A tool may also return a dataclass or a `typing_extensions.TypedDict`.

    Example::

        class Count(Output):
            lines: int
            \"\"\"Number of lines.\"\"\"
    """

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class TextContent(msgspec.Struct, frozen=True, tag=True):
    """A text shown beside the data."""

    text: str
    """The text."""


class Image(msgspec.Struct, frozen=True, tag=True):
    """An image shown beside the data."""

    data: bytes
    """The encoded image."""
    mime: str = "image/png"
    """Its MIME type."""

    def __repr__(self) -> str:
        return f"Image({self.mime}, {len(self.data):,} bytes)"


class ResourceLink(msgspec.Struct, frozen=True, tag=True):
    """A link to a resource kept on the server; see `Session.keep`."""

    uri: str
    """URI to read it by."""
    name: str
    """A short name for people."""
    mime: str
    """MIME type."""
    size: int
    """Size in bytes."""


Part: TypeAlias = TextContent | Image | ResourceLink
"""One item shown beside the data of a result."""


@dataclass(frozen=True, slots=True)
class ToolError:
    """The reason why a call failed."""

    kind: ErrorKind
    """The typed reason."""
    message: str
    """One line for people and models: what failed, and how to fix it."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call. A program that exits with an error is still `ok`; its exit code is in `data`."""

    ok: bool
    """The call succeeded."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    """The tool's return value as JSON values; after a failure, the partial output."""
    error: ToolError | None = None
    """The reason for a failure; `None` if `ok`."""
    parts: tuple[Part, ...] = ()
    """Images, links and texts, in the order in which they were shown."""
    server_lost: bool = False
    """The server of the tool did not answer, which says nothing about the call."""

    def without_secrets(self) -> "ToolResult":
        """Return the result with the remembered secrets of this process as `***`."""
        if self.error is None and not has_secrets():
            return self
        error = self.error and ToolError(self.error.kind, mask_text(self.error.message))
        parts = tuple(
            TextContent(mask_remembered(part.text)) if isinstance(part, TextContent) else part
            for part in self.parts
        )
        return ToolResult(self.ok, mask_data(self.data), error, parts, self.server_lost)

    @classmethod
    def failed(cls, failure: ToolFailure, parts: tuple[Part, ...] = ()) -> "ToolResult":
        """Return the result of a call that failed."""
        return cls(False, failure.data, ToolError(failure.kind, failure.message), parts)

    def __str__(self) -> str:
        """Return the failure, the data as JSON and a line for each part; images and links without their content."""
        failure = [] if self.error is None else [f"{self.error.kind}: {self.error.message}"]
        data = [json.dumps(self.data, indent=2, ensure_ascii=False, default=str)] if self.data else []
        parts = [part.text if isinstance(part, TextContent) else repr(part) for part in self.parts]
        return "\n".join([*failure, *data, *parts]) or "ok"

    def _repr_png_(self) -> bytes | None:
        """Return the first image, for notebooks."""
        return self._image("image/png")

    def _repr_jpeg_(self) -> bytes | None:
        """Return the first image, for notebooks."""
        return self._image("image/jpeg")

    def _repr_pretty_(self, printer: "_PrettyPrinter", cycle: bool) -> None:
        """Print the result as text, for notebooks."""
        printer.text(printable(str(self)))

    def _image(self, mime: str) -> bytes | None:
        return next((part.data for part in self.parts if isinstance(part, Image) and part.mime == mime), None)


class _PrettyPrinter(Protocol):
    """IPython's printer of texts."""

    def text(self, obj: str) -> None: ...


ProgressSink: TypeAlias = Callable[[float, float | None, str | None], None]
"""Receives progress: the amount done, the total if known, a message. Must not block; may drop reports."""


class CallContext:
    """The context of one call, passed to a tool that has a parameter of this type.

    It is the only place that computes how much time the call has left.
    """

    __slots__ = ("_sink", "deadline", "parts", "principal")

    def __init__(
        self, principal: str, deadline: float | None = None, sink: ProgressSink | None = None
    ) -> None:
        self.principal = principal
        """The caller."""
        self.deadline = deadline
        """Deadline of the call on the event loop's clock (`anyio.current_time()`); `None`: no deadline."""
        self.parts: list[Part] = []
        """Items shown so far."""
        self._sink = sink

    @property
    def wants_progress(self) -> bool:
        """The caller listens to progress."""
        return self._sink is not None

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress. Never blocks; `done` must increase from report to report."""
        if self._sink is not None:
            self._sink(done, total, message)

    def show(self, part: Part) -> None:
        """Add an image, a link or a text to the result; it is kept even if the call fails later."""
        self.parts.append(part)

    def seconds_left(self, at_most: float | None = None) -> float | None:
        """Return the seconds until the deadline, capped at `at_most`; `None` if neither limits the call."""
        if self.deadline is None:
            return at_most
        left = max(self.deadline - anyio.current_time(), 0.0)
        return left if at_most is None else min(left, at_most)

    def run_seconds(self, at_most: float | None = None) -> float | None:
        """Return the time limit for a program run by this call, capped at `at_most`.

        It ends before the deadline (by an eighth of the time left, at most 0.5 s), so that output can still be returned.
        """
        left = self.seconds_left()
        if left is None:
            return at_most
        left -= min(left / _RESERVE_SHARE, _MAX_RESERVE_SECONDS)
        return left if at_most is None else min(at_most, left)
