"""What a tool returned, as text that a reader understands and that is the same in every run.

Left out is what differs from run to run without meaning anything: handles, process ids, durations, times of change,
addresses in memory, names of temporary files, links.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

__all__ = ["observed_text", "trouble_of"]

Data: TypeAlias = Mapping[str, object]

MOST_ROWS = 100
"""Rows of a table, and entries of a list, that are shown."""
LONGEST_TROUBLE = 300

_VARYING = frozenset({"session_id", "pid", "duration", "elapsed", "modified"})
_SCRUBBED = (
    (re.compile(r"(?<=\bat )0x[0-9a-fA-F]{4,16}\b"), "0x…"),
    (re.compile(r"/tmp/tmp[A-Za-z0-9_]{6,}"), "/tmp/tmp…"),
    (re.compile(r"; the whole is at agentflow://\S+"), ""),
    # What a shell says of a program that a signal ended begins with its process id.
    (re.compile(r"(: line \d+:) +\d+ (?=[A-Z][a-z]+)"), r"\1 "),
)
_HINTS = ("0x", "/tmp/tmp", "agentflow://", ": line ")
"""What a text has in which something of that may stand: most have none."""


def observed_text(data: Data) -> str:
    """The data of a result as text; empty if it tells nothing."""
    for names, render in _KNOWN:
        if names <= data.keys():
            text = render(data)
            break
    else:
        text = _anything(data)
    return scrubbed(text)


def scrubbed(text: str) -> str:
    """The text without what differs from run to run."""
    if any(hint in text for hint in _HINTS):
        for pattern, instead in _SCRUBBED:
            text = pattern.sub(instead, text)
    return text


def trouble_of(data: Data) -> str:
    """How what a call ran ended badly, in one line; empty if it did not.

    A program that ends with 1 and complains of nothing has said no, as `grep` and `diff` do.
    """
    code = data.get("exit_code")
    if isinstance(code, int) and code != 0 and not (code == 1 and not _text(data, "stderr").strip()):
        return f"exit code {code}"
    error = data.get("error")
    if isinstance(error, Mapping):
        problem = cast("Data", error)
        told = f"{problem.get('type', 'error')}: {problem.get('message', '')}"
    else:
        told = error if isinstance(error, str) else ""
    return scrubbed(" ".join(told.split()))[:LONGEST_TROUBLE].removesuffix(":")


def _shell(data: Data) -> str:
    code = data["exit_code"]
    return _joined(
        _text(data, "stdout"),
        _titled("stderr", _text(data, "stderr")),
        f"exit code: {code}" if code not in (0, None) else "",
        _titled("note", _text(data, "note")),
    )


def _python(data: Data) -> str:
    value, tables = _text(data, "value"), _mappings(data.get("tables"))
    if tables and "\n" in value:
        # A table's own text: the table itself tells more.
        value = ""
    displays = [_text(each, "text") for each in _mappings(data.get("displays"))]
    return _joined(
        _text(data, "stdout"),
        value,
        *map(_table, tables),
        *displays,
        _titled("stderr", _text(data, "stderr")),
        _titled("error", trouble_of(data)),
        _titled("note", _text(data, "note")),
    )


def _table(data: Data) -> str:
    rows = [cast("Sequence[object]", row) for row in _sequence(data.get("rows"))]
    names = [str(column.get("name", "")) for column in _mappings(data.get("columns"))]
    total = data.get("total_rows")
    shown = rows[:MOST_ROWS]
    lines = [" | ".join(names), *(" | ".join(map(_cell, row)) for row in shown)] if rows else []
    more = isinstance(total, int) and total > len(shown)
    return _joined(*lines, f"… {total} rows in all" if more else "", _titled("error", trouble_of(data)))


def _file(data: Data) -> str:
    if data["kind"] != "text":
        return f"{data['path']}: {data.get('mime')}, {data.get('size')} bytes"
    following = data.get("next_offset")
    total = data.get("total_lines")
    rest = f"… line {following} and what follows is not shown{f' ({total} lines in all)' if total else ''}"
    return _joined(_text(data, "content"), rest if following else "", _titled("note", _text(data, "note")))


def _found(data: Data) -> str:
    matches = _mappings(data["matches"])
    lines = [
        str(each["path"])
        if each.get("line") is None
        else f"{each['path']}:{each['line']}: {each.get('text')}"
        for each in matches
    ]
    return _joined(*lines, "… there are more" if data.get("truncated") else "") or "no matches"


def _listing(data: Data) -> str:
    entries = _mappings(data["entries"])
    lines = [f"{each.get('path')} ({each.get('kind')}, {each.get('size')} bytes)" for each in entries]
    total = data.get("total")
    more = isinstance(total, int) and total > len(entries)
    return _joined(*lines, f"… {total} in all" if more else "") or "no entries"


def _edited(data: Data) -> str:
    return _joined(f"{data['path']}: {data['replacements']} replaced", _text(data, "diff"))


_KNOWN: tuple[tuple[set[str], Callable[[Data], str]], ...] = (
    ({"stdout", "stderr", "exit_code"}, _shell),
    ({"stdout", "value", "error"}, _python),
    ({"columns", "rows"}, _table),
    ({"path", "kind", "content"}, _file),
    ({"matches", "files_searched"}, _found),
    ({"path", "entries", "total"}, _listing),
    ({"path", "replacements", "diff"}, _edited),
)


def _anything(data: Data) -> str:
    told = _lasting(data)
    if _says_nothing(told):
        return ""
    if list(told) == ["result"]:
        return "\n".join(_lines(told["result"]))
    return "\n".join(_lines(told))


def _lasting(data: Data) -> Data:
    """What of it is the same in every run."""
    return {
        name: value
        for name, value in data.items()
        if name not in _VARYING and not (isinstance(value, str) and value.startswith("agentflow://"))
    }


def _says_nothing(value: object) -> bool:
    """Whether something is empty in it, and everything else is empty or zero: no hits, 0 in all."""
    leaves = list(_leaves(value))
    return not leaves or (None in leaves and all(not leaf for leaf in leaves))


def _leaves(value: object) -> list[object]:
    """Its values; `None` for each that is empty."""
    if isinstance(value, Mapping):
        entries = [leaf for each in cast("Data", value).values() for leaf in _leaves(each)]
    elif isinstance(value, list | tuple):
        entries = [leaf for each in cast("Sequence[object]", value) for leaf in _leaves(each)]
    else:
        return [None if value in (None, "") else value]
    return entries or [None]


def _lines(value: object) -> list[str]:
    """One line for each thing, what belongs to it indented below; lists numbered."""
    if isinstance(value, Mapping):
        told = _lasting(cast("Data", value))
        return [line for name, each in told.items() for line in _named(f"{name}:", each)]
    if isinstance(value, list | tuple):
        entries = cast("Sequence[object]", value)
        shown = [
            line
            for number, each in enumerate(entries[:MOST_ROWS], start=1)
            for line in _named(f"{number}.", each)
        ]
        more = len(entries) - MOST_ROWS
        return [*shown, f"… {more} more"] if more > 0 else shown
    return _cell(value).splitlines()


def _named(name: str, value: object) -> list[str]:
    lines = _lines(value)
    if not lines:
        return [f"{name} none"]
    if len(lines) == 1 and not isinstance(value, Mapping | list | tuple):
        return [f"{name} {lines[0]}"]
    if name.endswith("."):
        first, *rest = lines
        return [f"{name} {first}", *(f"   {line}" for line in rest)]
    return [name, *(f"  {line}" for line in lines)]


def _cell(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case _:
            return str(value)


def _text(data: Data, name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _sequence(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()


def _mappings(value: object) -> list[Data]:
    return [cast("Data", each) for each in _sequence(value) if isinstance(each, Mapping)]


def _titled(title: str, text: str) -> str:
    text = text.strip()
    return f"{title}: {text}" if text and "\n" not in text else f"{title}:\n{text}" if text else ""


def _joined(*pieces: str) -> str:
    """The pieces that say something, line after line."""
    return "\n".join(piece.rstrip() for piece in pieces if piece.strip())
