"""Type guards for decoded JSON and YAML, whose contents have no static type."""

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return true for a JSON object: `is_object({"a": 1})`."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return true for a JSON array: `is_list([1, 2])`."""
    return isinstance(value, list)


def is_list_or_tuple(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Return true for a list or a tuple: `is_list_or_tuple((1, 2))`."""
    return isinstance(value, list | tuple)


def is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    """Return true for any mapping, whose keys are taken to be text: `is_mapping({"a": 1})`."""
    return isinstance(value, Mapping)
