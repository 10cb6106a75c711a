"""JSON schemas as clients like them: no generated titles, no `null` where leaving out is meant."""

from collections.abc import Mapping
from typing import TypeGuard, cast

__all__ = ["portable"]

_NAMED = ("properties", "$defs")
"""Keywords whose members are named by the user, so that `title` among them is a name and no keyword."""

_ANY = ("string", "number", "boolean", "object", "array", "null")
"""Anything, said in words: some clients take a schema that says nothing for a mistake."""


def portable(schema: Mapping[str, object], *, keep_null: bool = False) -> dict[str, object]:
    """The schema without generated titles; an optional argument `X | None = None` becomes a plain optional `X`.

    :param keep_null: what is described is written, not read: `null` then does stand there.
    """
    plain: dict[str, object] = {}
    for key, value in schema.items():
        if key == "title":
            continue
        if key in _NAMED and _is_mapping(value):
            plain[key] = {name: _portable_value(member, keep_null) for name, member in value.items()}
        elif key in ("default", "const", "enum", "examples"):
            plain[key] = value
        elif key == "items" and value == {}:
            plain[key] = {"anyOf": [{"type": kind} for kind in _ANY]}
        else:
            plain[key] = _portable_value(value, keep_null)
    return plain if keep_null else _without_null(plain)


def _portable_value(value: object, keep_null: bool) -> object:
    if _is_mapping(value):
        return portable(value, keep_null=keep_null)
    if isinstance(value, list):
        return [_portable_value(member, keep_null) for member in cast("list[object]", value)]
    return value


def _without_null(schema: dict[str, object]) -> dict[str, object]:
    choices = schema.get("anyOf")
    if "default" not in schema or schema["default"] is not None or not isinstance(choices, list):
        return schema
    rest = [choice for choice in cast("list[object]", choices) if choice != {"type": "null"}]
    outer = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    if len(rest) == 1 and _is_mapping(rest[0]):
        return {**rest[0], **outer}
    return {"anyOf": rest, **outer}


def _is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)
