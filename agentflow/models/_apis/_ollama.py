"""Ollama's chat API."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from agentflow.models._apis._api import (
    EncodedRequest,
    PreparedCall,
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
from agentflow.models._protocol import Completion, ImagePart, Message, ToolCall, ToolReply


class _Function(Struct):
    name: str
    arguments: dict[str, Any] | str | None = None


class _Called(Struct):
    function: _Function
    id: str = ""


class _Message(Struct):
    content: str = ""
    thinking: str | None = None
    tool_calls: list[_Called] | None = None


class _Answer(Struct):
    message: _Message
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

    def encode(self, call: PreparedCall) -> EncodedRequest:
        """Encode a request."""
        sampling, answer_schema = call.sampling, call.answer_schema
        options = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "num_predict": sampling.max_tokens,
            "seed": sampling.seed,
            "stop": sampling.stop or None,
        }
        fields: dict[str, Any] = {
            "model": call.model,
            "messages": [entry for message in instructed(call) for entry in _messages_of(message)],
            "stream": False,
        }
        if answer_schema is not None and answer_schema.format != "text":
            fields["format"] = answer_schema.schema if answer_schema.format == "json_schema" else "json"
        if chosen_options := without_none(options):
            fields["options"] = chosen_options
        # The API can't list tools and forbid them.
        if call.tools and call.may_call:
            fields["tools"] = [function_tool(tool) for tool in call.tools]
        return EncodedRequest("/api/chat", _ENCODER.encode(merged(fields, sampling.extra)))

    def read(self, body: bytes, sent: int) -> Completion[None]:
        """Decode an answer."""
        answer = _DECODER.decode(body)
        text = answer.message.content
        calls = tuple(
            parse_call(
                tool_call.id or call_id(body, number), tool_call.function.name, tool_call.function.arguments
            )
            for number, tool_call in enumerate(answer.message.tool_calls or ())
        )
        finish = "tool_calls" if calls and answer.done_reason == "stop" else answer.done_reason
        usage, problem = checked_usage(body, _USAGE, sent, text)
        return Completion(
            text=text,
            finish=finish,
            usage=usage,
            model=answer.model,
            calls=calls,
            reasoning=answer.message.thinking or "",
            usage_problem=problem,
        )


def _messages_of(message: Message) -> Iterator[dict[str, Any]]:
    replies = [part for part in message.parts if isinstance(part, ToolReply)]
    for reply in replies:
        yield _chat_message("tool", text_of(reply.parts), reply.parts) | {"tool_name": reply.name}
    calls = [
        {"function": {"name": part.name, "arguments": arguments_object(part)}}
        for part in message.parts
        if isinstance(part, ToolCall)
    ]
    others = [part for part in message.parts if not isinstance(part, ToolReply)]
    if others or not replies:
        chat_message = _chat_message(message.role, text_of(message.parts), message.parts)
        yield {**chat_message, "tool_calls": calls} if calls else chat_message


def _chat_message(role: str, text: str, parts: tuple[Any, ...]) -> dict[str, Any]:
    pictures = [as_base64(part) for part in parts if isinstance(part, ImagePart)]
    return {"role": role, "content": text, **({"images": pictures} if pictures else {})}
