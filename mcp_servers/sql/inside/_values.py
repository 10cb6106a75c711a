"""Conversion of database values to JSON, and of names to SQL."""

import math
from collections.abc import Collection, Mapping
from decimal import Decimal
from itertools import islice
from typing import TypeGuard

TEXT = 10_000
"""Longest text that is returned in full."""
BYTES = 1_000
"""Most bytes of a blob to show."""
ITEMS = 1_000
"""Most members of a list or structure to show."""
DEPTH = 8
WIDEST_INTEGER = 63


def cell(value: object, depth: int = 0) -> object:
    """Convert a value to JSON: types without a JSON equivalent become text, and long values are cut with a note."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, int):
        return value if value.bit_length() <= WIDEST_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, bytes | bytearray):
        return _blob(bytes(value))
    return _other(value, depth)


def _other(value: object, depth: int) -> object:
    if depth < DEPTH:
        if _is_mapping(value):
            members = islice(value.items(), ITEMS)
            return {_cut(str(key)): cell(member, depth + 1) for key, member in members}
        if _is_collection(value):
            return [cell(member, depth + 1) for member in islice(value, ITEMS)]
    written = getattr(value, "isoformat", None)
    return _cut(str(written() if callable(written) else value))


def _is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping)


def _is_collection(value: object) -> TypeGuard[Collection[object]]:
    return isinstance(value, list | tuple | set | frozenset)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> object:
    if not value.is_finite():
        return _not_finite(float(value))
    near = float(value)
    return near if math.isfinite(near) and Decimal(repr(near)) == value else str(value)


def _blob(value: bytes) -> str:
    more = f"… ({len(value)} bytes)" if len(value) > BYTES else ""
    return f"x'{value[:BYTES].hex()}'{more}"


def _cut(text: str) -> str:
    shown = text if len(text) <= TEXT else f"{text[:TEXT]}… ({len(text)} characters)"
    return shown.encode("utf-8", "replace").decode()


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
