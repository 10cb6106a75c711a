"""Problems of settings in one line: source, key, problem, remedy, and the nearest known name."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentflow._typeguards import is_mapping
from agentflow.errors import ConfigurationError
from agentflow.settings._renamed import aliases, renames
from agentflow.settings._schema import fields, sections

_MAX_LISTED: Final = 80
_MAX_KEY: Final = 100
"""Characters of a key that a message repeats."""
UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument", "no_such_attribute")
"""Types of pydantic's errors for an unknown key."""


_KEY: Final = re.compile(r"[\w-]+(\.[\w-]+)*")


class Source(NamedTuple):
    """Values from one source of settings."""

    name: str
    """Name that an error message gives it."""
    values: Mapping[str, object]


def explain(error: ValidationError, model: type[BaseModel], sources: Iterable[Source]) -> ConfigurationError:
    """Describe the first problem in one line (source, key, problem, remedy) and count the others.

    Values are not repeated: they may be secrets.
    """
    problem = _problems(error)[0]
    path = _path(problem, model)
    text = explain_line(error, model)
    # The problem of a whole section begins with the key that it is about.
    about = _KEY.match(problem["msg"].removeprefix("Value error, "))
    key = (*path, *about[0].split(".")) if about else path
    # A section may be written in another form, so that only the beginning of the path is in the source.
    prefixes = (key[:length] for length in range(len(key), 0, -1))
    all_sources = list(sources)
    names = (source.name for prefix in prefixes for source in all_sources if _holds(source.values, prefix))
    return ConfigurationError(f"{next(names, 'settings')}: {text}")


def unknown_key(model: type[BaseModel], values: Mapping[str, object]) -> str:
    """Return one line about the first unknown key among some values, or an empty text; values are not judged.

    Example::

        unknown_key(RagSettings, {"index_pat": "papers"})  # "index_pat is unknown; did you mean index_path?"
    """
    try:
        model.model_validate(values)
    except ValidationError as error:
        if any(problem["type"] in UNKNOWN for problem in error.errors()):
            return explain_line(error, model)
    return ""


def explain_line(error: ValidationError, model: type[BaseModel]) -> str:
    """Describe the first problem, without its source, and count the others.

    Example::

        try:
            RagSettings.model_validate({"index_pat": "papers"})
        except ValidationError as error:
            explain_line(error, RagSettings)  # "index_pat is unknown; did you mean index_path?"
    """
    problem, *more = _problems(error)
    rest = f" (and {len(more)} more)" if more else ""
    return _describe(problem, _path(problem, model), model) + rest


def _problems(error: ValidationError) -> list[ErrorDetails]:
    """Return all problems, unknown keys first: the other problems may follow from a misspelt key."""
    problems = error.errors(include_url=False, include_input=False)
    return sorted(problems, key=lambda problem: problem["type"] not in UNKNOWN)


def _path(problem: ErrorDetails, model: type[object]) -> tuple[str, ...]:
    """Return the keys to a problem, without the names of a union's members."""
    path: tuple[str, ...] = ()
    annotation: object = model
    for step in map(_shortened, problem["loc"]):
        if step in {section.__name__ for section in sections(annotation)}:
            continue
        path = (*path, step)
        annotation = fields(_section(path[:-1], model)).get(step, annotation)
    return path


def _shortened(step: str | int) -> str:
    text = str(step)
    return text if len(text) <= _MAX_KEY else f"{text[:_MAX_KEY]}…"


def _describe(problem: ErrorDetails, path: tuple[str, ...], model: type[BaseModel]) -> str:
    key = ".".join(path)
    match problem["type"]:
        case kind if kind in UNKNOWN:
            return f"{key} is unknown{_suggest(path, model)}"
        case "missing":
            return f"{key} is missing; add it"
        case _:
            message = problem["msg"].removeprefix("Value error, ")
            return f"{key}: {message[0].lower()}{message[1:]}" if key else message


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?` with the nearest known name, or a list of all if none is near and they are few.

    >>> nearest("ragg", ["rag", "web"])
    '; did you mean rag?'
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known here: {', '.join(names)}" if 0 < len(names) <= _MAX_LISTED else ""


def _suggest(path: tuple[str, ...], model: type[BaseModel]) -> str:
    section = _section(path[:-1], model)
    known_fields = fields(section)
    old = renames(section)
    near = difflib.get_close_matches(path[-1], [*known_fields, *old, *aliases(section)], n=1, cutoff=0.5)
    return f"; did you mean {old.get(near[0], near[0])}?" if near else nearest(path[-1], known_fields)


def _section(path: tuple[str, ...], model: type[object]) -> type[object]:
    """Return the type of the section at that path."""
    annotation: object = model
    section = model
    for step in path:
        # A step that is not a field is a list index or a mapping key: the section is in the annotation's arguments.
        annotation = fields(section).get(step, annotation)
        section = next(sections(annotation), section)
    return section


def _holds(values: object, path: tuple[str, ...]) -> bool:
    """Return true if a source has a value at that path."""
    if not path or not is_mapping(values):
        return True
    return path[0] in values and _holds(values[path[0]], path[1:])
