"""JSON from outside as values that the whole program can use, with errors of one line.

Python's decoder takes much that fails later: numbers that no float can hold, `NaN`, halves of surrogate pairs, and lists nested so
deeply that a function with a few more callers can't encode them.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from agentflow._typeguards import is_list, is_object

DECODE_ERRORS: Final = (ValueError, RecursionError)
"""Errors of `json`, `msgspec` and `pydantic` about data from outside; `decode_reason` describes them."""
MAX_DEPTH: Final = 100
"""Levels of lists and objects in a value."""
MAX_DIGITS: Final = 250
"""Digits of an integer: so many, even hexadecimal ones, fit into a float."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    """JSON that can't be used. The message is one line without its place."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        """Line of the text, for errors of syntax."""


def decode_json(text: str | bytes, *, unique_keys: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """Return the value of a JSON text from outside.

    >>> decode_json('{"depth": 1}')
    {'depth': 1}

    :param unique_keys: refuse an object with a repeated key, as one of its values would be ignored.
    :raises JsonError: if it can't be used.
    """
    text = decode_text(text)
    value, end = decode_part(text, len(text) - len(text.lstrip(_SPACE)), unique_keys=unique_keys)
    if text[end:].strip(_SPACE):
        raise JsonError("not JSON: Extra data", 1 + text.count("\n", 0, end))
    return value


def decode_part(text: str, start: int, *, unique_keys: bool = False) -> tuple[Any, int]:
    """Return the JSON value that begins at a position, and the position of its end.

    :raises JsonError: if it can't be used.
    """
    try:
        value, end = (_UNIQUE if unique_keys else _ANY).raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise JsonError(decode_reason(error), error.lineno) from None
    except RecursionError:
        raise JsonError(f"{_DEEP}; write it flatter") from None
    if _openings(text, start, end) > MAX_DEPTH and _is_deep(value):
        raise JsonError(f"{_DEEP}; write it flatter")
    if _SURROGATE.search(text, start, end):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise JsonError("a text has half of a surrogate pair; write the whole sign") from None
    return value, end


def decode_text(text: str | bytes) -> str:
    """Return UTF-8 text without a byte order mark.

    :raises JsonError: if the bytes are something else.
    """
    try:
        return (text.decode() if isinstance(text, bytes) else text).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise JsonError(f"{decode_reason(error)}; save it as UTF-8") from None


def decode_reason(error: Exception) -> str:
    """Return the message of one of `DECODE_ERRORS` as one line.

    >>> decode_reason(RecursionError("maximum recursion depth exceeded"))
    'nested deeper than 100 levels'
    """
    match error:
        case RecursionError():
            return _DEEP
        case UnicodeDecodeError():
            return "not UTF-8 text"
        case json.JSONDecodeError():
            return f"not JSON: {error.msg.removesuffix(' at')}"
        case _:
            return " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__


_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels"
_MAX_REASON: Final = 300
_SPACE: Final = " \t\r\n"


def _openings(text: str, start: int, end: int) -> int:
    return text.count("[", start, end) + text.count("{", start, end)


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for holder in level for part in _parts(holder)]
    return any(is_object(part) or is_list(part) for part in level)


def _parts(value: object) -> Iterable[object]:
    if is_object(value):
        return value.values()
    return value if is_list(value) else ()


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise JsonError(f"a number of {len(digits):,} digits; {MAX_DIGITS} are the most")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if number - number != 0:
        raise JsonError(f"the number {digits[:20]} is out of range")
    return number


def _constant(name: str) -> float:
    raise JsonError(f"not JSON: {name} is no number; write null, or leave it out")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for index, name in enumerate(names) if name in names[:index])
        raise JsonError(f"{repeated[:100]} is given twice; remove one of them")
    return values


_ANY: Final = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant)
_UNIQUE: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_float, parse_constant=_constant, object_pairs_hook=_unique
)
