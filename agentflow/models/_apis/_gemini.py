"""Gemini's `generateContent`."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from agentflow.models._apis._api import (
    EncodedRequest,
    PreparedCall,
    TokenCount,
    arguments_object,
    as_base64,
    call_id,
    checked_usage,
    instructed,
    merged,
    split_system,
    text_of,
    without_const,
    without_none,
)
from agentflow.models._protocol import Completion, ImagePart, Message, Part, TextPart, ToolCall, ToolReply

_SIGNATURE = "thoughtSignature"
_FINISH = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
}


class _Called(Struct):
    name: str = ""
    args: dict[str, Any] | None = None
    id: str | None = None


class _Part(Struct, rename="camel"):
    text: str | None = None
    thought: bool = False
    function_call: _Called | None = None
    thought_signature: str | None = None


class _Content(Struct):
    parts: list[_Part] | None = None


class _Candidate(Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None


class _Consumed(Struct, rename="camel"):
    prompt_token_count: TokenCount = 0
    candidates_token_count: TokenCount = 0
    thoughts_token_count: TokenCount = 0

    @property
    def totals(self) -> tuple[int, int]:
        return self.prompt_token_count or 0, (self.candidates_token_count or 0) + (
            self.thoughts_token_count or 0
        )


class _Answer(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: msgspec.Raw = msgspec.Raw()
    model_version: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Answer)
_USAGE = msgspec.json.Decoder(_Consumed | None)


class GeminiApi:
    """Gemini's `generateContent` API."""

    name = "gemini"
    """Name in settings."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of every request."""
        return {"x-goog-api-key": key} if key else {}

    def encode(self, call: PreparedCall) -> EncodedRequest:
        """Encode a request."""
        sampling, answer_schema = call.sampling, call.answer_schema
        format = answer_schema.format if answer_schema is not None else "text"
        system, others = split_system(instructed(call))
        config = {
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "maxOutputTokens": sampling.max_tokens,
            "seed": sampling.seed,
            "stopSequences": sampling.stop or None,
            "responseMimeType": "application/json" if format != "text" else None,
            "responseJsonSchema": without_const(answer_schema.schema)
            if answer_schema and format == "json_schema"
            else None,
        }
        fields: dict[str, Any] = {"contents": [_content_fields(message) for message in others]}
        if system:
            fields["systemInstruction"] = {"parts": [{"text": system}]}
        if generation := without_none(config):
            fields["generationConfig"] = generation
        if call.tools:
            declared = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parametersJsonSchema": without_const(tool.schema),
                }
                for tool in call.tools
            ]
            fields["tools"] = [{"functionDeclarations": declared}]
            if not call.may_call:
                fields["toolConfig"] = {"functionCallingConfig": {"mode": "NONE"}}
        path = f"/models/{quote(call.model, safe='')}:generateContent"
        return EncodedRequest(path, _ENCODER.encode(merged(fields, sampling.extra)))

    def read(self, body: bytes, sent: int) -> Completion[None]:
        """Decode an answer."""
        answer = _DECODER.decode(body)
        first = answer.candidates[0] if answer.candidates else None
        parts = (first.content.parts if first is not None and first.content is not None else None) or []
        text = "".join(part.text or "" for part in parts if not part.thought)
        reasoning = "".join(part.text or "" for part in parts if part.thought)
        usage, problem = checked_usage(answer.usage_metadata, _USAGE, sent, text)
        if first is None:
            if answer.prompt_feedback is None or answer.prompt_feedback.block_reason is None:
                raise msgspec.ValidationError("no candidates")
            blocked = f"the prompt was blocked: {answer.prompt_feedback.block_reason}"
            return Completion(
                finish="content_filter",
                refusal=blocked,
                usage=usage,
                model=answer.model_version,
                usage_problem=problem,
            )
        calls = tuple(_calls(parts, body))
        finish = _FINISH.get(first.finish_reason or "STOP", (first.finish_reason or "").lower())
        if calls and finish == "stop":
            finish = "tool_calls"
        refusal = first.finish_message or first.finish_reason or "" if finish == "content_filter" else ""
        return Completion(
            text=text,
            finish=finish,
            refusal=refusal,
            usage=usage,
            model=answer.model_version,
            calls=calls,
            reasoning=reasoning,
            usage_problem=problem,
        )


def _calls(parts: list[_Part], body: bytes) -> Iterator[ToolCall]:
    for number, part in enumerate(parts):
        if (call := part.function_call) is not None:
            arguments = call.args or {}
            raw_arguments = msgspec.json.encode(arguments).decode()
            # The API refuses later turns without the signature.
            state = {_SIGNATURE: part.thought_signature} if part.thought_signature else {}
            yield ToolCall(call.id or call_id(body, number), call.name, arguments, raw_arguments, state)


def _content_fields(message: Message) -> dict[str, Any]:
    role = "model" if message.role == "assistant" else "user"
    return {"role": role, "parts": list(_parts(message.parts))}


def _parts(parts: tuple[Part, ...]) -> Iterator[dict[str, Any]]:
    pictures: list[ImagePart] = []
    for part in parts:
        match part:
            case TextPart(text=text):
                if text or len(parts) == 1:
                    yield {"text": text}
            case ImagePart():
                yield _picture(part)
            case ToolCall():
                call = {"id": part.id, "name": part.name, "args": arguments_object(part)}
                signature = part.state.get(_SIGNATURE)
                yield {"functionCall": call, **({_SIGNATURE: signature} if signature else {})}
            case ToolReply():
                response = {"error" if part.failed else "output": text_of(part.parts)}
                yield {"functionResponse": {"id": part.call, "name": part.name, "response": response}}
                pictures += [reply_part for reply_part in part.parts if isinstance(reply_part, ImagePart)]
    yield from map(_picture, pictures)


def _picture(image: ImagePart) -> dict[str, Any]:
    return {"inlineData": {"mimeType": image.mime, "data": as_base64(image)}}
