"""Ollama's chat API."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from agentflow.models._answer_format import instruction
from agentflow.models._apis._api import ApiAnswer, EncodedRequest, PreparedCall
from agentflow.models._apis._messages import (
    arguments_text,
    as_base64,
    call_id,
    estimate,
    merged,
    parse_call,
    text_of,
    with_last,
)
from agentflow.models._protocol import ImagePart, Message, ToolCall, ToolReply, ToolSpec
from agentflow.trajectory import Usage


class _Function(Struct):
    name: str
    arguments: dict[str, Any] | str | None = None


class _Called(Struct):
    function: _Function
    id: str = ""


class _Said(Struct):
    content: str = ""
    tool_calls: list[_Called] | None = None


class _Answer(Struct):
    message: _Said
    model: str = ""
    done_reason: str = "stop"
    prompt_eval_count: int | None = None
    eval_count: int | None = None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Answer)


class OllamaApi:
    """Ollama's chat API, without streaming."""

    @property
    def name(self) -> str:
        """Name in settings."""
        return "ollama"

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of every request."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def encode(self, ask: PreparedCall) -> EncodedRequest:
        """Encode a request."""
        sampling, messages, asked = ask.sampling, ask.messages, ask.asked
        if asked is not None and asked.format != "json_schema":
            messages = with_last(messages, instruction(asked.name, asked.schema))
        options = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "num_predict": sampling.max_tokens,
            "seed": sampling.seed,
            "stop": sampling.stop or None,
        }
        fields: dict[str, Any] = {
            "model": ask.model,
            "messages": [said for message in messages for said in _say(message)],
            "stream": False,
        }
        if asked is not None and asked.format != "text":
            fields["format"] = asked.schema if asked.format == "json_schema" else "json"
        if said := {name: value for name, value in options.items() if value is not None}:
            fields["options"] = said
        # The API can't list tools and forbid them.
        if ask.tools and ask.may_call:
            fields["tools"] = [_tool(tool) for tool in ask.tools]
        return EncodedRequest("/api/chat", _ENCODER.encode(merged(fields, sampling.extra)))

    def read(self, body: bytes, sent: int) -> ApiAnswer:
        """Decode an answer."""
        answer = _DECODER.decode(body)
        text = answer.message.content
        calls = tuple(_call(one, body, number) for number, one in enumerate(answer.message.tool_calls or ()))
        finish = "tool_calls" if calls and answer.done_reason == "stop" else answer.done_reason
        usage = estimate(sent, text)
        if answer.eval_count is not None:
            # Cached prompt tokens are not counted by the server.
            usage = Usage(1, answer.prompt_eval_count or 0, answer.eval_count)
        return ApiAnswer(text, finish, "", usage, answer.model, calls)


def _call(one: _Called, body: bytes, number: int) -> ToolCall:
    given = one.function.arguments
    written = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
    return parse_call(one.id or call_id(body, number), one.function.name, written)


def _say(message: Message) -> Iterator[dict[str, Any]]:
    replies = [part for part in message.parts if isinstance(part, ToolReply)]
    for reply in replies:
        yield _said("tool", text_of(reply.parts), reply.parts) | {"tool_name": reply.name}
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    others = [part for part in message.parts if not isinstance(part, ToolReply)]
    if others or not replies:
        said = _said(message.role, text_of(message.parts), message.parts)
        yield {**said, "tool_calls": [_called(call) for call in calls]} if calls else said


def _said(role: str, text: str, parts: tuple[Any, ...]) -> dict[str, Any]:
    pictures = [as_base64(part) for part in parts if isinstance(part, ImagePart)]
    return {"role": role, "content": text, **({"images": pictures} if pictures else {})}


def _called(call: ToolCall) -> dict[str, Any]:
    given = {"written": arguments_text(call)} if call.arguments is None else call.arguments
    return {"function": {"name": call.name, "arguments": given}}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": described}
