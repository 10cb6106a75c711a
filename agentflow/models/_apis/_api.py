"""A provider's API: its protocol, requests and answers of no particular provider, and conversions that several APIs share."""

import base64
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS, JsonError, decode_json, decode_reason
from agentflow._typeguards import is_list, is_object
from agentflow.models._answer_format import AnswerFormat, instruction, is_json
from agentflow.models._protocol import (
    Completion,
    ImagePart,
    Message,
    Part,
    Sampling,
    TextPart,
    ToolCall,
    ToolSpec,
)
from agentflow.text import SplitReply, split_reasoning
from agentflow.trace import Usage

TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] | None
"""Number of tokens of one call that an endpoint reports; no model has a longer context."""
C = TypeVar("C", bound="UsageCounts")
_KEYWORDS = {
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "description", "enum", "format", "items",
    "properties", "required", "title", "type",
}  # fmt: skip
_NESTING = {"$defs", "allOf", "anyOf", "items", "oneOf", "properties"}
"""Keywords that hold schemas."""
_KINDS = {"$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type"}
_FORMATS = {
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
}  # fmt: skip


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


def without_reasoning(answer: Completion[None]) -> Completion[None]:
    """Return an answer with all reasoning in `reasoning`, also that in its text."""
    separated = separate_reasoning(answer.text)
    if separated.answer == answer.text:
        return answer
    reasoning = "\n\n".join(filter(None, (answer.reasoning, separated.reasoning)))
    return replace(answer, text=separated.answer, reasoning=reasoning)


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

    def encode(self, call: PreparedCall) -> EncodedRequest:
        """Encode a request."""
        ...

    def read(self, body: bytes, sent: int) -> Completion[None]:
        """Decode an answer.

        :param sent: length of the request, from which usage is estimated if the endpoint does not count tokens.
        :raises msgspec.MsgspecError: if the body can't be decoded.
        """
        ...


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


def instructed(call: PreparedCall) -> tuple[Message, ...]:
    """Return the messages; if the endpoint does not enforce the schema of the answer, the last one asks for it."""
    if call.answer_schema is None or call.answer_schema.format == "json_schema":
        return call.messages
    return with_last(call.messages, instruction(call.answer_schema.name, call.answer_schema.schema))


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
    raw_arguments = raw if isinstance(raw, str) else msgspec.json.encode(raw or {}).decode()
    try:
        arguments: object = decode_json(raw_arguments or "{}")
    except JsonError:
        arguments = None
    return ToolCall(identifier, name, arguments if is_object(arguments) else None, raw_arguments, state or {})


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


def is_closed(schema: object) -> bool:
    """Return true if every object in a schema lists its fields and allows no others, as a grammar requires.

    A missing `additionalProperties` counts as false.
    """
    if is_list(schema):
        return all(is_closed(item) for item in schema)
    if not is_object(schema):
        return True
    if not schema.keys() & _KINDS:
        return False
    if schema.get("type") == "object" and ("properties" not in schema or schema.get("additionalProperties")):
        return False
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    return is_closed(
        [*inner, *(schema[name] for name in ("allOf", "anyOf", "items", "oneOf") if name in schema)]
    )


def simplified(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without keywords that a grammar can't express; these go into the description."""
    fields, omitted = dict[str, Any](), dict[str, Any]()
    for name, value in schema.items():
        if name in _NESTING:
            fields["anyOf" if name == "oneOf" else name] = _nested(name, value, simplified)
        elif _is_known(name, value):
            fields[name] = value
        elif name not in ("$schema", "default"):
            omitted[name] = value
    if schema.get("type") == "object":
        fields["additionalProperties"] = False
    if omitted:
        rest = msgspec.json.encode(omitted).decode()
        fields["description"] = f"{fields['description']} {rest}" if "description" in fields else rest
    return fields


def _is_known(name: str, value: object) -> bool:
    if name == "format":
        return value in _FORMATS
    return name in _KEYWORDS or (name == "minItems" and value in (0, 1))


def without_const(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with each `const` replaced by an `enum` of one value."""
    fields = dict[str, Any]()
    for name, value in schema.items():
        if name == "const":
            fields["enum"] = [value]
        elif name in _NESTING or name == "additionalProperties":
            fields[name] = _nested(name, value, without_const)
        else:
            fields[name] = value
    return fields


def _nested(name: str, value: Any, change: Callable[[dict[str, Any]], object]) -> object:  # noqa: ANN401 - any part of a schema
    """Apply a change to the schemas that a keyword holds."""
    if name in ("properties", "$defs"):
        return {inner: change(member) for inner, member in value.items()}
    if name in ("anyOf", "allOf", "oneOf"):
        return [change(member) for member in value]
    return change(value) if is_object(value) else value
