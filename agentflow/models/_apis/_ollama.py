"""Ollama's chat API."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from agentflow.models._apis._api import ApiAnswer, EncodedRequest, PreparedCall
from agentflow.models._apis._messages import (
    TokenCount,
    arguments_object,
    as_base64,
    bearer,
    call_id,
    checked_usage,
    function_tool,
    instructed,
    merged,
    parse_call,
    text_of,
    without_none,
)
from agentflow.models._protocol import ImagePart, Message, ToolCall, ToolReply


class _Function(Struct):
    name: str
    arguments: dict[str, Any] | str | None = None


class _Called(Struct):
    function: _Function
    id: str = ""


class _Said(Struct):
    content: str = ""
    thinking: str | None = None
    tool_calls: list[_Called] | None = None


class _Answer(Struct):
    message: _Said
    model: str = ""
    done_reason: str = "stop"


class _Consumed(Struct):
    prompt_eval_count: TokenCount = None
    eval_count: TokenCount = None

    @property
    def totals(self) -> tuple[int, int]:
        # Cached prompt tokens are not counted by the server.
        return self.prompt_eval_count or 0, self.eval_count or 0


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Answer)
_USAGE = msgspec.json.Decoder(_Consumed | None)


class OllamaApi:
    """Ollama's chat API, without streaming."""

    name = "ollama"
    """Name in settings."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of every request."""
        return bearer(key)

    def encode(self, ask: PreparedCall) -> EncodedRequest:
        """Encode a request."""
        sampling, asked = ask.sampling, ask.asked
        options = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "num_predict": sampling.max_tokens,
            "seed": sampling.seed,
            "stop": sampling.stop or None,
        }
        fields: dict[str, Any] = {
            "model": ask.model,
            "messages": [said for message in instructed(ask) for said in _say(message)],
            "stream": False,
        }
        if asked is not None and asked.format != "text":
            fields["format"] = asked.schema if asked.format == "json_schema" else "json"
        if given := without_none(options):
            fields["options"] = given
        # The API can't list tools and forbid them.
        if ask.tools and ask.may_call:
            fields["tools"] = [function_tool(tool) for tool in ask.tools]
        return EncodedRequest("/api/chat", _ENCODER.encode(merged(fields, sampling.extra)))

    def read(self, body: bytes, sent: int) -> ApiAnswer:
        """Decode an answer."""
        answer = _DECODER.decode(body)
        text = answer.message.content
        calls = tuple(
            parse_call(one.id or call_id(body, number), one.function.name, one.function.arguments)
            for number, one in enumerate(answer.message.tool_calls or ())
        )
        finish = "tool_calls" if calls and answer.done_reason == "stop" else answer.done_reason
        usage, problem = checked_usage(body, _USAGE, sent, text)
        thought = answer.message.thinking or ""
        return ApiAnswer(
            text, finish, "", usage, answer.model, calls, reasoning=thought, usage_problem=problem
        )


def _say(message: Message) -> Iterator[dict[str, Any]]:
    replies = [part for part in message.parts if isinstance(part, ToolReply)]
    for reply in replies:
        yield _said("tool", text_of(reply.parts), reply.parts) | {"tool_name": reply.name}
    calls = [
        {"function": {"name": part.name, "arguments": arguments_object(part)}}
        for part in message.parts
        if isinstance(part, ToolCall)
    ]
    others = [part for part in message.parts if not isinstance(part, ToolReply)]
    if others or not replies:
        said = _said(message.role, text_of(message.parts), message.parts)
        yield {**said, "tool_calls": calls} if calls else said


def _said(role: str, text: str, parts: tuple[Any, ...]) -> dict[str, Any]:
    pictures = [as_base64(part) for part in parts if isinstance(part, ImagePart)]
    return {"role": role, "content": text, **({"images": pictures} if pictures else {})}
