"""Summaries of a session's variables. Runs inside a session and executes no code of the objects."""

import sys
from collections.abc import Mapping
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType

from runtimes.process.inside._tables import Foreign

COUNT = 500
TEXT = 160
ITEMS = 5

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_ARRAYS = frozenset({"numpy", "pandas", "torch", "pyarrow", "polars", "scipy", "jax"})


def describe_variables(namespace: Mapping[str, object]) -> list[dict[str, str]]:
    """Return name, type and a one-line summary of each public variable, sorted by name."""
    names = sorted(name for name in list(namespace) if not name.startswith("_"))
    return [_describe(name, namespace[name]) for name in names[:COUNT]]


def _describe(name: str, value: object) -> dict[str, str]:
    cls = type(value)
    kind = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    try:
        summary = _summary(value)
    except Exception:
        # An object that fails when inspected must not hide the others.
        summary = ""
    return {"name": name, "type": kind, "summary": _clean(summary)}


def _summary(value: object) -> str:
    cls = type(value)
    if cls in _SIMPLE:
        return _short(value)
    if cls in (list, tuple, set, frozenset, dict):
        return _container(value)
    if isinstance(value, ModuleType):
        version = vars(value).get("__version__")
        return value.__name__ + (f" {version}" if isinstance(version, str) else "")
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return _callable(value)
    if cls.__module__.partition(".")[0] in _ARRAYS:
        return _array(value)
    return ""


def _short(value: object) -> str:
    if isinstance(value, str | bytes) and len(value) > TEXT:
        return f"{value[:TEXT]!r}… ({len(value)} long)"
    return repr(value)


def _container(value: Foreign) -> str:
    count = f"{len(value)} item{'' if len(value) == 1 else 's'}"
    if any(type(item) not in _SIMPLE for item in islice(value, ITEMS)):
        return count
    head = ", ".join(_short(item) for item in islice(value, ITEMS))
    return f"{count}: {head}{', …' if len(value) > ITEMS else ''}" if value else count


def _callable(value: Foreign) -> str:
    inspect = sys.modules.get("inspect")
    if isinstance(value, FunctionType) and inspect is not None:
        return str(inspect.signature(value))
    return f"{value.__module__}.{value.__qualname__}"


def _array(value: Foreign) -> str:
    shape = getattr(value, "shape", None)
    columns = getattr(value, "columns", None)
    if columns is not None and shape is not None and len(shape) == 2:
        names = ", ".join(str(name) for name in islice(columns, 20))
        return f"{shape[0]} rows × {shape[1]} columns: {names}"
    dtype = getattr(value, "dtype", None)
    return "" if shape is None else f"shape {tuple(shape)}" + ("" if dtype is None else f", {dtype}")


def _clean(text: str) -> str:
    cut = text if len(text) <= 2 * TEXT else text[: 2 * TEXT] + "…"
    return cut.encode("utf-8", "backslashreplace").decode()
