"""Structured output: formats that an endpoint can enforce, schemas, and decoding of answers."""

import re
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

import msgspec

from agentflow._typeguards import is_list, is_object
from agentflow.models._request_error import unusable
from agentflow.models._settings import StructuredOutput

T = TypeVar("T")

AnswerFormat = Literal["json_schema", "json_object", "text"]
FORMATS: tuple[AnswerFormat, ...] = ("json_schema", "json_object", "text")
"""From the strictest to the loosest."""

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n?```", re.DOTALL)
_STRICT_WORDS = {
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maximum", "minItems", "minimum", "multipleOf", "pattern",
    "properties", "required", "title", "type",
}  # fmt: skip


class FormatFallback:
    """The strictest answer format that an endpoint accepts, found by trying."""

    def __init__(
        self,
        structured: StructuredOutput,
        best: AnswerFormat = "json_schema",
        refused: set[AnswerFormat] | None = None,
    ) -> None:
        """Start with one format.

        :param best: first format to try if the settings leave it open.
        :param refused: formats that the endpoint refused so far; further ones are added.
        """
        self._first: AnswerFormat = best if structured in ("auto", "known") else structured
        self._may_fall = structured == "auto"
        self._refused = set[AnswerFormat]() if refused is None else refused
        self.fallbacks = 0
        """Number of requests made in a looser format than the first."""

    def choose(self) -> AnswerFormat:
        """Return the format for the next request."""
        usable = self._first
        while self._may_fall and usable in self._refused and usable != FORMATS[-1]:
            usable = FORMATS[FORMATS.index(usable) + 1]
        self.fallbacks += usable != self._first
        return usable

    def refused(self, format: AnswerFormat) -> bool:
        """Record that the endpoint refused a format; return true if there is another one to try."""
        if not self._may_fall or format == FORMATS[-1]:
            return False
        self._refused.add(format)
        return True


def response_format(format: AnswerFormat, name: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the `response_format` field of a request."""
    match format:
        case "json_schema":
            written = msgspec.json.encode(schema)
            described: dict[str, Any] = {"name": name, "schema": msgspec.Raw(written)}
            if _is_strict(written):
                described["strict"] = True
            return {"type": format, "json_schema": described}
        case "json_object":
            return {"type": format}
        case "text":
            return None


def instruction(name: str, schema: dict[str, Any]) -> str:
    """Return the prompt text that describes the answer, for endpoints that do not enforce its schema."""
    written = msgspec.json.encode(schema).decode()
    return f"Answer with one JSON value and nothing else.\nJSON schema of `{name}`: {written}"


def decode_answer(text: str, kind: type[T]) -> T:
    """Decode the whole text as one JSON value of a type. One code fence around it is accepted, prose is not.

    :raises RequestError: if the text does not decode.
    """
    try:
        return msgspec.json.decode(unfenced(text), type=kind)
    except msgspec.MsgspecError as error:
        raise unusable(f"the answer is not a valid {kind.__name__.lower()}: {error}") from None


def unfenced(text: str) -> str:
    """Return a text without the space and the code fence around it."""
    stripped = text.strip()
    fenced = _FENCE.fullmatch(stripped) if stripped.startswith("```") else None
    return fenced[1] if fenced else stripped


def bounded(schema: dict[str, Any], longest: int) -> dict[str, Any]:
    """Return the schema with a length limit on every free text.

    Without one, a weak model can write text until its tokens are used up. The limit is a pattern, because `maxLength`
    lets control characters through, which are not valid JSON. It takes in the text's own limits of length: engines
    don't enforce both.
    """
    return _bounded(schema, longest)


def _bounded(schema: Any, longest: int) -> Any:  # noqa: ANN401 - any part of a schema
    if is_list(schema):
        return [_bounded(part, longest) for part in schema]
    if not is_object(schema):
        return schema
    parts = {name: _bounded(part, longest) for name, part in schema.items()}
    if schema.get("type") != "string" or schema.keys() & {"const", "enum", "pattern", "format"}:
        return parts
    least = parts.pop("minLength", 0)
    most = max(least, min(parts.pop("maxLength", longest), longest))
    return {**parts, "pattern": f'^[^\\x00-\\x1f\\x7f"\\\\]{{{least},{most}}}$'}


@cache
def schema_of(kind: type[object]) -> dict[str, Any]:
    """Return the JSON schema of a struct, with an object at its top."""
    (top,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    name = str(top.get("$ref", "")).removeprefix("#/$defs/")
    if not name:
        return top
    inner = definitions.pop(name)
    return {**inner, "$defs": definitions} if definitions else inner


@lru_cache(maxsize=256)
def _is_strict(written: bytes) -> bool:
    """Return `is_strict` of an encoded schema; cached, because a run uses the same few schemas."""
    return is_strict(msgspec.json.decode(written))


def is_strict(schema: object) -> bool:
    """Return true if strict mode accepts a schema: closed objects, all fields required, known keywords only."""
    if not is_object(schema):
        return True
    if not schema.keys() <= _STRICT_WORDS:
        return False
    properties: dict[str, Any] = schema.get("properties", {})
    if "properties" in schema or schema.get("type") == "object":
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(properties):
            return False
    inner = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    return all(map(is_strict, inner)) and is_strict(schema.get("items"))
