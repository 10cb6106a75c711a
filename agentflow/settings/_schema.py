"""Look-ups in the types of settings: the sections that an annotation can hold, their fields, and the values from `.env`.

`.env` is read because it is in the working directory, so it must not be able to run anything.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType
from typing import Final, Literal, TypeGuard, get_args, get_origin, get_type_hints

from pydantic import BaseModel, SecretStr

from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.errors import ConfigurationError


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


_ADDRESS: Final = re.compile(r"(?:https?|postgresql|postgres)://\S+")
_WORD: Final = re.compile(r"[\w.+@-]*")
_FILE: Final = re.compile(r"\.(py|pyc|so|sh|ya?ml|json|toml|zip|whl)\Z", re.IGNORECASE)
_MODELS: Final = ("model_name", "served_name")
"""Settings whose words may contain slashes: names of models."""
_CODE: Final = frozenset({"trust_remote_code", "imports"})
_PLAIN: Final = (bool, int, float)


def check_dotenv(model: type[object], values: Mapping[str, object], origin: str, prefix: str) -> None:
    """Refuse settings from `.env` that name code or files.

    Keys, addresses, numbers, switches, choices and plain words pass. See docs/settings.md.

    :raises ConfigurationError: with the variable and the remedy.
    """
    for path in _refused(model, values, ()):
        variable = f"{prefix}{'__'.join(path)}".upper()
        raise ConfigurationError(
            f"{origin}: {variable} can name code or files, and {origin} may hold only keys, addresses and plain values; "
            "write it into a settings file that you name, or set it in the environment"
        )


def _refused(
    model: type[object], values: Mapping[str, object], path: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    annotations = fields(model)
    for name, value in values.items():
        # An unknown name is reported with the nearest known one.
        if name in annotations and not _is_inert(name, value, annotations[name]):
            yield from _refused_in(name, value, annotations[name], (*path, name))


def _refused_in(
    name: str, value: object, annotation: object, path: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield the refused settings of a section, or the setting itself."""
    section = next(sections(annotation), None)
    if section is None or not is_mapping(value) or not any(map(is_section, _members(annotation))):
        yield path
    else:
        yield from _refused(section, value, path)


def _is_inert(name: str, value: object, annotation: object) -> bool:
    """Return true for a value that is a key, an address, a plain value or a word."""
    if name in _CODE:
        return False
    members = [member for member in _members(annotation) if member is not NoneType]
    if is_mapping(value) or is_list_or_tuple(value):
        return (
            is_mapping(value)
            and any(map(_holds_keys, members))
            and all(isinstance(key, str) for key in value.values())
        )
    if any(map(_is_key_or_plain, members)) and str not in members:
        return True
    return str in members and isinstance(value, str) and _is_word(name, value)


def _holds_keys(member: object) -> bool:
    """Return true for the type of several keys by name."""
    return get_origin(member) is dict and SecretStr in _members(get_args(member)[1])


def _is_word(name: str, value: str) -> bool:
    if _ADDRESS.fullmatch(value):
        return True
    word = value.replace("/", "") if name in _MODELS else value
    return _WORD.fullmatch(word) is not None and _FILE.search(word) is None


def _is_key_or_plain(member: object) -> bool:
    if get_origin(member) is Literal or member is SecretStr:
        return True
    return isinstance(member, type) and issubclass(member, (*_PLAIN, Enum))


def _members(annotation: object) -> list[object]:
    """Return the members of a union, without `Annotated`; another annotation alone."""
    origin = get_origin(annotation)
    if hasattr(annotation, "__metadata__"):
        return _members(get_args(annotation)[0])
    if origin is None or (isinstance(origin, type) and origin.__name__ != "UnionType") or origin is Literal:
        return [annotation]
    return [member for argument in get_args(annotation) for member in _members(argument)]
