"""Every promise has a test, and every mark names a promise."""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.behaviour._tree import ROOT, files, name

PROMISE_ID = re.compile(r"[a-z0-9_]+(:[a-z0-9_.\-]+){1,2}")


@functools.cache
def written() -> dict[str, str]:
    """Return every promise of tests/promises/*.toml, by id."""
    promises: dict[str, str] = {}
    for path in sorted((ROOT / "tests/promises").glob("*.toml")):
        for promise, sentence in tomllib.loads(path.read_text(encoding="utf-8")).items():
            assert promise not in promises, f"{name(path)}: {promise} is promised twice"
            assert isinstance(sentence, str), f"{name(path)}: {promise} is not one sentence"
            promises[promise] = sentence
    return promises


def marks(path: Path) -> Iterator[str]:
    """Iterate over the ids of every `pytest.mark.promise(...)` in a test module."""
    text = path.read_text(encoding="utf-8")
    if "promise" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="promise", value=ast.Attribute(attr="mark")), args=args):
                for arg in args:
                    assert isinstance(arg, ast.Constant), (
                        f"{name(path)}:{arg.lineno}: an id must be a literal"
                    )
                    yield str(arg.value)
            case _:
                pass


@functools.cache
def shown() -> dict[str, str]:
    """Return every promise that a test names, with one file that names it."""
    tests = [path for path in files(".py") if path.is_relative_to(ROOT / "tests")]
    return {promise: name(path) for path in tests for promise in marks(path)}


def test_every_promise_has_a_test() -> None:
    assert sorted(written().keys() - shown().keys()) == []


def test_every_promise_that_a_test_names_is_written_down() -> None:
    unwritten = {promise: path for promise, path in shown().items() if promise not in written()}
    assert unwritten == {}


def test_promises_have_ids_of_area_and_feature_and_say_one_sentence() -> None:
    malformed = [
        promise
        for promise, sentence in written().items()
        if not PROMISE_ID.fullmatch(promise) or not sentence.endswith(".") or "\n" in sentence
    ]
    assert malformed == []
