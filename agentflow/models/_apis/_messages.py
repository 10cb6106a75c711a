"""Conversions of messages and tool calls that several APIs share."""

import base64
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from agentflow._decoding import DECODE_ERRORS, JsonError, decode_json, decode_reason
from agentflow._typeguards import is_object
from agentflow.models._answer_format import instruction
from agentflow.models._apis._api import PreparedCall
from agentflow.models._protocol import ImagePart, Message, Part, TextPart, ToolCall, ToolSpec
from agentflow.trace import Usage

TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] | None
"""Number of tokens of one call that an endpoint reports; no model has a longer context."""
C = TypeVar("C", bound="UsageCounts")


def bearer(key: str) -> dict[str, str]:
    """Return the header with a key; none without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def as_base64(image: ImagePart) -> str:
    """Return an image as Base64 text."""
    return base64.b64encode(image.data).decode()


def text_of(parts: Iterable[Part]) -> str:
    """Return the text of some parts, one per line."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def split_system(messages: Iterable[Message]) -> tuple[str, list[Message]]:
    """Split a conversation into its system text and the other messages."""
    system: list[str] = []
    others: list[Message] = []
    for message in messages:
        if message.role == "system":
            system.append(text_of(message.parts))
        else:
            others.append(message)
    return "\n\n".join(system), others


def instructed(ask: PreparedCall) -> tuple[Message, ...]:
    """Return the messages; if the endpoint does not enforce the schema of the answer, the last one asks for it."""
    if ask.answer_schema is None or ask.answer_schema.format == "json_schema":
        return ask.messages
    return with_last(ask.messages, instruction(ask.answer_schema.name, ask.answer_schema.schema))


def with_last(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Return the conversation with a text at its end, so that everything before it stays a shared prefix."""
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return (*messages, Message("user", (TextPart(text),)))
    *before, end = last.parts or (TextPart(""),)
    if isinstance(end, TextPart) and end.text:
        parts = (*before, TextPart(f"{end.text}\n\n{text}"))
    else:
        parts = (*last.parts, TextPart(text))
    return (*messages[:-1], Message("user", parts))


def function_tool(tool: ToolSpec) -> dict[str, Any]:
    """Describe a tool as OpenAI and Ollama expect it."""
    described = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": described}


def parse_call(
    identifier: str, name: str, raw: str | dict[str, Any] | None, state: dict[str, Any] | None = None
) -> ToolCall:
    """Parse a tool call from its arguments, which some endpoints give as text."""
    written = raw if isinstance(raw, str) else msgspec.json.encode(raw or {}).decode()
    try:
        arguments: object = decode_json(written or "{}")
    except JsonError:
        arguments = None
    return ToolCall(identifier, name, arguments if is_object(arguments) else None, written, state or {})


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as text, as the model wrote them if known."""
    return call.raw_arguments or msgspec.json.encode(call.arguments or {}).decode()


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object, the only form that some APIs accept."""
    return {"written": arguments_text(call)} if call.arguments is None else call.arguments


def call_id(body: bytes, number: int) -> str:
    """Return an id for a call without one; equal answers give equal ids."""
    return f"call_{blake2b(body, digest_size=6).hexdigest()}_{number}"


def state_of(parts: Iterable[Part], name: str) -> Any:  # noqa: ANN401 - as the provider gave it
    """Return the provider's data of that name from the first call that has it."""
    values = (part.state.get(name) for part in parts if isinstance(part, ToolCall))
    return next((value for value in values if value is not None), None)


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def merged(fields: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields updated with extra ones; objects are merged one level deep."""
    result = dict(fields)
    for name, value in extra.items():
        mine = result.get(name)
        if is_object(mine) and is_object(value):
            result[name] = {**mine, **value}
        else:
            result[name] = value
    return result


class UsageCounts(Protocol):
    """Token counts of an answer, as an endpoint reports them."""

    @property
    def totals(self) -> tuple[int, int]:
        """Prompt and completion tokens."""
        ...


class CheckedUsage(NamedTuple):
    """Usage of a call."""

    usage: Usage
    """Usage as the endpoint reports it, or an estimate."""
    problem: str = ""
    """Reason for not using the reported one; empty: it is used, or none is reported."""


def checked_usage(
    reported: bytes, decoder: msgspec.json.Decoder[C | None], sent: int, text: str
) -> CheckedUsage:
    """Return the usage of a call: as reported, or four characters per token if nothing or nothing plausible is.

    A negative count would lift the budgets of a run. Counts have no bound but `TokenCount`: images and hidden reasoning
    have many tokens in few bytes.

    :param reported: JSON of the counts; empty if there is none.
    :param sent: length of the request.
    :param text: text of the answer.
    """
    estimate = Usage(1, sent // 4 + 1, len(text) // 4 + 1, estimated=1)
    try:
        counts = decoder.decode(reported) if reported else None
    except DECODE_ERRORS as error:
        return CheckedUsage(estimate, decode_reason(error))
    if counts is None or not any(counts.totals):
        return CheckedUsage(estimate)
    return CheckedUsage(Usage(1, *counts.totals))
