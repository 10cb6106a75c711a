"""Evaluator: runs source text in one persistent namespace, like a notebook. Runs inside a session.

It is imported into a warm interpreter that is then forked, so it and its neighbours (`_displays`, `_tables`) need only
the standard library.
"""

import ast
import builtins
import io
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import NoReturn

from runtimes.process.inside._displays import Displays
from runtimes.process.inside._tables import TABLE_MIME, Foreign, run_sql

SESSION_MODULE = "_agentflow_session"
"""Module through which tools inside the session reach the evaluator: `import _agentflow_session`."""

VARIABLES_MIME = "application/vnd.agentflow.variables+json"
"""MIME type of the variable list that `_agentflow_session.show_variables()` shows."""

VALUE_LENGTH = 1_000_000
VALUE_ITEMS = 20_000
CELLS = 5_000
_VALUE = "__agentflow_value__"
_AWAITABLE = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

_SHARED = builtins.__dict__
_process_id, _end_process = os.getpid, os._exit

ERROR_LENGTH = 40_000
_OWN = os.path.dirname(__file__) + os.sep
VARIABLES = 500
SUMMARY_LENGTH = 160
SUMMARY_ITEMS = 5

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_ARRAYS = frozenset({"numpy", "pandas", "torch", "pyarrow", "polars", "scipy", "jax"})


class PythonEvaluator:
    """One Python session: a `__main__` module whose names persist between runs."""

    def __init__(self) -> None:
        self._main = ModuleType("__main__")
        self._cells: dict[str, tuple[int, None, list[str], str]] = {}
        self._future_flags = 0
        self._displays = Displays()
        self._replaced: dict[str, Foreign] = {}
        self.interruptible = False
        """User code is running. At any other time an interrupt would break the reporting of its result."""
        sys.modules["__main__"] = self._main
        # Modules of the working directory can be imported, as in an interactive interpreter.
        sys.path.insert(0, "")
        _SHARED.update(display=self._displays.display, exit=_leave, quit=_leave)
        self._builtins = _SHARED.copy()
        module = sys.modules[SESSION_MODULE] = ModuleType(SESSION_MODULE)
        vars(module).update(show_variables=self._show_variables, sql=self._sql)

    @property
    def namespace(self) -> dict[str, Foreign]:
        """Variables of the session."""
        return vars(self._main)

    def run(self, source: str, filename: str) -> dict[str, object]:
        """Run source text; `filename` names it in tracebacks and must be new for each run.

        The result has `value` (the `repr` of a last expression that is not `None`), `error` (`type`, `message`,
        `traceback`) and `displays` (MIME type and data of each). Printed text goes to `sys.stdout` and `sys.stderr`.
        """
        self._restore()
        process = _process_id()
        value, error = self._guarded(lambda: self._show(self._execute(self._compile(source, filename))))
        _, undrawn = self._guarded(self._displays.show_figures)
        error = error or undrawn
        self.namespace.pop(_VALUE, None)
        if _process_id() != process:
            _end_copy(error)
        _flush()
        return {"value": value, "error": error, "displays": self._displays.take()}

    def _guarded(self, work: Callable[[], str | None]) -> tuple[str | None, dict[str, str] | None]:
        try:
            self.interruptible = True
            return work(), None
        except BaseException as error:
            # Boundary between user code and the session, which continues whatever the code raises.
            self.interruptible = False
            left = isinstance(error, SystemExit) and error.code in (None, 0)
            return None, None if left else self._describe(error)
        finally:
            self.interruptible = False

    def _compile(self, source: str, filename: str) -> CodeType:
        lines = io.StringIO(source, newline=None).readlines()
        if len(self._cells) >= CELLS:
            oldest = next(iter(self._cells))
            del self._cells[oldest]
            linecache.cache.pop(oldest, None)
        self._cells[filename] = linecache.cache[filename] = (len(source), None, lines, filename)
        flags = self._future_flags | _AWAITABLE
        tree = compile(source, filename, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr) and not _ends_with_semicolon(lines, last):
            kept = ast.Assign(targets=[ast.Name(id=_VALUE, ctx=ast.Store())], value=last.value)
            tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
        code = compile(tree, filename, "exec", flags, dont_inherit=True)
        # As in an interactive interpreter, `from __future__ import …` holds for the runs that follow.
        self._future_flags |= code.co_flags & _FUTURE_FLAGS
        return code

    def _execute(self, code: CodeType) -> object:
        self.namespace.pop(_VALUE, None)
        # Builtins replaced by user code apply to user code only.
        _SHARED.update(self._replaced)
        try:
            _await(eval(code, self.namespace))
        finally:
            own_builtins = self._builtins
            self._replaced = {
                name: value for name, value in _SHARED.items() if own_builtins.get(name) is not value
            }
            _SHARED.update(own_builtins)
        return self.namespace.pop(_VALUE, None)

    def _show(self, value: object) -> str | None:
        if value is None:
            return None
        self.namespace["_"] = value
        self._displays.show(value)
        return printable(_bounded_repr(value), VALUE_LENGTH)

    def _describe(self, error: BaseException) -> dict[str, str]:
        linecache.cache.update(self._cells)
        return describe_error(error, self._cells)

    def _restore(self) -> None:
        """Restore `__main__` and the standard streams if a run has replaced, closed or removed them."""
        sys.modules["__main__"] = self._main
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            stream = getattr(sys, name, None)
            if stream is None or getattr(stream, "closed", False):
                setattr(sys, name, new_stream(descriptor))

    def _show_variables(self) -> None:
        self._displays.add_json(VARIABLES_MIME, describe_variables(self.namespace))

    def _sql(self, query: str, rows: int) -> None:
        self._displays.add_json(TABLE_MIME, run_sql(query, rows, self.namespace))


def _await(awaitable: Coroutine[object, object, object] | None) -> None:
    if awaitable is not None:
        import asyncio

        # One event loop per run: a remaining loop's descriptors would be shared with forks.
        with asyncio.Runner() as runner:
            runner.run(awaitable)


def _end_copy(error: dict[str, str] | None) -> NoReturn:
    """End a process that user code forked, which must not reply in place of its parent."""
    if error is not None:
        sys.stderr.write(error["traceback"])
    _flush()
    _end_process(1 if error else 0)


def new_stream(descriptor: int) -> io.TextIOWrapper:
    """Return a line-buffered text stream to a descriptor that can print any text."""
    binary = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(binary, "utf-8", "backslashreplace", line_buffering=True)


def _leave(code: object = None) -> NoReturn:
    """End this run but keep the session."""
    raise SystemExit(code)


def _ends_with_semicolon(lines: list[str], last: ast.Expr) -> bool:
    rest = "".join(lines[(last.end_lineno or 1) - 1 :]).encode()[last.end_col_offset or 0 :]
    return rest.lstrip().startswith(b";")


def _bounded_repr(value: object) -> str:
    kind = type(value)
    if kind in (str, bytes, list, tuple, set, frozenset, dict):
        collection: Foreign = value
        limit = VALUE_LENGTH if kind in (str, bytes) else VALUE_ITEMS
        if len(collection) > limit:
            head = collection[:limit] if kind in (str, bytes) else _head(collection, limit)
            return f"{head!r}\n… {len(collection) - limit} more"
    return repr(value)


def _head(collection: Foreign, limit: int) -> object:
    return type(collection)(islice(getattr(collection, "items", collection.__iter__)(), limit))


def _flush() -> None:
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:
            # A stream of the user's, a missing one, or one without a reader.
            continue


def _future_flags() -> int:
    import __future__

    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag
    return flags


_FUTURE_FLAGS = _future_flags()


def describe_error(error: BaseException, cells: Collection[str]) -> dict[str, str]:
    """Describe an exception, with the frames of user code and of the libraries that it called.

    `cells` are the names of the user's sources. Frames of the runtime are left out.
    """
    kind = printable(_name(error), SUMMARY_LENGTH)
    try:
        return {"type": kind, "message": _message(error), "traceback": _traceback(error, cells)}
    except BaseException:
        # User code can break or interrupt the formatting; the type alone is still a result.
        return {"type": kind, "message": "", "traceback": f"{kind} (its traceback could not be formatted)\n"}


def printable(text: str, limit: int = ERROR_LENGTH) -> str:
    """Return valid UTF-8 text, cut in the middle if it is longer than the limit."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _name(error: BaseException) -> str:
    return str(type.__dict__["__name__"].__get__(type(error)))


def _message(error: BaseException) -> str:
    try:
        return printable(str(error))
    except Exception:
        # A broken `__str__` is the user's.
        return "<no message: __str__ failed>"


def _traceback(error: BaseException, cells: Collection[str]) -> str:
    report = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    for linked in _linked(report):
        has_user_code = _cut_frames(linked, cells)
        if linked is report and not has_user_code and isinstance(error, KeyboardInterrupt):
            # It interrupted the event loop while it waited; those frames are irrelevant.
            report.stack.clear()
    alone = not report.stack and report.__cause__ is None and report.__context__ is None
    lines = report.format_exception_only() if alone else report.format()
    return printable("".join(lines))


def _linked(report: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    pending, seen = [report], set[int]()
    while pending:
        current = pending.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            linked = (current.__cause__, current.__context__, *(current.exceptions or ()))
            pending.extend(link for link in linked if link is not None)


def _cut_frames(report: traceback.TracebackException, cells: Collection[str]) -> bool:
    frames = [frame for frame in report.stack if not frame.filename.startswith(_OWN)]
    first = next((index for index, frame in enumerate(frames) if frame.filename in cells), None)
    report.stack[:] = frames[first or 0 :]
    return first is not None


def describe_variables(namespace: Mapping[str, object]) -> list[dict[str, str]]:
    """Return name, type and a one-line summary of each public variable, sorted by name; execute no code of the values."""
    names = sorted(name for name in list(namespace) if not name.startswith("_"))
    return [_described(name, namespace[name]) for name in names[:VARIABLES]]


def _described(name: str, value: object) -> dict[str, str]:
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
    if isinstance(value, str | bytes) and len(value) > SUMMARY_LENGTH:
        return f"{value[:SUMMARY_LENGTH]!r}… ({len(value)} long)"
    return repr(value)


def _container(value: Foreign) -> str:
    count = f"{len(value)} item{'' if len(value) == 1 else 's'}"
    if any(type(item) not in _SIMPLE for item in islice(value, SUMMARY_ITEMS)):
        return count
    head = ", ".join(_short(item) for item in islice(value, SUMMARY_ITEMS))
    return f"{count}: {head}{', …' if len(value) > SUMMARY_ITEMS else ''}" if value else count


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
    cut = text if len(text) <= 2 * SUMMARY_LENGTH else text[: 2 * SUMMARY_LENGTH] + "…"
    return cut.encode("utf-8", "backslashreplace").decode()
