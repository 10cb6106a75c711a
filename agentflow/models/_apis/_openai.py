"""OpenAI's chat completions API, which most providers and engines have, with Azure's variant."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from agentflow.models._answer_format import response_format
from agentflow.models._apis._api import (
    EncodedRequest,
    PreparedCall,
    TokenCount,
    arguments_text,
    as_base64,
    bearer,
    call_id,
    checked_usage,
    function_tool,
    instructed,
    parse_call,
    state_of,
    text_of,
    without_none,
)
from agentflow.models._protocol import Completion, ImagePart, Message, TextPart, ToolCall, ToolReply
from agentflow.trace import Tokens

_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields in which endpoints return a model's reasoning; some expect it back with the calls that followed."""


class _Address(Struct):
    url: str


class _TextPart(Struct, tag="text"):
    text: str


class _ImagePart(Struct, tag="image_url"):
    image_url: _Address


class _Function(Struct):
    name: str = ""
    arguments: str | dict[str, Any] | None = None


class _Called(Struct, kw_only=True):
    id: str | None = None
    type: str = "function"
    function: _Function


class ChatMessage(Struct, omit_defaults=True):
    """A message of this API."""

    role: str
    content: str | list[_TextPart | _ImagePart]
    tool_calls: list[_Called] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Piece(Struct):
    type: str = ""
    text: str = ""
    thinking: "str | list[_Piece]" = ""

    @property
    def thought(self) -> str:
        return (
            self.thinking if isinstance(self.thinking, str) else "".join(part.text for part in self.thinking)
        )


class AnswerMessage(Struct):
    """Message of an answer."""

    content: str | list[_Piece] | None = None
    refusal: str | None = None
    tool_calls: list[_Called] | None = None
    reasoning_content: object = None
    reasoning: object = None

    @property
    def text(self) -> str:
        """The answer; Mistral splits it into pieces."""
        if isinstance(self.content, list):
            return "".join(piece.text for piece in self.content if piece.type == "text")
        return self.content or ""

    @property
    def thoughts(self) -> str:
        """The reasoning; endpoints that return it twice return the same text."""
        pieces = self.content if isinstance(self.content, list) else ()
        thoughts = (self.reasoning_content, self.reasoning, "".join(piece.thought for piece in pieces))
        return next((text for text in thoughts if isinstance(text, str) and text.strip()), "")


class _TokenLogprob(Struct):
    logprob: float


class AnswerLogprobs(Struct):
    """Log-probabilities of sampled tokens, in either of the forms of OpenAI's APIs."""

    content: list[_TokenLogprob] | None = None
    token_logprobs: list[float] | None = None

    @property
    def values(self) -> list[float]:
        """One for each token."""
        return self.token_logprobs or [chance.logprob for chance in self.content or ()]


class _Choice(Struct):
    message: AnswerMessage
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: AnswerLogprobs | None = None


class _Consumed(Struct):
    """Tokens that an endpoint counted."""

    prompt_tokens: TokenCount = 0
    completion_tokens: TokenCount = 0

    @property
    def totals(self) -> tuple[int, int]:
        """Prompt and completion tokens."""
        return self.prompt_tokens or 0, self.completion_tokens or 0


class _Answer(Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: msgspec.Raw = msgspec.Raw()
    prompt_token_ids: list[int] | None = None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Answer)
_USAGE = msgspec.json.Decoder(_Consumed | None)


class OpenAiApi:
    """Chat completions API."""

    name = "openai"
    """Name in settings."""

    def __init__(self, max_tokens_field: str = "max_tokens") -> None:
        """:param max_tokens_field: name of the `max_tokens` field at this endpoint."""
        self._max_tokens_field = max_tokens_field

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of every request."""
        return bearer(key)

    def encode(self, call: PreparedCall) -> EncodedRequest:
        """Encode a request."""
        sampling, answer_schema = call.sampling, call.answer_schema
        fields = without_none(
            {
                "model": call.model,
                "messages": chat_messages(instructed(call)),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                self._max_tokens_field: sampling.max_tokens,
                "seed": sampling.seed,
                "stop": sampling.stop or None,
                "response_format": response_format(
                    answer_schema.format, answer_schema.name, answer_schema.schema
                )
                if answer_schema
                else None,
                "tools": [function_tool(tool) for tool in call.tools] or None,
                "tool_choice": "none" if call.tools and not call.may_call else None,
            }
        )
        if call.tokens:
            # 0 alternatives besides the sampled token.
            fields |= {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
        return EncodedRequest(self.path(call.model), _ENCODER.encode({**fields, **sampling.extra}))

    def path(self, model: str) -> str:
        """Return the path of requests for a model."""
        del model
        return "/chat/completions"

    def read(self, body: bytes, sent: int) -> Completion[None]:
        """Decode an answer."""
        answer = _DECODER.decode(body)
        if not answer.choices:
            raise msgspec.ValidationError("no choices")
        choice = answer.choices[0]
        message = choice.message
        text = message.text
        usage, problem = checked_usage(answer.usage, _USAGE, sent, text)
        finish = choice.finish_reason or "stop"
        tokens = None
        if choice.token_ids is not None:
            tokens = tokens_of(answer.prompt_token_ids, choice.token_ids, choice.logprobs, finish)
        calls = _calls(message, body) if message.tool_calls else ()
        if calls and finish != "length":
            finish = "tool_calls"
        return Completion(
            text=text,
            finish=finish,
            refusal=message.refusal or "",
            usage=usage,
            model=answer.model or "",
            calls=calls,
            tokens=tokens,
            reasoning=message.thoughts,
            usage_problem=problem,
        )


class AzureApi(OpenAiApi):
    """Chat completions API of Azure deployments."""

    name = "azure"
    """Name in settings."""

    def __init__(self, version: str = "") -> None:
        """:param version: dated version of the API; empty for the undated one."""
        super().__init__("max_completion_tokens")
        self._version = version

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of every request."""
        return {"api-key": key} if key else {}

    def path(self, model: str) -> str:
        """Return the path of requests for a deployment."""
        if not self._version:
            return "/openai/v1/chat/completions"
        return f"/openai/deployments/{model}/chat/completions?api-version={self._version}"


def chat_messages(messages: Iterable[Message]) -> list[ChatMessage]:
    """Return a conversation as the messages of this API."""
    return [chat_message for message in messages for chat_message in _split_message(message)]


def _split_message(message: Message) -> Iterator[ChatMessage]:
    """Split a message with tool calls or results into the several messages of this API."""
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    if calls:
        thoughts = {name: state_of(calls, name) for name in _THOUGHTS}
        thoughts["reasoning"] = message.reasoning or thoughts["reasoning"]
        called = [_Called(id=call.id, function=_Function(call.name, arguments_text(call))) for call in calls]
        yield ChatMessage(message.role, text_of(message.parts), called, **thoughts)
        return
    shown: list[TextPart | ImagePart] = []
    replies = [part for part in message.parts if isinstance(part, ToolReply)]
    for reply in replies:
        yield ChatMessage("tool", text_of(reply.parts), tool_call_id=reply.call)
        # Tool messages hold text only: images follow in a user message.
        pictures = [part for part in reply.parts if isinstance(part, ImagePart)]
        shown += [TextPart(f"Pictures from {reply.name}:"), *pictures] if pictures else []
    shown += [part for part in message.parts if isinstance(part, TextPart | ImagePart)]
    if shown or not replies:
        yield ChatMessage(message.role, _content(shown), reasoning=message.reasoning or None)


def _content(parts: list[TextPart | ImagePart]) -> str | list[_TextPart | _ImagePart]:
    if not any(isinstance(part, ImagePart) for part in parts):
        # Text-only endpoints want a plain string.
        return text_of(parts)
    return [
        _TextPart(part.text)
        if isinstance(part, TextPart)
        else _ImagePart(_Address(f"data:{part.mime};base64,{as_base64(part)}"))
        for part in parts
    ]


def _calls(message: AnswerMessage, body: bytes) -> tuple[ToolCall, ...]:
    """Return the tool calls; the first one keeps the model's thoughts."""
    tool_calls: list[ToolCall] = []
    thoughts = {name: getattr(message, name) for name in _THOUGHTS if getattr(message, name)}
    for number, tool_call in enumerate(message.tool_calls or ()):
        identifier, state = tool_call.id or call_id(body, number), {} if number else thoughts
        tool_calls.append(
            parse_call(identifier, tool_call.function.name, tool_call.function.arguments, state)
        )
    return tuple(tool_calls)


def tokens_of(
    prompt: Sequence[int] | None,
    sampled: Sequence[int] | None,
    logprobs: AnswerLogprobs | None,
    finish: str,
    versions: tuple[tuple[str, int, int], ...] = (),
) -> Tokens:
    """Return the tokens of an answer.

    :raises msgspec.ValidationError: if some are missing.
    """
    values = (logprobs or AnswerLogprobs()).values
    if not prompt or sampled is None or len(sampled) != len(values):
        counts = f"{len(sampled or ())} tokens and {len(values)} log-probabilities"
        raise msgspec.ValidationError(f"{counts}{'' if prompt else ', and no prompt tokens'}")
    return Tokens(
        prompt=tuple(prompt),
        sampled=tuple(sampled),
        logprobs=tuple(values),
        # The oldest one: staleness is computed from it.
        version=versions[0][0] if versions else "",
        versions=versions,
        finish=finish,
    )
