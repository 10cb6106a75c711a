"""Table of features: rows of promises, the tests that carry them, and the last recorded run. See CONTRIBUTING.md.

`python -m tests._features` writes docs/features.md.
"""

import ast
import inspect
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias

import msgspec
import pytest
from msgspec import Struct

ROOT: Final = Path(__file__).resolve().parents[1]
ROWS: Final = ROOT / "tests/features.toml"
RECORD: Final = ROOT / "tests/features.json"
PAGE: Final = ROOT / "docs/features.md"
KINDS: Final = ("suite", "soak")
_PROPERTY: Final = "feature"
_NOT_RUN: Final = "not run"
_SOAK: Final = ast.parse("pytest.mark.soak", mode="eval").body
_INTRODUCTION: Final = """# Features

What this project does, the tests that show it, and what they ran on. The page is generated: nothing in it can be claimed by hand.

- A feature consists of promises, in `tests/promises`. Its tests are those that carry one of its promises; soak tests take long and run by `make soak`.
- The last column has the number of its tests that passed, of all, in the last recorded run. `not run`: no run of all of them is recorded.
- The parts are those that the passed tests of this run use, found in the code of each test. A stand-in is a program of the tests in place of
  a service; features that have stand-ins only were not tried with the service.

`make test ARGS=--record` and `make soak ARGS=--record` record a run and write this page.
"""


class Row(Struct, frozen=True):
    """A feature."""

    title: str
    """Title in the table."""
    promises: tuple[str, ...]
    """Ids of its promises; `*` stands for anything."""


class RecordedRun(Struct, frozen=True):
    """Results of all tests of a feature, of the suite or of the soak tests, in one run."""

    date: str
    """Day of the run."""
    tests: int
    """Number of tests."""
    passed: int
    """Number of tests that passed."""
    failed: int
    """Number of tests that failed."""
    parts: tuple[str, ...]
    """Parts that the passed tests use."""


RecordedRuns: TypeAlias = dict[str, dict[str, RecordedRun]]
"""Runs by row and kind: `suite` or `soak`."""


class _Rows(Struct, frozen=True):
    parts: dict[str, tuple[str, ...]]
    features: dict[str, dict[str, Row]]


class PromisedTest(Struct, frozen=True):
    """A test function, as its file shows it."""

    id: str
    """File and name, without a class, as in `tests/test_a.py::test_b`."""
    promises: frozenset[str]
    """Ids of its promises."""
    kind: str
    """`suite` or `soak`."""


@cache
def rows() -> _Rows:
    """Return the features by section and id, and the names by which parts are found."""
    return msgspec.convert(tomllib.loads(ROWS.read_text(encoding="utf-8")), _Rows)


def recorded_runs(file: Path = RECORD) -> RecordedRuns:
    """Return the recorded runs."""
    return msgspec.json.decode(file.read_bytes(), type=RecordedRuns)


def promised_tests(paths: Iterable[Path]) -> Iterator[PromisedTest]:
    """Iterate over the tests of some files that carry a promise."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if "promise" not in text:
            continue
        module = ast.parse(text)
        common = [node.value for node in module.body if isinstance(node, ast.Assign) and _assigns_marks(node)]
        for name, own in _tests_in(module):
            marks = [*common, *own]
            promises = frozenset(_ids(path, marks))
            if promises:
                kind = "soak" if any(_is_soak(mark) for mark in marks) else "suite"
                yield PromisedTest(f"{path.relative_to(ROOT)}::{name}", promises, kind)


def _tests_in(module: ast.Module) -> Iterator[tuple[str, Sequence[ast.expr]]]:
    """Yield the tests of a module with their marks: functions, methods, assigned functions, and classes of unittest."""
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test_"):
                yield node.name, node.decorator_list
            case ast.Name(id=name, ctx=ast.Store()) if name.startswith("test_"):
                # The long form of a property is a soak test: see tests/fuzz/_forms.py.
                yield name, [_SOAK] if name.endswith("_long") else []
            case ast.ClassDef() if any(ast.unparse(base).endswith(".TestCase") for base in node.bases):
                yield "runTest", node.decorator_list
            case _:
                pass


def _assigns_marks(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "pytestmark"


def _ids(path: Path, marks: Sequence[ast.AST]) -> Iterator[str]:
    for mark in marks:
        for node in ast.walk(mark):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), (
                        f"{path}:{argument.lineno}: an id must be a literal"
                    )
                    yield str(argument.value)


def _is_soak(mark: ast.AST) -> bool:
    each = mark.elts if isinstance(mark, ast.List) else [mark]
    return any(ast.unparse(one) == ast.unparse(_SOAK) for one in each)


def promises_of(row: Row) -> frozenset[str]:
    """Return the promises of a feature."""
    return frozenset(
        promise
        for promise in written_promises()
        if any(fnmatchcase(promise, pattern) for pattern in row.promises)
    )


@cache
def tests_of(row: Row) -> Sequence[PromisedTest]:
    """Return the tests of a feature."""
    promises = promises_of(row)
    return [test for test in all_tests() if not promises.isdisjoint(test.promises)]


def page(record: RecordedRuns) -> str:
    """Return the page of features."""
    lines = [_INTRODUCTION]
    for section, features in rows().features.items():
        lines += [
            f"## {section}\n",
            "| | Feature | Tried on | Tests that passed |",
            "| --- | --- | --- | --- |",
        ]
        for name, row in features.items():
            runs = record.get(name, {})
            parts = sorted({part for run in runs.values() for part in run.parts})
            kinds = {test.kind for test in tests_of(row)}
            passed = "; ".join(_passed(kind, runs.get(kind)) for kind in KINDS if kind in kinds)
            lines.append(f"| {name} | {row.title} | {', '.join(parts)} | {passed} |")
        lines.append("")
    return "\n".join(lines)


def _passed(kind: str, run: RecordedRun | None) -> str:
    name = "" if kind == "suite" else f"{kind} "
    if run is None or not (run.passed or run.failed):
        return f"{name}{_NOT_RUN}"
    failed = f", {run.failed} failed" if run.failed else ""
    return f"{name}{run.passed} of {run.tests}{failed} ({run.date})"


def parts_of(functions: Iterable[object]) -> list[str]:
    """Return the parts that functions use, directly or through helpers of the tests."""
    reached = set(_reached(functions))
    return [
        part
        for part, names in rows().parts.items()
        if any(each == name or each.startswith(f"{name}.") for each in reached for name in names)
    ]


def _reached(functions: Iterable[object]) -> Iterator[str]:
    """Yield the qualified names that functions refer to, and their texts; helpers of the tests are followed."""
    waiting = [*functions]
    seen: set[FunctionType] = set()
    while waiting:
        function: object = inspect.unwrap(waiting.pop())  # pyright: ignore[reportArgumentType] - it accepts any object
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        yield f"{function.__module__}.{function.__qualname__}"
        for name in _names(function.__code__):
            value: object = function.__globals__.get(name, name)
            if isinstance(value, str):
                yield value
            elif isinstance(value, FunctionType | type):
                yield f"{value.__module__}.{value.__qualname__}"
                if value.__module__.startswith("tests."):
                    waiting += vars(value).values() if isinstance(value, type) else [value]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names and texts in a function and in those inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        else:
            yield from _texts(constant)


def _texts(constant: object) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, tuple | frozenset):
        for each in constant:  # pyright: ignore[reportUnknownVariableType] - of constants
            yield from _texts(each)  # pyright: ignore[reportUnknownArgumentType]


def describe(item: pytest.Item) -> None:
    """Attach its promises, its kind and its parts to a test, so that its reports have them."""
    promises = [mark.args[0] for mark in item.iter_markers("promise")]
    if not promises or not isinstance(item, pytest.Function):
        return
    # pytest has no public access to the fixtures of a test.
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # pyright: ignore[reportPrivateUsage]
    functions: list[object] = [item.function]  # pyright: ignore[reportUnknownMemberType] - of any signature
    functions += [each.func for definitions in fixtures for each in definitions]
    kind = "soak" if item.get_closest_marker("soak") else "suite"
    about = {"promises": promises, "kind": kind, "parts": parts_of(functions)}
    item.user_properties.append((_PROPERTY, about))


@dataclass
class _Result:
    promises: Sequence[str]
    parts: Sequence[str]
    passed: bool = False
    failed: bool = False


class FeatureRecord:
    """Plugin that records the results of features of which all tests were run, and writes the page."""

    def __init__(self, date: str, file: Path = RECORD, page: Path = PAGE) -> None:
        """Describe it.

        :param date: day of the run.
        """
        self._date = date
        self._file = file
        self._page = page
        self._results: dict[tuple[str, str], _Result] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result of a test: with several parameters it passed if some did and none failed."""
        about: Any = dict(report.user_properties).get(_PROPERTY)
        if about is None:
            return
        file, *_, name = report.nodeid.partition("[")[0].split("::")
        key = f"{file}::{name}", about["kind"]
        result = self._results.setdefault(key, _Result(about["promises"], about["parts"]))
        result.passed |= report.when == "call" and report.passed
        result.failed |= report.failed

    def pytest_sessionfinish(self) -> None:
        """Write the record and the page."""
        record = recorded_runs(self._file)
        for features in rows().features.values():
            for name, row in features.items():
                for kind in KINDS:
                    if (run := self._run_of(row, kind)) is not None:
                        record.setdefault(name, {})[kind] = run
        text = json.dumps(msgspec.to_builtins(record), indent=1, sort_keys=True)
        self._file.write_text(f"{text}\n", encoding="utf-8")
        self._page.write_text(page(record), encoding="utf-8")

    def _run_of(self, row: Row, kind: str) -> RecordedRun | None:
        """Return the results of a feature; `None` if some of its tests were not run."""
        wanted = [test.id for test in tests_of(row) if test.kind == kind]
        results = [self._results[test, kind] for test in wanted if (test, kind) in self._results]
        if not results or len(results) < len(wanted):
            return None
        passed = [each for each in results if each.passed and not each.failed]
        parts = sorted({part for each in passed for part in each.parts})
        return RecordedRun(
            self._date, len(wanted), len(passed), sum(each.failed for each in results), tuple(parts)
        )


@cache
def all_tests() -> Sequence[PromisedTest]:
    """Return every test that carries a promise."""
    return list(promised_tests(sorted((ROOT / "tests").rglob("test_*.py"))))


@cache
def written_promises() -> dict[str, str]:
    """Return every promise of tests/promises/*.toml, by id."""
    promises: dict[str, str] = {}
    for path in sorted((ROOT / "tests/promises").glob("*.toml")):
        for promise, sentence in tomllib.loads(path.read_text(encoding="utf-8")).items():
            assert promise not in promises, f"{path.name}: {promise} is promised twice"
            assert isinstance(sentence, str), f"{path.name}: {promise} is not one sentence"
            promises[promise] = sentence
    return promises


if __name__ == "__main__":
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: written\n")
    PAGE.write_text(page(recorded_runs()), encoding="utf-8")
