"""The one protocol of language models: a typed call in, a typed completion out."""

from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct, field

from agentflow.trajectory import Request, Tokens, Usage

__all__ = [
    "Call",
    "Completion",
    "Image",
    "Message",
    "Model",
    "Part",
    "Sampling",
    "Text",
    "ToolCall",
    "ToolReply",
    "ToolSpec",
]

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


class ToolCall(Struct, frozen=True, tag="call"):
    """A model's wish to have a tool called: a part of an assistant's message."""

    id: str
    """What its reply is known by."""
    name: str
    """The tool."""
    arguments: dict[str, Any] | None
    """What to call it with; `None`: what the model wrote is no JSON object, see `raw_arguments`."""
    raw_arguments: str = ""
    """The arguments as the model wrote them."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the provider wants back with it, as it was."""


class ToolReply(Struct, frozen=True, tag="reply"):
    """What a call gave: a part of a user's message. Every call of the message before has one."""

    call: str
    """The call's id."""
    name: str
    """The tool."""
    parts: tuple[Text | Image, ...]
    """What came back."""
    failed: bool = False
    """The call failed."""


Part: TypeAlias = Text | Image | ToolCall | ToolReply
"""One piece of a message."""


class ToolSpec(Struct, frozen=True):
    """A tool that the model may ask for."""

    name: str
    """Its name, of letters, digits, `_` and `-`."""
    description: str
    """What it does and when to use it."""
    schema: dict[str, Any]
    """JSON schema of its arguments."""


class Message(Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who says it."""
    parts: tuple[Part, ...]
    """What is said."""
    mark: str = ""
    """The mark of the call whose answer it is, `Tokens.mark`; empty: not known. Where conversations are sent as tokens,
    it tells apart answers of the same words."""


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
    request: Request[T] | None = None
    """What the messages were rendered from, for engines that need no prose."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may ask for instead of answering, any number at a time; only where the reply is `str`."""
    may_call: bool = True
    """It may ask for them now. If not, they stand in the prompt because what was said before refers to them."""


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
    """Why it ended: `stop`, `length`, `tool_calls`, …"""
    calls: tuple[ToolCall, ...] = ()
    """Tools that it wants called; the text may be empty then."""
    tokens: Tokens | None = None
    """What was read and written, token by token, where the engine was asked for it."""
    unusable: tuple[Tokens, ...] = ()
    """The same of the answers before it that were not usable."""


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
    def vision(self) -> bool:
        """It takes pictures."""
        ...

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        ...
