"""JSON schemas in the subsets that providers accept."""

from typing import Any

import msgspec

from agentflow._typeguards import is_list, is_object

_KNOWN = {
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "description", "enum", "format", "items",
    "properties", "required", "title", "type",
}  # fmt: skip
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
    fields, said = dict[str, Any](), dict[str, Any]()
    for name, value in schema.items():
        if name in ("properties", "$defs"):
            fields[name] = {inner: simplified(of) for inner, of in value.items()}
        elif name in ("anyOf", "allOf", "oneOf"):
            fields["anyOf" if name == "oneOf" else name] = [simplified(of) for of in value]
        elif name == "items":
            fields[name] = simplified(value)
        elif _is_known(name, value):
            fields[name] = value
        elif name not in ("$schema", "default"):
            said[name] = value
    if schema.get("type") == "object":
        fields["additionalProperties"] = False
    if said:
        rest = msgspec.json.encode(said).decode()
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
        if name in ("properties", "$defs"):
            fields[name] = {inner: without_const(of) for inner, of in value.items()}
        elif name in ("anyOf", "allOf", "oneOf"):
            fields[name] = [without_const(of) for of in value]
        elif name in ("additionalProperties", "items") and is_object(value):
            fields[name] = without_const(value)
        elif name == "const":
            fields["enum"] = [value]
        else:
            fields[name] = value
    return fields
