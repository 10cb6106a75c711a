"""Evaluation of a task on a machine: getters, and comparisons of their values with the expected ones.

Pictures and tables from a machine are read in the session's sandbox and never in the server.
"""

import json
import operator
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import anyio.to_thread
from pydantic import AliasChoices, Discriminator, Field, Tag, model_validator

from agentflow._typeguards import is_list, is_object
from agentflow.errors import ErrorKind, NotOffered, ToolFailure
from agentflow.extras import with_command
from agentflow.settings import Section
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._sessions import Session
from mcp_servers.vm._results import ComparisonResult, EvaluationResult
from mcp_servers.vm._session_machine import SessionMachine
from mcp_servers.vm._steps import Command, Step, check, run_steps, words
from runtimes import FrameError, JsonLimits, Outcome, decode_object, decode_untrusted

Func = Literal[
    "exact_match",
    "fuzzy_match",
    "check_include_exclude",
    "is_in_list",
    "check_json",
    "compare_table",
    "compare_image",
    "infeasible",
]


class Rule(Section):
    """Given value."""

    type: Literal["rule", "constant"]
    """`rule`."""
    rules: dict[str, Any] | list[Any] | str | bool | int | float | None = Field(
        validation_alias=AliasChoices("rules", "value")
    )
    """The value, or an object with it: `{expected: …}`, `{include: […], exclude: […]}`, `{expect: […]}`."""


class FileContent(Section):
    """File on the machine."""

    type: Literal["vm_file", "file"]
    """`vm_file`."""
    path: str
    """Path on the machine."""


class WorkspaceFile(Section):
    """File of the session's workspace."""

    type: Literal["workspace_file"]
    """`workspace_file`."""
    path: str
    """Path in the workspace."""


class MachineDirectoryListing(Section):
    """Names of a directory's entries on the machine, one a line."""

    type: Literal["list_directory", "vm_directory"]
    """`list_directory`."""
    path: str
    """Path on the machine."""


class CommandOutput(Section):
    """Output of a command on the machine."""

    type: Literal["vm_command_line", "command"]
    """`vm_command_line`."""
    command: Command
    """Shell line, or a program with its arguments. Its exit code must be 0."""
    shell: bool = False
    """Accepted for compatibility and ignored: a line always goes to the shell."""


class ProcessState(Section):
    """State of a program: `running` or `not running`."""

    type: Literal["vm_process", "process"]
    """`vm_process`."""
    name: str = Field(min_length=1)
    """Program name, without the directory."""


class WindowTitle(Section):
    """Title of the focused window, or of an application's topmost one; empty if there is none."""

    type: Literal["vm_window_title", "window"]
    """`vm_window_title`."""
    application: str | None = None
    """Window class of the program, case-insensitive."""


class WindowList(Section):
    """Titles of all windows, topmost last, one a line."""

    type: Literal["vm_window_list", "windows"]
    """`vm_window_list`."""


class AccessibilityNode(Section):
    """Accessibility tree: all of it, or the lines of nodes with this role and name."""

    type: Literal["accessibility_tree"]
    """`accessibility_tree`."""
    role: str | None = None
    """`push-button`, `text`, `dialog`, …"""
    name: str | None = None
    """Name of the node."""


class ScreenRegion(Section):
    """Part of the screen, as a picture."""

    type: Literal["screen_region", "screenshot"]
    """`screen_region`."""
    x: int = Field(default=0, ge=0)
    """Left edge."""
    y: int = Field(default=0, ge=0)
    """Top edge."""
    width: int | None = Field(default=None, gt=0)
    """Width; the default extends to the right edge of the screen."""
    height: int | None = Field(default=None, gt=0)
    """Height; the default extends to the bottom edge of the screen."""


def _kind(value: object) -> str:
    kind = str(value.get("type") if is_object(value) else getattr(value, "type", None))
    return _GETTER_ALIASES.get(kind, kind)


_GETTER_ALIASES = {
    "constant": "rule",
    "file": "vm_file",
    "vm_directory": "list_directory",
    "command": "vm_command_line",
    "process": "vm_process",
    "window": "vm_window_title",
    "windows": "vm_window_list",
    "screenshot": "screen_region",
}
"""Aliases of the getters."""

Getter = Annotated[
    Annotated[Rule, Tag("rule")]
    | Annotated[FileContent, Tag("vm_file")]
    | Annotated[WorkspaceFile, Tag("workspace_file")]
    | Annotated[MachineDirectoryListing, Tag("list_directory")]
    | Annotated[CommandOutput, Tag("vm_command_line")]
    | Annotated[ProcessState, Tag("vm_process")]
    | Annotated[WindowTitle, Tag("vm_window_title")]
    | Annotated[WindowList, Tag("vm_window_list")]
    | Annotated[AccessibilityNode, Tag("accessibility_tree")]
    | Annotated[ScreenRegion, Tag("screen_region")],
    Discriminator(_kind),
]
"""Getter: a value to read."""


class Evaluation(Section):
    """Evaluation: getters and comparisons. With several comparisons each list has one entry for each."""

    func: Func | list[Func]
    """Comparison, or several."""
    result: Getter | list[Getter] | None = None
    """Getter of the actual value."""
    expected: Getter | list[Getter] | None = None
    """Expected value."""
    options: dict[str, Any] | list[dict[str, Any]] | None = None
    """Options of the comparison: `threshold`, `ignore_case`, `strip`, `tolerance`, `sheet`, …"""
    conj: Literal["and", "or"] = "and"
    """Combination of several comparisons."""
    postconfig: list[Step] = Field(default_factory=list[Step])
    """Steps to run on the machine first."""

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        many = len(self.func) if isinstance(self.func, list) else 1
        for name in ("result", "expected", "options"):
            value: object = getattr(self, name)
            if is_list(value):
                if len(value) != many:
                    raise ValueError(f"`{name}` has {len(value)} entries, `func` {many}: give one for each")
            elif isinstance(self.func, list) and value is not None:
                raise ValueError(f"`func` is a list of {many}, so `{name}` must be one, too")
        return self

    def parts(self) -> list[tuple[Func, Getter | None, Getter | None, dict[str, Any]]]:
        """Return each comparison with its getter, expected value and options."""
        funcs: list[Func] = self.func if isinstance(self.func, list) else [self.func]
        results = self.result if isinstance(self.result, list) else [self.result] * len(funcs)
        expected = self.expected if isinstance(self.expected, list) else [self.expected] * len(funcs)
        options = self.options if isinstance(self.options, list) else [self.options or {}] * len(funcs)
        return list(zip(funcs, results, expected, options, strict=True))


Score = tuple[float, str]
"""Score from 0 to 1, and a description of the difference."""

_SHOWN_CHARACTERS = 500
_FUZZY_CHARACTERS = 20_000
_FILE_BYTES = 32 * 1024 * 1024
_FILE_LIMITS = JsonLimits(max_bytes=_FILE_BYTES, max_values=1_000_000)
"""Maximum size of a file in bytes."""
_PROGRAM = (Path(__file__).parent / "_sandboxed_program.py").read_text(encoding="utf-8")
_PYTHON = f"{sys.prefix}/bin/python3"
_SECONDS = 30.0
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


async def evaluate(evaluator: Evaluation, acting: SessionMachine, session: Session) -> EvaluationResult:
    """Run the getters and compare.

    :raises ToolFailure: if a getter fails or a comparison is invalid: that is not a score of 0.
    """
    await run_steps(evaluator.postconfig, acting.machine, session)
    measured: list[ComparisonResult] = []
    for func, result, expected, options in evaluator.parts():
        if func == "infeasible":
            measured.append(ComparisonResult(func=func, score=float(acting.failed)))
        else:
            measured.append(await _measure(func, result, expected, options, acting, session))
    scores = [comparison.score for comparison in measured]
    score = min(scores) if evaluator.conj == "and" else max(scores)
    details = ""
    if acting.failed and all(comparison.func != "infeasible" for comparison in measured):
        # Giving up on a possible task fails it, regardless of the machine's state.
        score, details = 0.0, "The last action was vm_fail, but the task is not impossible."
    return EvaluationResult(
        score=score, results=measured, conj=evaluator.conj, last_action_failed=acting.failed, details=details
    )


async def _measure(
    func: Func,
    result: Getter | None,
    expected: Getter | None,
    options: dict[str, object],
    acting: SessionMachine,
    session: Session,
) -> ComparisonResult:
    if result is None or expected is None:
        lacking = "result" if result is None else "expected"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"vm_evaluate: {func} needs `{lacking}`.")
    try:
        actual = await _look(result, acting, session)
        wanted = await _look(expected, acting, session)
        score, detail = await _compare(func, actual, wanted, options, session)
    except ToolFailure as failure:
        raise ToolFailure(failure.kind, f"vm_evaluate: {failure.message}") from None
    return ComparisonResult(
        func=func, score=score, result=_shown(actual), expected=_shown(wanted), detail=detail
    )


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return f"{len(value)} bytes"
    else:
        text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


async def _look(getter: Getter, acting: SessionMachine, session: Session) -> object:
    """Return the value of a getter.

    :raises ToolFailure: if it cannot be determined.
    """
    try:
        return await _value_of(getter, acting, session)
    except FileNotFoundError:
        path = getattr(getter, "path", "")
        raise ToolFailure(ErrorKind.NOT_FOUND, f"{getter.type}: there is no {path!r}") from None
    except (NotOffered, OSError) as error:
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"{getter.type}: {error}") from None


async def _value_of(getter: Getter, acting: SessionMachine, session: Session) -> object:
    match getter:
        case Rule():
            return getter.rules
        case FileContent():
            return _bounded(await acting.machine.read(getter.path), getter.path)
        case WorkspaceFile():
            return _bounded(
                await (await session.instance()).read(getter.path, length=_FILE_BYTES + 1), getter.path
            )
        case ScreenRegion():
            return await _region(getter, acting, session)
        case AccessibilityNode():
            return _nodes(await acting.machine.accessibility(), getter)
        case WindowTitle() | WindowList():
            return await _windows(getter, acting)
        case MachineDirectoryListing():
            return await _output(["ls", "-1A", "--", getter.path], acting)
        case ProcessState():
            return await _process(getter.name, acting)
        case CommandOutput():
            return await _output(getter.command, acting)


def _bounded(data: bytes, path: str) -> bytes:
    if len(data) > _FILE_BYTES:
        raise ToolFailure(ErrorKind.FILE_TOO_LARGE, f"{path!r} has more than {_FILE_BYTES} bytes")
    return data


async def _output(command: Command, acting: SessionMachine) -> str:
    done = await acting.machine.exec(words(command), timeout=acting.settings.evaluate_seconds)
    check(done, command)
    return done.stdout.decode("utf-8", "replace")


async def _process(name: str, acting: SessionMachine) -> str:
    # Not every system has pgrep, and /proc may hide processes of other users.
    line = f'for f in /proc/[0-9]*/comm; do read -r n < "$f" 2>/dev/null && [ "$n" = {shlex.quote(name[:15])} ] && echo yes; done; :'
    return "running" if "yes" in await _output(line, acting) else "not running"


async def _windows(getter: WindowTitle | WindowList, acting: SessionMachine) -> str:
    there = await acting.machine.windows()
    if isinstance(getter, WindowList):
        return "\n".join(window.title for window in there)
    if getter.application is None:
        return next((window.title for window in there if window.focused), "")
    wanted = getter.application.lower()
    return next((window.title for window in reversed(there) if window.application.lower() == wanted), "")


def _nodes(tree: str, getter: AccessibilityNode) -> str:
    if getter.role is None and getter.name is None:
        return tree
    role = re.escape(getter.role) if getter.role is not None else r"\S+"
    name = re.escape(f'"{getter.name}"') if getter.name is not None else r'"'
    wanted = re.compile(rf"\s*{role} {name}")
    return "\n".join(line.strip() for line in tree.splitlines() if wanted.match(line))


async def _region(getter: ScreenRegion, acting: SessionMachine, session: Session) -> bytes:
    screen = await acting.machine.screenshot()
    right = getter.x + (getter.width or screen.width - getter.x)
    lower = getter.y + (getter.height or screen.height - getter.y)
    if not (getter.x < right <= screen.width and getter.y < lower <= screen.height):
        size = f"{screen.width}x{screen.height}"
        message = f"{getter.type}: the region up to ({right}, {lower}) is not on the screen of {size}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if (getter.x, getter.y, right, lower) == (0, 0, screen.width, screen.height):
        return screen.png
    box = (getter.x, getter.y, right, lower)
    return await _in_sandbox(session, {"do": "crop", "box": box}, screen.png)


async def _compare(
    func: Func, actual: object, expected: object, options: Mapping[str, Any], session: Session
) -> Score:
    """Compare a found value with the expected one.

    :raises ToolFailure: if the values do not fit the comparison.
    """
    option_names = _OPTIONS[func]
    for name in options:
        if name not in option_names:
            raise ToolFailure(
                ErrorKind.BAD_ARGUMENTS, f"{func}: no option {name!r}.{did_you_mean(name, option_names)}"
            )
    match func:
        case "exact_match":
            return _exact(_text(actual, options), _text(_value(expected), options))
        case "fuzzy_match":
            return await _fuzzy(_text(actual, options), _text(_value(expected), options), options)
        case "check_include_exclude":
            return _included(_text(actual, options), _rules(func, expected), options)
        case "is_in_list":
            return await _in_list(_text(actual, options), _text(_value(expected), options))
        case "check_json":
            return await _json(actual, _rules(func, expected))
        case "compare_table":
            return await _tables(actual, expected, options, session)
        case "compare_image":
            return await _images(actual, expected, options, session)
        case "infeasible":
            raise AssertionError("scored without inspection")


def _value(expected: object) -> object:
    """Return the value of `{expected: …}`, or the whole rule."""
    return expected["expected"] if is_object(expected) and "expected" in expected else expected


def _rules(func: Func, expected: object) -> Mapping[str, Any]:
    if not is_object(expected):
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{func}: expected must be a rule with an object")
    return expected


def _text(value: object, options: Mapping[str, Any]) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if options.get("strip", True):
        text = text.strip()
    return text.lower() if options.get("ignore_case") else text


def _exact(actual: str, expected: str) -> Score:
    return (1.0, "") if actual == expected else (0.0, "they differ")


async def _fuzzy(actual: str, expected: str, options: Mapping[str, Any]) -> Score:
    from rapidfuzz import fuzz  # imported on first use

    if max(len(actual), len(expected)) > _FUZZY_CHARACTERS:
        message = f"fuzzy_match: limited to {_FUZZY_CHARACTERS} characters: use exact_match"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    likeness = await anyio.to_thread.run_sync(lambda: fuzz.ratio(actual, expected)) / 100
    threshold = options.get("threshold")
    detail = f"likeness {likeness:.3f}"
    if threshold is None:
        return likeness, detail
    return float(likeness >= float(threshold)), detail


def _included(actual: str, rules: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    missing = [word for word in _words(rules, "include") if _text(word, options) not in actual]
    forbidden = [word for word in _words(rules, "exclude") if _text(word, options) in actual]
    if not rules.keys() & {"include", "exclude"}:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "check_include_exclude: give include, exclude, or both")
    lines = [f"missing: {word!r}" for word in missing] + [f"there: {word!r}" for word in forbidden]
    return float(not lines), "; ".join(lines)


def _words(rules: Mapping[str, Any], name: str) -> Sequence[str]:
    words = rules.get(name) or ()
    return [words] if isinstance(words, str) else [str(word) for word in words]


async def _in_list(actual: str, expected: str) -> Score:
    try:
        listed = await _decoded(actual)
    except FrameError:
        listed = None
    entries = listed if is_list(listed) else actual.splitlines()
    listed_value = any(expected == str(entry).strip() for entry in entries)
    return float(listed_value), "" if listed_value else f"not among {len(entries)} entries"


async def _decoded(encoded: str | bytes) -> object:
    """Decode JSON from the machine or the session.

    :raises FrameError: if it is no JSON, or has too many values.
    """
    data = encoded.encode("utf-8", "replace") if isinstance(encoded, str) else encoded
    value: object = await decode_untrusted(data, json.loads, _FILE_LIMITS)
    return value


async def _json(actual: object, rules: Mapping[str, Any]) -> Score:
    try:
        value = await _decoded(actual) if isinstance(actual, str | bytes) else actual
    except FrameError as error:
        raise ToolFailure(ErrorKind.FAILED, f"check_json: the result is not JSON: {error}") from None
    lines: list[str] = []
    for wanted, entries in ((True, rules.get("expect")), (False, rules.get("unexpect"))):
        for entry in entries or ():
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
        if is_object(value) and str(key) in value:
            value = value[str(key)]
        elif is_list(value) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
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


async def _tables(actual: object, expected: object, options: Mapping[str, Any], session: Session) -> Score:
    sheet = options.get("sheet")
    rows = await _rows(actual, sheet, session)
    expected_rows = await _rows(_value(expected), options.get("expected_sheet", sheet), session)
    if len(rows) != len(expected_rows):
        return 0.0, f"{len(rows)} rows, expected {len(expected_rows)}"
    fold, tolerance = bool(options.get("ignore_case")), float(options.get("tolerance", 0.0))
    for number, (row, wanted) in enumerate(zip(rows, expected_rows, strict=True), 1):
        for column, (cell, should) in enumerate(zip_longest(row, wanted), 1):
            if not _same_cell(cell, should, tolerance, fold=fold):
                return 0.0, f"row {number}, column {column}: {cell!r}, expected {should!r}"
    return 1.0, ""


async def _rows(content: object, sheet: str | int | None, session: Session) -> list[list[object]]:
    if is_list(content):
        return content
    data = content.encode() if isinstance(content, str) else content
    if not isinstance(data, bytes):
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "compare_table: it needs two files, or a list of rows")
    answer = await _object_from_sandbox(session, {"do": "table", "sheet": sheet}, data)
    rows: list[list[object]] = answer["rows"]
    return rows


def _same_cell(cell: object, should: object, tolerance: float, *, fold: bool) -> bool:
    """Compare cells: empty ones are equal, numbers compare by value, everything else by text."""
    text, expected = ("" if value is None else str(value).strip() for value in (cell, should))
    if text == expected or (fold and text.lower() == expected.lower()):
        return True
    try:
        return abs(float(text) - float(expected)) <= tolerance
    except ValueError:
        return False


async def _images(actual: object, expected: object, options: Mapping[str, Any], session: Session) -> Score:
    if not (isinstance(actual, bytes) and isinstance(expected, bytes)):
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "compare_image: it needs two pictures: a region, a file")
    tolerance = int(options.get("tolerance", 0))
    answer = await _object_from_sandbox(session, {"do": "compare", "tolerance": tolerance}, actual, expected)
    size, expected_size = answer["sizes"]
    if size != expected_size:
        return 0.0, f"{size[0]}x{size[1]} pixels, expected {expected_size[0]}x{expected_size[1]}"
    alike = float(answer["alike"])
    threshold = float(options.get("threshold", 1.0))
    return float(alike >= threshold), "" if alike >= threshold else f"{alike:.4f} of the pixels are equal"


async def _object_from_sandbox(
    session: Session, request: Mapping[str, object], *files: bytes
) -> dict[str, Any]:
    try:
        return await decode_untrusted(await _in_sandbox(session, request, *files), decode_object)
    except FrameError:
        raise ToolFailure(ErrorKind.FAILED, "it cannot be read: the sandbox returned no answer") from None


async def _in_sandbox(session: Session, request: Mapping[str, object], *files: bytes) -> bytes:
    """Run the sandboxed program on some files."""
    arguments = json.dumps({**request, "sizes": [len(file) for file in files]})
    command = [_PYTHON, "-E", "-s", "-c", _PROGRAM, arguments]
    done = await (await session.instance()).exec(command, input=b"".join(files), timeout=_SECONDS)
    if done.outcome is not Outcome.OK or done.exit_code != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = done.detail or (lines[-1][:300] if lines else f"exit code {done.exit_code}")
        reason = with_command(reason)
        raise ToolFailure(ErrorKind.FAILED, f"it cannot be read: {reason}")
    return done.stdout
