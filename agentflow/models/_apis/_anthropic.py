"""Anthropic's Messages API."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from agentflow.models._answer_format import instruction
from agentflow.models._apis._api import (
    AnswerSchema,
    EncodedRequest,
    PreparedCall,
    TokenCount,
    arguments_object,
    as_base64,
    checked_usage,
    is_closed,
    merged,
    parse_call,
    simplified,
    split_system,
    state_of,
    with_last,
    without_none,
)
from agentflow.models._protocol import Completion, ImagePart, Message, Part, TextPart, ToolCall, ToolReply

_VERSION = "2026-10-21"
_WITH_SAMPLING = {"anthropic-version": "2023-06-01"}
"""Last version that accepts a temperature."""
_MAX_ANSWER_TOKENS = 8192
"""Maximum length of an answer where nothing sets it; the API requires one."""
_ANSWER = "give_answer"
"""Name of the tool whose arguments are the answer, for schemas that can't be compiled to a grammar."""
_THOUGHTS = "thoughts"
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class _Block(Struct):
    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Consumed(Struct):
    input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0
    cache_creation_input_tokens: TokenCount = None
    cache_read_input_tokens: TokenCount = None

    @property
    def totals(self) -> tuple[int, int]:
        read = (self.input_tokens, self.cache_creation_input_tokens, self.cache_read_input_tokens)
        return sum(tokens or 0 for tokens in read), self.output_tokens or 0


class _Details(Struct):
    explanation: str | None = None


class _Answer(Struct):
    content: list[msgspec.Raw]
    model: str = ""
    stop_reason: str | None = None
    stop_details: _Details | None = None
    usage: msgspec.Raw = msgspec.Raw()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Answer)
_USAGE = msgspec.json.Decoder(_Consumed | None)
_BLOCK = msgspec.json.Decoder(_Block)


class AnthropicApi:
    """Anthropic's Messages API."""

    name = "anthropic"
    """Name in settings."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of every request."""
        return {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {})}

    def encode(self, call: PreparedCall) -> EncodedRequest:
        """Encode a request."""
        sampling, messages = call.sampling, call.messages
        schema_fields = _schema_fields(call.answer_schema) if call.answer_schema is not None else {}
        if call.answer_schema is not None and not schema_fields:
            messages = with_last(messages, instruction(call.answer_schema.name, call.answer_schema.schema))
        system, others = split_system(messages)
        fields = without_none(
            {
                "model": call.model,
                "max_tokens": sampling.max_tokens or _MAX_ANSWER_TOKENS,
                "messages": [_message_fields(message) for message in others],
                "system": system or None,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "stop_sequences": sampling.stop or None,
                "tools": [_tool(tool.name, tool.description, tool.schema) for tool in call.tools] or None,
                "tool_choice": {"type": "none"} if call.tools and not call.may_call else None,
                **schema_fields,
            }
        )
        sampled = sampling.temperature is not None or sampling.top_p is not None
        body = _ENCODER.encode(merged(fields, sampling.extra))
        return EncodedRequest("/messages", body, _WITH_SAMPLING if sampled else None)

    def read(self, body: bytes, sent: int) -> Completion[None]:
        """Decode an answer."""
        answer = _DECODER.decode(body)
        texts: list[str] = []
        calls: list[ToolCall] = []
        thoughts: list[Any] = []
        reasoning: list[str] = []
        for raw in answer.content:
            block = _BLOCK.decode(raw)
            match block.type:
                case "text":
                    texts.append(block.text)
                case "tool_use" if block.name == _ANSWER:
                    texts.append(bytes(block.input).decode())
                case "tool_use":
                    state = {_THOUGHTS: list(thoughts)} if thoughts and not calls else {}
                    calls.append(parse_call(block.id, block.name, bytes(block.input).decode(), state))
                case "thinking" | "redacted_thinking":
                    thoughts.append(msgspec.json.decode(raw))
                    reasoning.append(block.thinking)
                case _:
                    pass
        text = "".join(texts)
        finish = _FINISH.get(answer.stop_reason or "end_turn", answer.stop_reason or "")
        if finish == "tool_calls" and not calls:
            finish = "stop"
        explanation = answer.stop_details.explanation if answer.stop_details else None
        refusal = (explanation or "") if finish == "content_filter" else ""
        usage, problem = checked_usage(answer.usage, _USAGE, sent, text)
        return Completion(
            text=text,
            finish=finish,
            refusal=refusal,
            usage=usage,
            model=answer.model,
            calls=tuple(calls),
            reasoning="\n\n".join(filter(None, reasoning)),
            usage_problem=problem,
        )


def _schema_fields(answer_schema: AnswerSchema) -> dict[str, Any]:
    """Return the fields that enforce a schema: as a grammar if possible, else as the arguments of a tool."""
    if answer_schema.format == "text":
        return {}
    if answer_schema.format == "json_schema" and is_closed(answer_schema.schema):
        return {
            "output_config": {"format": {"type": "json_schema", "schema": simplified(answer_schema.schema)}}
        }
    tool = _tool(_ANSWER, f"Give the {answer_schema.name}.", answer_schema.schema)
    return {"tools": [tool], "tool_choice": {"type": "tool", "name": _ANSWER}}


def _tool(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": description, "input_schema": schema}


def _message_fields(message: Message) -> dict[str, Any]:
    parts = message.parts
    if len(parts) == 1 and isinstance(part := parts[0], TextPart):
        return {"role": message.role, "content": part.text}
    # The API wants thoughts first, and tool results before other user content.
    thoughts: list[Any] = state_of(parts, _THOUGHTS) or []
    ordered = sorted(parts, key=lambda part: not isinstance(part, ToolReply))
    return {"role": message.role, "content": [*thoughts, *_blocks(ordered)]}


def _blocks(parts: list[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        match part:
            case TextPart(text=""):
                # Empty texts are refused.
                continue
            case TextPart(text=text):
                yield {"type": "text", "text": text}
            case ImagePart():
                source = {"type": "base64", "media_type": part.mime, "data": as_base64(part)}
                yield {"type": "image", "source": source}
            case ToolCall():
                yield {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments_object(part)}
            case ToolReply():
                content = list(_blocks(list(part.parts)))
                reply: dict[str, Any] = {"type": "tool_result", "tool_use_id": part.call, "content": content}
                yield {**reply, "is_error": True} if part.failed else reply
