"""Pieces that several dialects write or read alike."""

import base64
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, cast

import msgspec

from agentflow.models._protocol import Image, Message, Part, Text, ToolCall
from agentflow.trajectory import Usage

__all__ = [
    "arguments_text",
    "as_base64",
    "call_id",
    "estimate",
    "merged",
    "parse_call",
    "split_system",
    "state_of",
    "text_of",
    "with_last",
]


def as_base64(image: Image) -> str:
    """A picture as text."""
    return base64.b64encode(image.data).decode()


def text_of(parts: Iterable[Part]) -> str:
    """The words among those parts."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def split_system(messages: Iterable[Message]) -> tuple[str, list[Message]]:
    """What the system says, and the conversation without it."""
    said: list[str] = []
    others: list[Message] = []
    for message in messages:
        if message.role == "system":
            said.append(text_of(message.parts))
        else:
            others.append(message)
    return "\n\n".join(said), others


def with_last(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """The conversation with those words at its end.

    They come last, so that what stands before stays the beginning of the next prompt too.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return (*messages, Message("user", (Text(text),)))
    *before, end = last.parts or (Text(""),)
    if isinstance(end, Text) and end.text:
        parts = (*before, Text(f"{end.text}\n\n{text}"))
    else:
        parts = (*last.parts, Text(text))
    return (*messages[:-1], Message("user", parts))


def parse_call(identifier: str, name: str, written: str, state: dict[str, Any] | None = None) -> ToolCall:
    """A tool call from its arguments as text; what is no JSON object stays text."""
    try:
        arguments = msgspec.json.decode(written or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        arguments = None
    return ToolCall(identifier, name, arguments, written, state or {})


def arguments_text(call: ToolCall) -> str:
    """Its arguments as text: as the model wrote them, where it did."""
    return call.raw_arguments or msgspec.json.encode(call.arguments or {}).decode()


def call_id(body: bytes, number: int) -> str:
    """An id for a call that came without: the same for the same answer."""
    return f"call_{blake2b(body, digest_size=6).hexdigest()}_{number}"


def state_of(parts: Iterable[Part], name: str) -> Any:  # noqa: ANN401 - as the provider gave it
    """What a provider wanted back under that name with the calls among those parts."""
    found = (part.state.get(name) for part in parts if isinstance(part, ToolCall))
    return next((value for value in found if value is not None), None)


def merged(fields: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with further ones; what is an object on both sides is merged."""
    result = dict(fields)
    for name, value in extra.items():
        mine = result.get(name)
        if isinstance(mine, dict) and isinstance(value, dict):
            result[name] = {**cast("dict[str, Any]", mine), **cast("dict[str, Any]", value)}
        else:
            result[name] = value
    return result


def estimate(sent: int, text: str) -> Usage:
    """What a call consumed at an endpoint that counts no tokens."""
    return Usage(1, sent // 4 + 1, len(text) // 4 + 1)
