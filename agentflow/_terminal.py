"""Removal of control characters from data that is shown on a terminal."""

import re
from typing import Final

_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # ESC, BEL, CR and the others of C0 and C1, but not tab and line feed
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"  # direction, invisible text
)


def escape_controls(json: str) -> str:
    r"""Return JSON with all control characters as escapes: a terminal obeys none, and the data are the same.

    >>> print(escape_controls('"a\u202eb"'))
    "a\u202eb"
    """
    return json if json.isascii() and json.isprintable() else _CONTROLS.sub(_escape, json)


def _escape(match: re.Match[str]) -> str:
    return "".join(f"\\u{unit:04x}" for unit in memoryview(match[0].encode("utf-16-le")).cast("H"))


def printable(text: str) -> str:
    """Return a text without control characters: a terminal obeys none of it, and it reads in the order of its letters.

    Tabs, line feeds and all visible characters stay.

    >>> printable("a\\x1b]0;title\\x07b\\u202ec")
    'a]0;titlebc'
    """
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub("", text)
