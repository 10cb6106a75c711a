"""The one protocol of language models: a typed call in, a typed completion out."""

from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct, field

from agentflow.trajectory import RoleRequest, Usage

__all__ = ["Call", "Completion", "Image", "Message", "Model", "Part", "Sampling", "Text"]

T = TypeVar("T")


class Text(Struct, frozen=True, tag="text"):
    """A piece of text in a message."""

    text: str
    """The text."""


class Image(Struct, frozen=True, tag="image"):
    """A picture in a message."""

    data: bytes
    """Its bytes."""
    mime: str = "image/png"
    """Its type."""


Part: TypeAlias = Text | Image
"""One piece of a message."""


class Message(Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who says it."""
    parts: tuple[Part, ...]
    """What is said."""


class Sampling(Struct, frozen=True, kw_only=True):
    """How a model samples; what is `None` is left to the endpoint."""

    temperature: float | None = None
    """Higher is more varied."""
    top_p: float | None = None
    """Nucleus sampling."""
    max_tokens: int | None = None
    """The longest answer."""
    seed: int | None = None
    """For endpoints that can repeat themselves."""
    stop: tuple[str, ...] = ()
    """Words that end the answer."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the request body, sent as they are."""


class Call(Struct, Generic[T], frozen=True, kw_only=True):
    """What a model is asked."""

    role: str
    """For whom: `planner`, `verifier`, `generator`; usage is accounted by it."""
    messages: tuple[Message, ...]
    """The conversation."""
    reply: type[T]
    """What the answer is decoded into; `str`: free text."""
    schema: dict[str, Any] | None = None
    """JSON schema that constrains the answer; `None`: that of `reply`."""
    sampling: Sampling | None = None
    """`None`: the engine's own."""
    request: RoleRequest | None = None
    """What the messages were rendered from, for engines that need no prose."""


class Completion(Struct, Generic[T], frozen=True, kw_only=True):
    """What a model answered."""

    value: T
    """The answer, decoded."""
    text: str
    """The answer as it was written."""
    usage: Usage
    """What it consumed, with the answers before it that were not usable."""
    model: str
    """Which model answered, as it says itself."""
    finish: str = "stop"
    """Why it ended: `stop`, `length`, …"""


class Model(Protocol):
    """A language model.

    :raises ModelFailure: by `complete`, after all attempts.
    :raises RunStopped: by `complete`, when a budget is used up or the model can't be used at all any more.
    """

    @property
    def name(self) -> str:
        """What it is called in settings and reports."""
        ...

    @property
    def sees(self) -> bool:
        """It takes pictures."""
        ...

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        ...
