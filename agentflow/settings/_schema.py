"""Look-ups in the types of settings: the sections that an annotation can hold, and their fields."""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import TypeGuard, get_args, get_origin, get_type_hints

from pydantic import BaseModel


def fields(section: type[object]) -> dict[str, object]:
    """Return the fields of a section, by name, with their annotations."""
    if issubclass(section, BaseModel):
        return {name: field.annotation for name, field in section.model_fields.items()}
    return get_type_hints(section)


def sections(annotation: object) -> Iterator[type[object]]:
    """Yield every section that an annotation names: models and dataclasses, at any depth of its arguments."""
    if is_section(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from sections(argument)


def is_section(annotation: object) -> TypeGuard[type[object]]:
    """Tell a model or dataclass from every other annotation."""
    return _is_class(annotation) and (issubclass(annotation, BaseModel) or is_dataclass(annotation))


def members(annotation: object) -> Iterator[tuple[type[object] | None, object]]:
    """Yield the sections that a mapping at this annotation can be, and the value types of its mappings.

    A section comes as `(section, None)`, the values of a `dict[str, X]` as `(None, X)`. Unions, lists and
    `Annotated` are looked through.
    """
    if is_section(annotation):
        yield annotation, None
        return
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        yield None, get_args(annotation)[-1]
        return
    for argument in get_args(annotation):
        yield from members(argument)


def _is_class(annotation: object) -> TypeGuard[type[object]]:
    return isinstance(annotation, type)
