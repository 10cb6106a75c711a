import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentflow._typeguards import is_mapping
from agentflow.errors import ConfigurationError
from agentflow.settings._renamed import renames
from agentflow.settings._schema import fields, sections


class Source(NamedTuple):
    """Values from one source of settings."""

    name: str
    """Name that an error message gives it."""
    values: Mapping[str, object]


def explain(error: ValidationError, model: type[BaseModel], sources: Iterable[Source]) -> ConfigurationError:
    """Describe the first problem in one line (source, key, problem, remedy) and count the others.

    Values are not repeated: they may be secrets.
    """
    problem, *more = error.errors(include_url=False, include_input=False)
    path = tuple(str(step) for step in problem["loc"])
    origin = next((source.name for source in sources if _holds(source.values, path)), "settings")
    rest = f" (and {len(more)} more)" if more else ""
    return ConfigurationError(f"{origin}: {_describe(problem, path, model)}{rest}")


def _describe(problem: ErrorDetails, path: tuple[str, ...], model: type[BaseModel]) -> str:
    key = ".".join(path)
    match problem["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{key} is unknown; {_suggest(path, model)}"
        case "missing":
            return f"{key} is missing; add it"
        case _:
            message = problem["msg"].removeprefix("Value error, ")
            return f"{key}: {message[0].lower()}{message[1:]}" if key else message


def _suggest(path: tuple[str, ...], model: type[BaseModel]) -> str:
    section = _section(path[:-1], model)
    known = fields(section)
    old = renames(section)
    near = difflib.get_close_matches(path[-1], [*known, *old], n=1)
    return f"did you mean {old.get(near[0], near[0])}?" if near else f"known here: {', '.join(sorted(known))}"


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
