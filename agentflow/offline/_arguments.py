"""Arguments of tools, built from their JSON schemas."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agentflow._typeguards import is_list, is_object
from agentflow.offline._leads import Leads, spans_of
from agentflow.offline._words import listed
from agentflow.trace import ToolCard

LABEL = "years between:"
"""Label that programs print before a span of years."""
LOOKING = ("search", "read", "visit", "other")
"""Kinds of tools that return new text."""
_QUERIES = frozenset(listed("query queries q question questions keywords search topic term terms prompt"))
_UNWANTED = frozenset(listed("close delete edit input install interrupt kill move remove stop upload"))
_Schema = Mapping[str, Any]
_NONE: _Schema = {}


class Kind(NamedTuple):
    """Purpose of a tool, as far as its schema shows it."""

    name: str
    """`search`, `read`, `visit`, `shell`, `python`, `sql`, `plain` or `other`."""
    main: str
    """The argument with the content; empty without one."""


class Use(NamedTuple):
    """A call of a tool."""

    intent: str
    arguments: dict[str, Any]


def kind_of(tool: ToolCard) -> Kind | None:
    """Return the purpose of a tool; `None` if it can't be called sensibly."""
    if not _UNWANTED.isdisjoint(tool.name.lower().split("_")):
        return None
    properties = _mapping(tool.schema, "properties")
    required = [name for name in _list(tool.schema, "required") if name in properties]
    for name in required or properties:
        type_ = _resolved(properties[name], tool.schema).get("type")
        if type_ in ("string", "array") and (kind := _kind(tool, name)):
            return Kind(kind, name)
    texts = [name for name in required if _resolved(properties[name], tool.schema).get("type") == "string"]
    return Kind("other", texts[0]) if texts else Kind("plain", "")


def _kind(tool: ToolCard, argument: str) -> str:
    name = argument.lower()
    if name == "sql" or (name in _QUERIES and "sql" in tool.name.lower().split("_")):
        return "sql"
    if name in _QUERIES or name.endswith(("_query", "_queries")):
        return "search"
    if name in ("id", "ids", "identifier") or name.endswith(("_id", "_ids")):
        return "read"
    if "url" in name or name in ("link", "uri"):
        return "visit"
    if name in ("command", "cmd", "script"):
        return "shell"
    return "python" if name in ("code", "source", "python") else ""


def uses_of(tool: ToolCard, kind: Kind, leads: Leads) -> Iterator[Use]:
    """Yield calls of a tool that its schema accepts, best first."""
    rest = _rest(tool.schema, kind.main)
    if rest is None:
        return
    if kind.name == "plain":
        yield Use(f"See what {tool.name} tells.", rest)
        return
    argument = _resolved(_mapping(tool.schema, "properties")[kind.main], tool.schema)
    texts = _texts(kind.name, leads)
    if choices := [choice for choice in _list(argument, "enum") if isinstance(choice, str)]:
        texts = ((f"See what {choice} gives.", choice) for choice in choices)
    elif argument.get("type") == "array":
        yield from _lists(kind.main, argument, tuple(texts), rest)
        return
    for intent, text in texts:
        if (fitted := _fitted(text, argument)) is not None:
            yield Use(intent, {kind.main: fitted, **rest})


def _lists(
    name: str, argument: _Schema, texts: tuple[tuple[str, str], ...], rest: dict[str, Any]
) -> Iterator[Use]:
    """Yield calls with several texts at once; each list starts with another one."""
    items = _mapping(argument, "items")
    if items.get("type", "string") != "string":
        return
    size = max(int(argument.get("minItems", 1)), min(2, int(argument.get("maxItems", 2))))
    for start in range(0, len(texts) - size + 1):
        chosen = [
            fitted for _, text in texts[start : start + size] if (fitted := _fitted(text, items)) is not None
        ]
        if len(chosen) == size:
            yield Use(f"Look into {' and '.join(chosen)} together.", {name: chosen, **rest})


def _texts(kind: str, leads: Leads) -> Iterator[tuple[str, str]]:
    match kind:
        case "search" | "other":
            return ((f"Find out more about {subject}.", subject) for subject in leads.subjects)
        case "read":
            return ((f"Read all of {id_}.", id_) for id_ in leads.ids)
        case "visit":
            return ((f"Open {url}.", url) for url in leads.urls)
        case _:
            return programs(kind, leads)


def _rest(schema: _Schema, main: str) -> dict[str, Any] | None:
    """Return the other required arguments; `None` if one of them can't be made up."""
    rest: dict[str, Any] = {}
    properties = _mapping(schema, "properties")
    for name in _list(schema, "required"):
        if name == main or name not in properties:
            continue
        value = _plain(_resolved(properties[name], schema), schema)
        if value is None:
            return None
        rest[name] = value
    return rest


def _plain(argument: _Schema, schema: _Schema) -> object:
    """Return a value for an argument; `None` if none is meaningful."""
    for key in ("default", "const"):
        if argument.get(key) is not None:
            return argument[key]
    if choices := _list(argument, "enum"):
        return choices[0]
    match argument.get("type"):
        case "integer" | "number":
            return _number(argument)
        case "boolean":
            return False
        case "object":
            return _rest({**argument, "$defs": _mapping(schema, "$defs")}, "")
        case "array" if not argument.get("minItems"):
            return []
        case _:
            return None


def _number(argument: _Schema) -> int | float:
    if "minimum" in argument:
        return argument["minimum"]
    if "exclusiveMinimum" in argument:
        return argument["exclusiveMinimum"] + 1
    if "multipleOf" in argument:
        return argument["multipleOf"]
    return min(1, argument.get("maximum", 1))


def _resolved(argument: _Schema, schema: _Schema) -> _Schema:
    """Return an argument's schema without references and alternatives: the first that is not null."""
    for _ in range(4):
        options = _list(argument, "anyOf") or _list(argument, "oneOf")
        if "$ref" in argument:
            argument = _mapping(_mapping(schema, "$defs"), str(argument["$ref"]).rpartition("/")[2])
        elif options:
            argument = next((option for option in options if option.get("type") != "null"), _NONE)
        elif types := _list(argument, "type"):
            argument = {**argument, "type": next((type_ for type_ in types if type_ != "null"), "null")}
        else:
            break
    return argument


def _mapping(schema: _Schema, key: str) -> _Schema:
    value = schema.get(key)
    return value if is_object(value) else {}


def _list(schema: _Schema, key: str) -> list[Any]:
    value = schema.get(key)
    return value if is_list(value) else []


def _fitted(text: str, argument: _Schema) -> str | None:
    """Return the text if it fits the argument's length limits; `None` otherwise."""
    fitted = text[: int(argument.get("maxLength", len(text)))].strip()
    if len(fitted) < max(1, int(argument.get("minLength", 1))):
        return None
    pattern = argument.get("pattern")
    return fitted if pattern is None or re.search(pattern, fitted) else None


def programs(kind: str, leads: Leads) -> Iterator[tuple[str, str]]:
    """Yield shell, Python or SQL programs, each with its intent."""
    for span in spans_of(leads):
        years = f"{span.later} - {span.earlier}"
        match kind:
            case "shell":
                program = f'echo "{LABEL} $(({years}))"'
            case "python":
                program = f'print("{LABEL}", {years})'
            case _:
                program = f"SELECT '{LABEL} ' || ({years}) AS span"
        yield f"Work out how many years lie between these: {span.said}.", program
    for subject in leads.subjects:
        yield f"Keep a note of {subject} and measure the notes.", _note(kind, subject.replace("\0", ""))


def _note(kind: str, subject: str) -> str:
    match kind:
        case "shell":
            return (
                f"printf '%s\\n' {shlex.quote(subject)} >> notes.txt\n"
                'echo "notes: $(wc -l < notes.txt) lines, checksum $(cksum < notes.txt)"'
            )
        case "python":
            return (
                "import zlib\n"
                f'notes = [*globals().get("notes", []), {subject!r}]\n'
                'print("notes:", len(notes), "entries, checksum", zlib.crc32("\\n".join(notes).encode()))'
            )
        case _:
            quoted = subject.replace("'", "''")
            return f"SELECT '{quoted}' AS subject, length('{quoted}') AS letters"
