"""Conversion of session variables to JSON. The source runs in the session and imports nothing."""

import json
from typing import Any, TypeAlias, cast

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
    if depth < DEPTH and isinstance(value, dict):
        members = list(cast("dict[object, object]", value).items())[:ITEMS]
        return {str(key): plain(one, depth + 1) for key, one in members}
    if depth < DEPTH and isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one, depth + 1) for one in list(cast("list[object]", value))[:ITEMS]]
    return _foreign(value, depth)


def _foreign(value: Foreign, depth: int) -> object:
    kind = cast("type[object]", type(value))
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if name == "pandas.Series":
        value, name = value.to_frame(), "pandas.DataFrame"
    if name == "pandas.DataFrame":
        head = value.head(ROWS)
        rows = [[plain(cell, depth + 1) for cell in row] for row in head.itertuples(index=False, name=None)]
        return {"columns": [str(column) for column in value.columns], "rows": rows, "row_count": len(value)}
    if kind.__module__.partition(".")[0] == "numpy" and getattr(value, "size", ITEMS + 1) <= ITEMS:
        return plain(value.tolist(), depth + 1)
    return repr(value)[:TEXT]
