import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import NamedTuple, cast, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentflow.errors import ConfigurationError


class Source(NamedTuple):
    """Where values came from."""

    name: str
    """As a person knows it."""
    values: Mapping[str, object]
    """What it said."""


def explain(error: ValidationError, model: type[BaseModel], sources: Iterable[Source]) -> ConfigurationError:
    """The first problem in one line: where it stands, what it is, how to mend it; and how many more there are.

    Values are not repeated: they may be secrets.
    """
    problem, *more = error.errors(include_url=False, include_input=False)
    path = tuple(str(step) for step in problem["loc"])
    origin = next((source.name for source in sources if _holds(source.values, path)), "settings")
    rest = f" (and {len(more)} more)" if more else ""
    return ConfigurationError(f"{origin}: {_what(problem, path, model)}{rest}")


def _what(problem: ErrorDetails, path: tuple[str, ...], model: type[BaseModel]) -> str:
    place = ".".join(path)
    match problem["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{place} is unknown; {_suggest(path, model)}"
        case "missing":
            return f"{place} is missing; add it"
        case _:
            message = problem["msg"].removeprefix("Value error, ")
            return f"{place}: {message[0].lower()}{message[1:]}" if place else message


def _suggest(path: tuple[str, ...], model: type[BaseModel]) -> str:
    known = _fields(_section(path[:-1], model))
    near = difflib.get_close_matches(path[-1], known, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"


def _section(path: tuple[str, ...], model: type[object]) -> type[object]:
    """The type that describes the section at that path."""
    annotation: object = model
    section = model
    for step in path:
        # A step that is no field is a position in a list or a key of a mapping: the section lies in its type.
        annotation = _fields(section).get(step, annotation)
        section = next(_sections(annotation), section)
    return section


def _fields(section: type[object]) -> dict[str, object]:
    """What a section may hold, by name, with its types."""
    if issubclass(section, BaseModel):
        return {name: field.annotation for name, field in section.model_fields.items()}
    return get_type_hints(section)


def _sections(annotation: object) -> Iterator[type[object]]:
    if isinstance(annotation, type):
        section = cast("type[object]", annotation)
        if issubclass(section, BaseModel) or is_dataclass(section):
            yield section
    for argument in get_args(annotation):
        yield from _sections(argument)


def _holds(values: object, path: tuple[str, ...]) -> bool:
    """Whether a source says anything at that path."""
    if not path or not isinstance(values, Mapping):
        return True
    entries = cast("Mapping[str, object]", values)
    return path[0] in entries and _holds(entries[path[0]], path[1:])
