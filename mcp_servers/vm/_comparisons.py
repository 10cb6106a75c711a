"""Comparisons of found with expected values: a score from 0 to 1, and the differences."""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import anyio.to_thread

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._session import Session
from mcp_servers.vm import _sandboxed
from mcp_servers.vm._evaluation_schema import Func
from mcp_servers.vm._getters import Found

Score = tuple[float, str]
"""Score from 0 to 1, and a description of the difference."""

_CHARACTERS = 20_000
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "exact_match": ("ignore_case", "strip"),
    "fuzzy_match": ("ignore_case", "strip", "threshold"),
    "check_include_exclude": ("ignore_case",),
    "is_in_list": ("ignore_case", "strip"),
    "check_json": (),
    "compare_table": ("sheet", "expected_sheet", "tolerance", "ignore_case"),
    "compare_image": ("tolerance", "threshold"),
    "infeasible": (),
}


async def compare(
    func: Func, found: Found, expected: Found, options: Mapping[str, Any], session: Session
) -> Score:
    """Compare a found value with the expected one.

    :raises ToolFailure: if the values do not fit the comparison.
    """
    known = _OPTIONS[func]
    for name in options:
        if name not in known:
            raise ToolFailure(
                ErrorKind.BAD_ARGUMENTS, f"{func}: no option {name!r}.{did_you_mean(name, known)}"
            )
    match func:
        case "exact_match":
            return _exact(_text(found, options), _text(_value(expected), options))
        case "fuzzy_match":
            return await _fuzzy(_text(found, options), _text(_value(expected), options), options)
        case "check_include_exclude":
            return _included(_text(found, options), _rules(func, expected), options)
        case "is_in_list":
            return _in_list(_text(found, options), _text(_value(expected), options))
        case "check_json":
            return _json(found, _rules(func, expected))
        case "compare_table":
            return await _tables(found, expected, options, session)
        case "compare_image":
            return await _images(found, expected, options, session)
        case "infeasible":
            raise AssertionError("scored without inspection")


def _value(expected: Found) -> Found:
    """Return the value of `{expected: …}`, or the whole rule."""
    if isinstance(expected, dict) and "expected" in expected:
        return cast("dict[str, object]", expected)["expected"]
    return cast("object", expected)


def _rules(func: Func, expected: Found) -> Mapping[str, Any]:
    if not isinstance(expected, dict):
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{func}: expected must be a rule with an object")
    return cast("Mapping[str, Any]", expected)


def _text(found: Found, options: Mapping[str, Any]) -> str:
    if isinstance(found, bytes):
        found = found.decode("utf-8", "replace")
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    if options.get("strip", True):
        text = text.strip()
    return text.lower() if options.get("ignore_case") else text


def _exact(found: str, expected: str) -> Score:
    return (1.0, "") if found == expected else (0.0, "they differ")


async def _fuzzy(found: str, expected: str, options: Mapping[str, Any]) -> Score:
    from rapidfuzz import fuzz  # imported on first use

    if max(len(found), len(expected)) > _CHARACTERS:
        message = f"fuzzy_match: limited to {_CHARACTERS} characters: use exact_match"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    likeness = await anyio.to_thread.run_sync(lambda: fuzz.ratio(found, expected)) / 100
    threshold = options.get("threshold")
    detail = f"likeness {likeness:.3f}"
    if threshold is None:
        return likeness, detail
    return float(likeness >= float(threshold)), detail


def _included(found: str, rules: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    missing = [word for word in _words(rules, "include") if _text(word, options) not in found]
    there = [word for word in _words(rules, "exclude") if _text(word, options) in found]
    if not rules.keys() & {"include", "exclude"}:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "check_include_exclude: give include, exclude, or both")
    lines = [f"missing: {word!r}" for word in missing] + [f"there: {word!r}" for word in there]
    return float(not lines), "; ".join(lines)


def _words(rules: Mapping[str, Any], name: str) -> Sequence[str]:
    words: object = rules.get(name) or []
    return [words] if isinstance(words, str) else [str(word) for word in cast("list[object]", words)]


def _in_list(found: str, expected: str) -> Score:
    try:
        listed: object = json.loads(found)
    except ValueError:
        listed = None
    entries = cast("list[object]", listed) if isinstance(listed, list) else found.splitlines()
    there = any(expected == str(entry).strip() for entry in entries)
    return float(there), "" if there else f"not among {len(entries)} entries"


def _json(found: Found, rules: Mapping[str, Any]) -> Score:
    try:
        value: object = json.loads(found) if isinstance(found, str | bytes) else found
    except ValueError as error:
        raise ToolFailure(ErrorKind.FAILED, f"check_json: the result is not JSON: {error}") from None
    lines: list[str] = []
    for wanted, entries in ((True, rules.get("expect")), (False, rules.get("unexpect"))):
        for entry in cast("list[Mapping[str, Any]]", entries or []):
            if _holds(value, entry) is not wanted:
                path = "/".join(map(str, entry.get("key", [])))
                lines.append(
                    f"{path}: {'not ' if wanted else ''}{entry.get('method', 'eq')} {entry.get('ref')!r}"
                )
    if not rules.keys() & {"expect", "unexpect"}:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "check_json: give expect, unexpect, or both")
    return float(not lines), "; ".join(lines)


def _holds(value: object, entry: Mapping[str, Any]) -> bool:
    method, there = str(entry.get("method", "eq")), True
    for key in entry.get("key", []):
        if isinstance(value, dict) and str(key) in value:
            value = cast("dict[str, object]", value)[str(key)]
        elif (
            isinstance(value, list)
            and isinstance(key, int)
            and -len(cast("list[object]", value)) <= key < len(cast("list[object]", value))
        ):
            value = cast("list[object]", value)[key]
        else:
            there = False
            break
    if method == "exists":
        return there
    if method not in _METHODS:
        raise ToolFailure(
            ErrorKind.BAD_ARGUMENTS, f"check_json: no method {method!r}.{did_you_mean(method, _METHODS)}"
        )
    try:
        return there and bool(_METHODS[method](value, entry.get("ref")))
    except TypeError:
        return False


_METHODS: Mapping[str, Callable[[Any, Any], object]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "in": lambda value, ref: operator.contains(ref, value),
    "not_in": lambda value, ref: not operator.contains(ref, value),
    "contains": operator.contains,
    "exists": lambda value, ref: True,
}


async def _tables(found: Found, expected: Found, options: Mapping[str, Any], session: Session) -> Score:
    sheet = options.get("sheet")
    one = await _rows(found, sheet, session)
    other = await _rows(_value(expected), options.get("expected_sheet", sheet), session)
    if len(one) != len(other):
        return 0.0, f"{len(one)} rows, expected {len(other)}"
    fold, tolerance = bool(options.get("ignore_case")), float(options.get("tolerance", 0.0))
    for number, (row, wanted) in enumerate(zip(one, other, strict=True), 1):
        width = max(len(row), len(wanted))
        for column in range(width):
            cell = row[column] if column < len(row) else None
            should = wanted[column] if column < len(wanted) else None
            if not _same_cell(cell, should, tolerance, fold=fold):
                return 0.0, f"row {number}, column {column + 1}: {cell!r}, expected {should!r}"
    return 1.0, ""


async def _rows(found: Found, sheet: str | int | None, session: Session) -> list[list[object]]:
    if isinstance(found, list):
        return cast("list[list[object]]", found)
    data = found.encode() if isinstance(found, str) else found
    if not isinstance(data, bytes):
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "compare_table: it needs two files, or a list of rows")
    return await _sandboxed.table(session, data, sheet)


def _same_cell(cell: object, should: object, tolerance: float, *, fold: bool) -> bool:
    """Compare cells: empty ones are equal, numbers compare by value, everything else by text."""
    one, other = ("" if value is None else str(value).strip() for value in (cell, should))
    if one == other or (fold and one.lower() == other.lower()):
        return True
    try:
        return abs(float(one) - float(other)) <= tolerance
    except ValueError:
        return False


async def _images(found: Found, expected: Found, options: Mapping[str, Any], session: Session) -> Score:
    if not (isinstance(found, bytes) and isinstance(expected, bytes)):
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "compare_image: it needs two pictures: a region, a file")
    tolerance = int(options.get("tolerance", 0))
    answer = await _sandboxed.compared(session, found, expected, tolerance)
    one, other = answer["sizes"]
    if one != other:
        return 0.0, f"{one[0]}x{one[1]} pixels, expected {other[0]}x{other[1]}"
    alike = float(answer["alike"])
    threshold = float(options.get("threshold", 1.0))
    return float(alike >= threshold), "" if alike >= threshold else f"{alike:.4f} of the pixels are equal"
