"""Structured output: formats that an endpoint can enforce, schemas, and decoding of answers."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

import msgspec

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._typeguards import is_list, is_object
from agentflow.models._request_error import RequestError, unusable
from agentflow.models._settings import StructuredOutput
from agentflow.telemetry import get_logger

logger = get_logger(__name__)
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


_JSON_BEGIN = re.compile(r'\{\s*"[^"]*"\s*:')
_MAX_TRUST = 4
"""Number of answers in a format that outweigh as many without it."""
_MAX_CANDIDATES = 100
"""Number of braces at which a JSON value is looked for in a text."""
_SAFE_CHAR = r'[^\x00-\x1f\x7f"\\]'
_MAX_REPEAT = 128
"""Repetitions of one character class in a pattern; XGrammar 0.2 fails on more."""
_QUOTED_CHARS = 80
_REPEATED_CHARS = 2_000


class FormatExperience:
    """Experience with the answer formats of one model at one endpoint."""

    def __init__(self) -> None:
        self._refused = set[AnswerFormat]()
        self._trust: dict[AnswerFormat, int] = {}

    def __contains__(self, format: AnswerFormat) -> bool:
        """Return whether the endpoint refused or ignored a format."""
        return format in self._refused

    def refuse(self, format: AnswerFormat) -> None:
        """Record that the endpoint refused a format."""
        self._refused.add(format)

    def record(self, format: AnswerFormat, *, obeyed: bool) -> bool:
        """Record whether an answer had its format, and return whether the format is refused because of it.

        It is if more answers lacked the format than had it.
        """
        trust = self._trust[format] = min(_MAX_TRUST, self._trust.get(format, 0) + (1 if obeyed else -1))
        if trust >= 0 or format in self._refused:
            return False
        self._refused.add(format)
        return True


class FormatFallback:
    """The strictest answer format that an endpoint obeys, found by trying."""

    def __init__(
        self,
        structured: StructuredOutput,
        best: AnswerFormat = "json_schema",
        experience: FormatExperience | None = None,
        *,
        model: str = "",
    ) -> None:
        """:param best: first format to try if the settings leave it open.
        :param experience: formats that the endpoint refused or ignored so far; it is updated.
        :param model: name of the model, for the log.
        """
        self._first: AnswerFormat = best if structured in ("auto", "known") else structured
        self._may_fall = structured == "auto"
        self._refused = experience or FormatExperience()
        self._model = model
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
        self._refused.refuse(format)
        return True

    def answered(self, format: AnswerFormat, *, obeyed: bool) -> bool:
        """Record whether an answer had the requested format; return whether the next request uses a looser one."""
        if format == FORMATS[-1]:
            return False
        if self._refused.record(format, obeyed=obeyed) and self._may_fall:
            logger.warning("answer format ignored", model=self._model, format=format)
        return self._may_fall and format in self._refused


def response_format(format: AnswerFormat, name: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the `response_format` field of a request."""
    match format:
        case "json_schema":
            encoded = msgspec.json.encode(schema)
            fields: dict[str, Any] = {"name": name, "schema": msgspec.Raw(encoded)}
            if _is_strict(encoded):
                fields["strict"] = True
            return {"type": format, "json_schema": fields}
        case "json_object":
            return {"type": format}
        case "text":
            return None


def instruction(name: str, schema: dict[str, Any]) -> str:
    """Return the prompt text that describes the answer, for endpoints that do not enforce its schema."""
    text = msgspec.json.encode(schema).decode()
    return f"Answer with one JSON value and nothing else.\nJSON schema of `{name}`: {text}"


def repair_request(mistake: str) -> str:
    """Return the message that asks for an answer again; the schema follows it.

    :param mistake: the reason that the answer before can't be used.
    """
    return f"Your last answer can't be used: {mistake}\nWrite the whole answer again."


def repeated(text: str) -> str:
    """Return an unusable answer as it is shown to the model again: its beginning, if it is long."""
    return text if len(text) <= _REPEATED_CHARS else f"{text[:_REPEATED_CHARS]} …"


def decode_answer(text: str, kind: type[T]) -> T:
    """Decode the whole text as one JSON value of a type. One code fence around it is accepted, prose is not.

    :raises RequestError: if the text does not decode; it quotes the beginning of the text.
    """
    try:
        return msgspec.json.decode(unfenced(text), type=kind)
    except DECODE_ERRORS as error:
        raise unusable(
            f"the answer is not a valid {kind.__name__.lower()}: {decode_reason(error)}; {_quote(text)}"
        ) from None


def parse_answer(text: str, parse: Callable[[str], T]) -> T:
    """Read an answer in a format of its own.

    :param parse: reads the text; it raises `ValueError` with the reason if it can't.
    :raises RequestError: if it can't; it quotes the beginning of the text.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise unusable(f"{error}; {_quote(text)}") from None


def extract_answer(text: str, kind: type[T]) -> T:
    """Decode the only JSON object of a type in a text, with prose or code fences around it.

    :raises RequestError: if there is none, or several that differ.
    """
    try:
        return decode_answer(text, kind)
    except RequestError:
        values: list[T] = []
        for candidate in _objects(text):
            try:
                value = msgspec.json.decode(candidate, type=kind)
            except DECODE_ERRORS:
                continue
            if value not in values:
                values.append(value)
        if len(values) > 1:
            problem = f"the answer has {len(values)} different JSON values"
            raise unusable(f"{problem}; {_quote(text)}") from None
        if not values:
            raise
        return values[0]


def _objects(text: str) -> Iterator[str]:
    """Yield the outermost JSON objects in a text."""
    decoder, begin = json.JSONDecoder(), text.find("{")
    for _ in range(_MAX_CANDIDATES):
        if begin < 0:
            return
        try:
            _, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            if _JSON_BEGIN.match(text, begin):
                # A broken object: its parts are no answer.
                return
            end = begin + 1
        else:
            yield text[begin:end]
        begin = text.find("{", end)


def _quote(text: str) -> str:
    line = " ".join(text.split())
    return f"it reads {line!r}" if len(line) <= _QUOTED_CHARS else f"it begins {line[:_QUOTED_CHARS]!r}"


def unfenced(text: str) -> str:
    """Return a text without the space and the code fence around it."""
    stripped = text.strip()
    fenced = _FENCE.fullmatch(stripped) if stripped.startswith("```") else None
    return fenced[1] if fenced else stripped


def is_json(text: str) -> bool:
    """Return whether a text is one JSON value, with at most one code fence around it."""
    try:
        msgspec.json.decode(unfenced(text))
    except DECODE_ERRORS:
        return False
    return True


def bounded(schema: Any, max_chars: int) -> Any:  # noqa: ANN401 - any part of a schema
    """Return a schema, or a part of one, with a length limit on every free text.

    Without one, a weak model can write text until its tokens are used up. The limit is a pattern, because `maxLength`
    lets control characters through, which are not valid JSON. It takes in the text's own limits of length: engines
    don't enforce both.
    """
    if is_list(schema):
        return [bounded(part, max_chars) for part in schema]
    if not is_object(schema):
        return schema
    parts = {name: bounded(part, max_chars) for name, part in schema.items()}
    if schema.get("type") != "string" or schema.keys() & {"const", "enum", "pattern", "format"}:
        return parts
    minimum = parts.pop("minLength", 0)
    maximum = max(minimum, min(parts.pop("maxLength", max_chars), max_chars))
    if maximum <= _MAX_REPEAT:
        return {**parts, "pattern": f"^{_SAFE_CHAR}{{{minimum},{maximum}}}$"}
    blocks, rest = divmod(maximum - minimum, _MAX_REPEAT)
    block = f"({_SAFE_CHAR}{{{_MAX_REPEAT}}})"
    first = f"{block}{{{minimum // _MAX_REPEAT}}}{_SAFE_CHAR}{{{minimum % _MAX_REPEAT}}}" if minimum else ""
    more = f"{block}{{0,{blocks - 1}}}{_SAFE_CHAR}{{0,{_MAX_REPEAT}}}" if blocks else ""
    return {**parts, "pattern": f"^{first}{more}{_SAFE_CHAR}{{0,{rest}}}$"}


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
def _is_strict(encoded: bytes) -> bool:
    """Return `is_strict` of an encoded schema; cached, because a run uses the same few schemas."""
    return is_strict(msgspec.json.decode(encoded))


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
