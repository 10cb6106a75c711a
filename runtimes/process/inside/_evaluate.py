"""Evaluator: runs source text in one persistent namespace, like a notebook. Runs inside a session.

It is imported into a warm interpreter that is then forked, so it and its neighbours (`_displays`, `_tables`,
`_variables`, `_errors`) need only the standard library.
"""

import ast
import builtins
import io
import linecache
import os
import sys
from collections.abc import Callable, Coroutine
from itertools import islice
from types import CodeType, ModuleType
from typing import NoReturn

from runtimes.process.inside._displays import Displays
from runtimes.process.inside._errors import describe_error, printable
from runtimes.process.inside._tables import TABLE_MIME, Foreign, run_sql
from runtimes.process.inside._variables import describe_variables

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
        self._offer_to_tools()

    @property
    def namespace(self) -> dict[str, Foreign]:
        """Variables of the session."""
        return vars(self._main)

    def run(self, source: str, filename: str) -> dict[str, object]:
        """Run source text; `filename` names it in tracebacks and must be new for each run.

        The result is JSON-serializable: `value` (the `repr` of a last expression that is not `None`), `error`
        (`type`, `message`, `traceback`) and `displays` (each with `mime` and base64 `data`). Printed text goes to
        `sys.stdout` and `sys.stderr`.
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

    def variables(self) -> list[dict[str, str]]:
        """Return name, type and summary of each public variable, sorted by name."""
        return describe_variables(self.namespace)

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
            own = self._builtins
            self._replaced = {name: value for name, value in _SHARED.items() if own.get(name) is not value}
            _SHARED.update(own)
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

    def _offer_to_tools(self) -> None:
        module = ModuleType(SESSION_MODULE)
        vars(module).update(show_variables=self._show_variables, sql=self._sql)
        sys.modules[SESSION_MODULE] = module

    def _show_variables(self) -> None:
        self._displays.add_json(VARIABLES_MIME, self.variables())

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
