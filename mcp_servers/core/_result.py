"""What a tool call gives back: data, what it showed, and a typed error if it failed."""

from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

from agentflow.errors import ErrorKind

__all__ = ["Image", "Output", "Part", "ResourceLink", "Text", "ToolError", "ToolResult"]


class Output(BaseModel):
    """Base class of what tools return. Attribute docstrings become descriptions in the output schema.

    Fields must be serialisable as JSON. A tool may also return a dataclass or a `typing_extensions.TypedDict`.
    """

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text shown beside the data."""

    text: str
    """The text."""


@dataclass(frozen=True, slots=True)
class Image:
    """A picture shown beside the data."""

    data: bytes
    """Its bytes."""
    mime: str = "image/png"
    """Its type."""


@dataclass(frozen=True, slots=True)
class ResourceLink:
    """A link to something kept whole on the server, see `Session.keep`."""

    uri: str
    """What to read it by."""
    name: str
    """A short name for people."""
    mime: str
    """Its type."""
    size: int
    """Bytes."""


Part: TypeAlias = Text | Image | ResourceLink
"""One thing shown beside the data of a result."""


@dataclass(frozen=True, slots=True)
class ToolError:
    """Why a call failed."""

    kind: ErrorKind
    """The closed kind, to switch on."""
    message: str
    """One line for people and models: what, and how to mend it."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of one call. A program that ran and ended badly is `ok`; its exit code is in `data`."""

    ok: bool
    """The call did what it was asked."""
    data: dict[str, object] = field(default_factory=dict[str, object])
    """What the tool returned, as JSON values; of a failed call what there was of it."""
    error: ToolError | None = None
    """Why it failed; `None` when `ok`."""
    parts: tuple[Part, ...] = ()
    """Images, links and texts, in the order they were shown."""
