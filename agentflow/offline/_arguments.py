"""Arguments of tools, built from their JSON schemas, and the leads of a path that they are filled with."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from agentflow._typeguards import is_list, is_object
from agentflow.offline._language import names, passages, terms
from agentflow.offline._statements import Statement, read
from agentflow.offline._words import listed
from agentflow.trace import Action, PlanRequest, ToolCard, Verdict, digest

_SPANS = 8
"""Maximum number of year spans to propose at one node."""
_REFUSED = 2
"""Number of refused proposals after which nearby leads count as taken."""
_SIDES = ("history", "people", "places", "numbers", "origin", "works", "trade", "neighbours")
"""Search words for when no better lead is left."""


class YearSpan(NamedTuple):
    """Two dated events."""

    earlier: int
    """Year of the earlier event."""
    later: int
    """Year of the later event."""
    said: str
    """Both events in words."""


class Leads(NamedTuple):
    """Values that tool arguments can be filled with."""

    subjects: tuple[str, ...]
    """Names and words to search for."""
    ids: tuple[str, ...]
    """Ids of documents that were mentioned and not read yet."""
    urls: tuple[str, ...]
    """URLs that were shown and not visited yet."""
    observed: tuple[str, ...]
    """Observations, newest first."""


def leads_of(request: PlanRequest) -> Leads:
    """Return the leads of a seed and a path: newest observations first, without those already followed."""
    observed = [step.text for step in reversed(request.path) if step.verdict is Verdict.NEW]
    followed = set(_argument_texts([*(step.call for step in request.path), *request.taken]))
    enough = request.count + len(followed)
    subjects = [name for name in _subjects(request, observed, enough) if name.lower() not in followed]
    ids = dict.fromkeys(id_ for text in observed for id_ in ids_in(text) if id_.lower() not in followed)
    urls = dict.fromkeys(url for text in observed for url in urls_in(text) if url.lower() not in followed)
    return Leads(tuple(subjects), tuple(ids), tuple(urls), tuple(observed))


def _subjects(request: PlanRequest, observed: list[str], enough: int) -> Iterator[str]:
    """Yield names that were mentioned but have no passage yet, then other names, then words.

    There are always enough of them; if necessary, they are numbered.
    """
    seed = request.seed
    leads: dict[str, None] = {}
    if not observed:
        leads.update(dict.fromkeys(names(seed)))
        named = set(terms(" ".join(leads)))
        others = [term for term in terms(seed) if term not in named]
        leads.setdefault(" ".join(others[:6]) or seed.strip()[:80])
    mentioned = list(_mentioned(request, observed))
    if len(request.taken) >= _REFUSED:
        # Siblings already have the best names: combine two of them, which no sibling does.
        leads.update(dict.fromkeys(f"{first} {second}" for first, second in pairwise(mentioned)))
    leads.update(dict.fromkeys(mentioned))
    leads.update(dict.fromkeys(names(seed)))
    leads.update(dict.fromkeys(terms(seed)))
    main = next((name for name in leads if name), "overview")
    leads.update(dict.fromkeys(f"{main} {side}" for side in _SIDES))
    leads.update(dict.fromkeys(f"{main} {number}" for number in range(2, enough + 2 - len(leads))))
    return (name for name in leads if name)


def _mentioned(request: PlanRequest, observed: list[str]) -> Iterator[str]:
    """Yield names, newest observations first. Each path starts at another one, so that siblings find different things."""
    turn = int(digest([[step.call for step in request.path], request.taken]), 16)
    headings = {passage.topic for text in observed for passage in passages(text)}
    for text in observed:
        mentioned = names(text)
        for group in (
            [name for name in mentioned if name not in headings],
            [name for name in mentioned if name in headings],
        ):
            start = turn % max(1, len(group))
            yield from (*group[start:], *group[:start])


def ids_in(text: str) -> list[str]:
    """Return the ids of documents in a text; those with the least text come first."""
    shown = [(sum(map(len, passage.sentences)), passage.id) for passage in passages(text) if passage.id]
    return [id_ for _, id_ in sorted(shown)]


def _argument_texts(actions: Iterable[Action]) -> Iterator[str]:
    """Yield every text in the arguments of some actions, in lower case."""
    for action in actions:
        for value in action.arguments.values():
            for entry in value if is_list(value) else [value]:
                if isinstance(entry, str):
                    yield entry.lower()


def urls_in(text: str) -> Iterator[str]:
    """Yield the URLs in a text."""
    for word in text.split() if "://" in text else ():
        if word.startswith(("https://", "http://")):
            yield word.strip("\"'<>()[].,;")


def spans_of(leads: Leads) -> Iterator[YearSpan]:
    """Yield pairs of dated events of different subjects, newest observations first."""
    dated: dict[str, Statement] = {}
    for text in leads.observed:
        for fact in read(text).facts:
            if fact.event:
                dated.setdefault(fact.value, fact)
    facts = list(dated.values())
    count = 0
    for index, event in enumerate(facts):
        for other in facts[index + 1 :]:
            if event.subject != other.subject and event.value != other.value:
                earlier, later = sorted((event, other), key=lambda fact: int(fact.value))
                events = " and ".join(f"that {fact.event_shown} in {fact.value}" for fact in (earlier, later))
                yield YearSpan(int(earlier.value), int(later.value), events)
                count += 1
                break
        if count >= _SPANS:
            return


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
