"""Text replacement and diffs."""

import difflib
import re
from collections.abc import Iterator

from agentflow.errors import ErrorKind, ToolFailure

CONTEXT = 3
LINES = 2_000
PLACES = 5

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HUNK = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def replace_text(text: str, old: str, new: str, path: str, *, every: bool) -> tuple[str, int]:
    """Return the text with `old` replaced by `new`, and the number of replacements.

    :raises ToolFailure: `not_found` if `old` does not occur; `bad_arguments` if it occurs more than once without `every`,
        or if nothing would change.
    """
    if old == new:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "files_edit: old_text and new_text are the same.")
    found = text.count(old)
    if found == 0:
        hint = " It does with other line ends (\\r\\n)." if old.replace("\n", "\r\n") in text else ""
        message = (
            f"files_edit: old_text does not occur in {path!r}.{hint} Read the file and copy the text exactly."
        )
        raise ToolFailure(ErrorKind.NOT_FOUND, message)
    if found > 1 and not every:
        lines = ", ".join(str(text.count("\n", 0, place) + 1) for place in _places(text, old))
        message = (
            f"files_edit: old_text occurs {found} times in {path!r} (lines {lines}{', …' if found > PLACES else ''}). "
            "Give more of the text around the place, or set replace_all."
        )
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    return text.replace(old, new), found


def diff(before: str, after: str, path: str) -> str:
    """Return a unified diff, computed only between the first and the last change."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    skipped = max(start - CONTEXT, 0)
    tail = max(end - CONTEXT, 0)
    old, new = old[skipped : len(old) - tail], new[skipped : len(new) - tail]
    if max(len(old), len(new)) > LINES:
        return f"(a diff of {max(len(old), len(new))} lines, too long to show)"
    lines = difflib.unified_diff(old, new, path, path, n=CONTEXT)
    return "".join(_whole(_moved(line, skipped)) for line in lines)


def _places(text: str, old: str) -> Iterator[int]:
    place = text.find(old)
    for _ in range(PLACES):
        if place < 0:
            return
        yield place
        place = text.find(old, place + len(old))


def _common(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _moved(line: str, by: int) -> str:
    def numbers(match: re.Match[str]) -> str:
        old, old_length, new, new_length = match.groups(default="")
        return f"@@ -{int(old) + by}{old_length} +{int(new) + by}{new_length} @@"

    return _HUNK.sub(numbers, line, count=1) if line.startswith("@@") else line


def _whole(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
