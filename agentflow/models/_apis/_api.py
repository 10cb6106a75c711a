"""Protocol of a provider's API, with its provider-neutral requests and answers."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from agentflow.models._answer_format import AnswerFormat, is_json
from agentflow.models._protocol import Message, Sampling, ToolCall, ToolSpec
from agentflow.text import SplitReply, split_reasoning
from agentflow.trace import Tokens, Usage


class AnswerSchema(Struct, frozen=True):
    """Schema that an answer must match."""

    format: AnswerFormat
    """Way to enforce it."""
    name: str
    schema: dict[str, Any]


class PreparedCall(Struct, frozen=True):
    """One call with all its parameters resolved."""

    model: str
    """Name of the model at the endpoint."""
    messages: tuple[Message, ...]
    sampling: Sampling
    answer_schema: AnswerSchema | None = None
    """Schema of the answer; `None` for free text."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may call instead."""
    may_call: bool = True
    """The model may call them now."""
    tokens: bool = False
    """Return prompt and completion tokens."""


class EncodedRequest(Struct, frozen=True):
    """Encoded request."""

    path: str
    """Path after the endpoint's address, or a whole URL on the same server."""
    body: bytes
    headers: Mapping[str, str] | None = None
    """Headers of this request only."""
    on_line: Callable[[bytes], None] | None = None
    """Receives each line of an answer that is sent as events; the returned body is then empty."""


class ApiAnswer(Struct, frozen=True):
    """Decoded answer."""

    text: str
    """Text of the answer."""
    finish: str
    """Reason for its end: `stop`, `length`, `tool_calls`, `content_filter`, or the endpoint's own term."""
    refusal: str
    """The model's reason for a refusal; empty if it answered."""
    usage: Usage
    """Tokens that it cost."""
    model: str
    """Name of the model, as the endpoint reports it."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls."""
    tokens: Tokens | None = None
    """Prompt and completion tokens, if the endpoint returns them."""
    reasoning: str = ""
    """The model's reasoning, if the endpoint returns it."""
    usage_problem: str = ""
    """Reason for estimating the usage although the endpoint reports it; empty: it is as reported, or not reported."""

    def without_reasoning(self) -> Self:
        """Return the answer with all reasoning in `reasoning`, also that in its text."""
        separated = separate_reasoning(self.text)
        if separated.answer == self.text:
            return self
        parts = (self.reasoning, separated.reasoning)
        return replace(self, text=separated.answer, reasoning="\n\n".join(part for part in parts if part))


def separate_reasoning(text: str) -> SplitReply:
    """Separate `<think>…</think>` from the answer in a text.

    A text that is one JSON value is an answer: a tag inside of it is part of a string.
    """
    split = split_reasoning(text)
    if split.answer == text:
        return split
    if is_json(text):
        return SplitReply("", text)
    # Reasoning without an opening tag may mention the tag, or text may precede it.
    before, _, last = text.rpartition("</think>")
    if last.lstrip().startswith(("{", "[", "```")) and not is_json(split.answer) and is_json(last):
        return SplitReply(before.strip(), last.strip())
    return split


class ProviderApi(Protocol):
    """API of a provider: encodes requests and decodes answers."""

    @property
    def name(self) -> str:
        """Name in settings."""
        ...

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of every request.

        :param key: key of the endpoint; empty if none is needed.
        """
        ...

    def encode(self, ask: PreparedCall) -> EncodedRequest:
        """Encode a request."""
        ...

    def read(self, body: bytes, sent: int) -> ApiAnswer:
        """Decode an answer.

        :param sent: length of the request, from which usage is estimated if the endpoint does not count tokens.
        :raises msgspec.MsgspecError: if the body can't be decoded.
        """
        ...
