"""JSON schemas in the subsets that providers accept."""

from collections.abc import Callable
from typing import Any

import msgspec

from agentflow._typeguards import is_list, is_object

_KNOWN = {
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "description", "enum", "format", "items",
    "properties", "required", "title", "type",
}  # fmt: skip
_NESTING = {"$defs", "allOf", "anyOf", "items", "oneOf", "properties"}
"""Keywords that hold schemas."""
_KINDS = {"$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type"}
_FORMATS = {
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
}  # fmt: skip


def is_closed(schema: object) -> bool:
    """Return true if every object in a schema lists its fields and allows no others, as a grammar requires.

    A missing `additionalProperties` counts as false.
    """
    if is_list(schema):
        return all(is_closed(item) for item in schema)
    if not is_object(schema):
        return True
    if not schema.keys() & _KINDS:
        return False
    if schema.get("type") == "object" and ("properties" not in schema or schema.get("additionalProperties")):
        return False
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    return is_closed(
        [*inner, *(schema[name] for name in ("allOf", "anyOf", "items", "oneOf") if name in schema)]
    )


def simplified(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without keywords that a grammar can't express; these go into the description."""
    fields, omitted = dict[str, Any](), dict[str, Any]()
    for name, value in schema.items():
        if name in _NESTING:
            fields["anyOf" if name == "oneOf" else name] = _nested(name, value, simplified)
        elif _is_known(name, value):
            fields[name] = value
        elif name not in ("$schema", "default"):
            omitted[name] = value
    if schema.get("type") == "object":
        fields["additionalProperties"] = False
    if omitted:
        rest = msgspec.json.encode(omitted).decode()
        fields["description"] = f"{fields['description']} {rest}" if "description" in fields else rest
    return fields


def _is_known(name: str, value: object) -> bool:
    if name == "format":
        return value in _FORMATS
    return name in _KNOWN or (name == "minItems" and value in (0, 1))


def without_const(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with each `const` replaced by an `enum` of one value."""
    fields = dict[str, Any]()
    for name, value in schema.items():
        if name == "const":
            fields["enum"] = [value]
        elif name in _NESTING or name == "additionalProperties":
            fields[name] = _nested(name, value, without_const)
        else:
            fields[name] = value
    return fields


def _nested(name: str, value: Any, change: Callable[[dict[str, Any]], object]) -> object:  # noqa: ANN401 - any part of a schema
    """Apply a change to the schemas that a keyword holds."""
    if name in ("properties", "$defs"):
        return {inner: change(of) for inner, of in value.items()}
    if name in ("anyOf", "allOf", "oneOf"):
        return [change(of) for of in value]
    return change(value) if is_object(value) else value
