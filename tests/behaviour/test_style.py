"""Size limits, and words that the repository must not contain."""

import ast
import re
from functools import cache
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import pytest

from tests.behaviour._tree import files, name, source_modules

BINARY = {".png", ".ico", ".parquet", ".gz", ".zip"}
NOT_OURS = {"package-lock.json", "LICENSE"}


def texts() -> list[tuple[Path, str]]:
    """Return every text of the project except this list of words."""
    ours = [path for path in files() if path.suffix not in BINARY and path.name not in NOT_OURS]
    return [(path, path.read_text(encoding="utf-8")) for path in ours if path != Path(__file__)]


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Return whether the exception is raised again."""
    return isinstance(last := handler.body[-1], ast.Raise) and last.exc is None


class _Outline(NamedTuple):
    """Properties of a module that the tests compare."""

    functions: list[tuple[str, int]]
    """Its functions with their lengths in lines."""
    unexplained: list[str]
    """Bare and broad handlers of exceptions without a comment."""


@cache
def outline(path: Path) -> _Outline:
    """Read a module once for all tests."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = _Outline([], [])
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.end_lineno is not None:
                where = f"{name(path)}:{node.lineno} {node.name}"
                found.functions.append((where, node.end_lineno - node.lineno + 1))
            case ast.ExceptHandler() if not passes_on(node):
                broad = isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
                explained = any("#" in line for line in lines[node.lineno - 2 : node.body[0].lineno])
                if node.type is None or (broad and not explained):
                    found.unexplained.append(f"{name(path)}:{node.lineno}")
            case _:
                pass
    return found


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.promise("style:modules")
def test_modules_are_not_long() -> None:
    lengths = {name(path): lines(path) for path in source_modules()}
    assert {path: length for path, length in lengths.items() if length > 700} == {}


@pytest.mark.promise("style:functions")
def test_functions_are_short() -> None:
    lengths = dict(function for path in source_modules() for function in outline(path).functions)
    assert {function: length for function, length in lengths.items() if length > 120} == {}
    assert quantiles(lengths.values(), n=20)[-1] <= 40


@pytest.mark.promise("style:finished")
def test_nothing_is_left_to_be_done_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [name(path) for path, text in texts() if marks.search(text)] == []


@pytest.mark.promise("style:self_contained")
def test_the_repository_names_no_machine_and_no_registry() -> None:
    elsewhere = re.compile(
        r"/(work|home/(?!agent\b)[a-z]+|Users/[a-z]+|mnt/[a-z]+)/"
        r"|\b(pypi\.org|pythonhosted\.org|npmjs\.(org|com)|deb\.debian\.org|archive\.ubuntu\.com)\b"
    )
    found = {name(path): match[0] for path, text in texts() if (match := elsewhere.search(text))}
    assert found == {}


@pytest.mark.promise("style:broad_except")
def test_a_broad_except_says_why_and_a_bare_one_does_not_exist() -> None:
    assert [place for path in source_modules() for place in outline(path).unexplained] == []
