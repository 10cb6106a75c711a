import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, cast, get_args

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
        case "extra_forbidden":
            return f"{place} is unknown; {_suggest(path, model)}"
        case "missing":
            return f"{place} is missing; add it"
        case _:
            message = problem["msg"].removeprefix("Value error, ")
            return f"{place}: {message[0].lower()}{message[1:]}" if place else message


def _suggest(path: tuple[str, ...], model: type[BaseModel]) -> str:
    known = list(_section(path[:-1], model).model_fields)
    near = difflib.get_close_matches(path[-1], known, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"


def _section(path: tuple[str, ...], model: type[BaseModel]) -> type[BaseModel]:
    """The model that describes the section at that path."""
    annotation: object = model
    section = model
    for step in path:
        field = section.model_fields.get(step)
        # A step that is no field is a position in a list or a key of a mapping: the section lies in its type.
        annotation = field.annotation if field else annotation
        section = next(_models(annotation), section)
    return section


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _holds(values: object, path: tuple[str, ...]) -> bool:
    """Whether a source says anything at that path."""
    if not path or not isinstance(values, Mapping):
        return True
    entries = cast("Mapping[str, object]", values)
    return path[0] in entries and _holds(entries[path[0]], path[1:])
