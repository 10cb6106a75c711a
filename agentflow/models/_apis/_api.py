"""What one family of endpoints is spoken to with."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from agentflow.models._answer_format import AnswerFormat
from agentflow.models._protocol import Message, Sampling, ToolCall, ToolSpec
from agentflow.trajectory import Tokens, Usage

__all__ = ["AnswerSchema", "ApiAnswer", "HttpRequest", "PreparedCall", "ProviderApi"]


class AnswerSchema(Struct, frozen=True):
    """What an answer is held to."""

    format: AnswerFormat
    """How: by the endpoint, half by it, by the prompt."""
    name: str
    """What is asked for."""
    schema: dict[str, Any]
    """Its JSON schema."""


class PreparedCall(Struct, frozen=True):
    """One call, ready to be written down."""

    model: str
    """As the endpoint calls it."""
    messages: tuple[Message, ...]
    """The conversation."""
    sampling: Sampling
    """How to sample."""
    asked: AnswerSchema | None = None
    """What the answer is held to; `None`: free text."""
    tools: tuple[ToolSpec, ...] = ()
    """What it may call instead."""
    may_call: bool = True
    """It may do so now."""
    tokens: bool = False
    """Its tokens are wanted."""


class HttpRequest(Struct, frozen=True):
    """A request, written down."""

    path: str
    """Where to, after the endpoint's address; or a whole address of another door of the same server."""
    body: bytes
    """What is sent."""
    headers: Mapping[str, str] | None = None
    """What goes along with this one only."""


class ApiAnswer(Struct, frozen=True):
    """What the endpoint answered."""

    text: str
    """The words."""
    finish: str
    """Why they end: `stop`, `length`, `tool_calls`, `content_filter`, or in the endpoint's own words."""
    refusal: str
    """Why there are none, in the model's words."""
    usage: Usage
    """What it consumed."""
    model: str
    """Who answered."""
    calls: tuple[ToolCall, ...] = ()
    """Tools that it wants called."""
    tokens: Tokens | None = None
    """What was read and written, where the endpoint says it."""


class ProviderApi(Protocol):
    """Writes requests and reads answers of one family of endpoints."""

    @property
    def name(self) -> str:
        """What it is called in settings."""
        ...

    def headers(self, key: str) -> dict[str, str]:
        """What goes along with every request.

        :param key: the endpoint's key; empty: none is needed.
        """
        ...

    def encode(self, ask: PreparedCall) -> HttpRequest:
        """Write a request."""
        ...

    def read(self, body: bytes, sent: int) -> ApiAnswer:
        """Read an answer.

        :param sent: the request's length: what an endpoint that counts no tokens is taken to have read.
        :raises msgspec.MsgspecError: if it is none.
        """
        ...
