"""Conversion of session variables to JSON. The source runs in the session and imports nothing."""

import json
from typing import Any, TypeAlias, TypeGuard

Foreign: TypeAlias = Any
"""Any object of the user's code."""

ROWS = 50
ITEMS = 1_000
TEXT = 10_000
DEPTH = 6
MIME = "application/vnd.agentflow.values+json"


class Returned:
    """Values of variables, passed to `display`."""

    def __init__(self, space: dict[str, Any], names: list[str]) -> None:
        self._values = {name: plain(space[name]) for name in names if name in space}

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {MIME: json.dumps(self._values, allow_nan=False)}


def plain(value: Foreign, depth: int = 0) -> object:
    """Convert a value to JSON: the first rows of a data frame, and the text of other objects."""
    if value is None or isinstance(value, (bool, str)):
        return value[:TEXT] if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value) if value.bit_length() < 64 else str(value)
    if isinstance(value, float):
        finite = value == value and abs(value) != float("inf")
        return float(value) if finite else str(float(value))
    if depth < DEPTH and is_dict(value):
        return {str(key): plain(member, depth + 1) for key, member in list(value.items())[:ITEMS]}
    if depth < DEPTH and is_collection(value):
        return [plain(member, depth + 1) for member in list(value)[:ITEMS]]
    return _foreign(value, depth)


def is_dict(value: object) -> TypeGuard["dict[object, object]"]:
    """Return true for a dictionary."""
    return isinstance(value, dict)


def is_collection(value: object) -> TypeGuard["list[object]"]:
    """Return true for a list, a tuple or a set."""
    return isinstance(value, (list, tuple, set, frozenset))


def _foreign(value: Foreign, depth: int) -> object:
    name = type_name(value)
    if name == "pandas.Series":
        value, name = value.to_frame(), "pandas.DataFrame"
    if name == "pandas.DataFrame":
        head = value.head(ROWS)
        rows = [[plain(cell, depth + 1) for cell in row] for row in head.itertuples(index=False, name=None)]
        return {"columns": [str(column) for column in value.columns], "rows": rows, "row_count": len(value)}
    if name.startswith("numpy.") and getattr(value, "size", ITEMS + 1) <= ITEMS:
        return plain(value.tolist(), depth + 1)
    return repr(value)[:TEXT]


def type_name(value: object) -> str:
    """Return the name of a value's type after that of its package."""
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
