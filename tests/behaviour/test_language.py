"""The vocabulary of the repository: standard terms, plain sentences, unique names. CONTRIBUTING.md has the rules."""

import ast
import importlib
import inspect
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.behaviour._tree import ROOT, files, name, source_modules
from tests.behaviour.test_public_apis import public_modules

WH_CLAUSE = re.compile(r"\W*(What|Who|Whom|Whose|Where|Whether|How|Why|When|Which|Whatever|Whoever)\b")
OLD_TERMS = re.compile(
    r"\b(warden|mason|pacer|greenhouse|sprout|grove|setback|_Chance)(s|es)?\b"
    r"|\b(at need|is to be had|are to be had|of one's own|goes on with|go on with|bears best|whoever|tells of|tell of)\b",
    re.IGNORECASE,
)
"""Terms and phrases that CONTRIBUTING.md replaces."""
DATA = ("mcp_servers/rag/corpus/", "agentflow/synthesis/_bundled/", "tests/node/")
"""Folders of texts that are data, not prose of ours."""
EXAMPLE = re.compile(r"::\n|>>> |docs/[a-z-]+\.md")
INTERNAL = {
    "agentflow.cli", "agentflow.doctor", "agentflow.runs", "agentflow.supervisor", "agentflow.testing",
    "agentflow._typeguards", "mcp_servers.core", "mcp_servers.serving", "mcp_servers.sql.inside",
    "mcp_servers.world.household",
}  # fmt: skip
"""Packages that programs outside of this repository do not import."""
WRITTEN = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ""}


class _Definitions(NamedTuple):
    """Texts and names of a module."""

    docstrings: list[tuple[int, str]]
    """Docstrings of the module, its classes, functions and fields, with their lines."""
    classes: list[tuple[int, str]]
    """Names of its classes, with their lines."""


@cache
def definitions(path: Path) -> _Definitions:
    """Read a module once for all tests."""
    found = _Definitions([], [])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.ClassDef):
            found.classes.append((node.lineno, node.name))
        for statement in node.body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                    found.docstrings.append((line, text))
                case _:
                    pass
    return found


def classes() -> dict[str, list[str]]:
    """The places that define each class name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in source_modules():
        for line, one in definitions(path).classes:
            found[one].append(f"{name(path)}:{line}")
    return found


@pytest.mark.promise("language:unique_names")
def test_a_public_class_name_is_defined_once() -> None:
    repeated = {one: places for one, places in classes().items() if len(places) > 1}
    assert {one: places for one, places in repeated.items() if not one.startswith("_")} == {}
    assert len(repeated) <= 25


@pytest.mark.promise("language:docstrings")
def test_a_docstring_opens_with_a_verb_or_a_noun() -> None:
    opening = [
        f"{name(path)}:{line} {text.strip().splitlines()[0]}"
        for path in files(".py")
        for line, text in definitions(path).docstrings
        if WH_CLAUSE.match(text)
    ]
    assert opening == []


@pytest.mark.promise("language:terms")
def test_replaced_terms_do_not_come_back() -> None:
    found: list[str] = []
    for path in files():
        if (
            path.suffix not in WRITTEN
            or name(path).startswith(DATA)
            or path == Path(__file__)
            or path.name == "LICENSE"
        ):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := OLD_TERMS.search(line):
                found.append(f"{name(path)}:{number} {match[0]}")
    assert found == []


@pytest.mark.promise("language:glossary")
def test_the_glossary_is_short_and_names_each_term_once() -> None:
    rows = re.findall(
        r"^\| ([^|]+?) \| ", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    terms = [row for row in rows if row not in {"Term", "---"}]
    assert len(terms) <= 80
    assert len(set(terms)) == len(terms)


@pytest.mark.promise("language:findable")
@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("seccomp filter", "runtimes/"),
        ("branch sandbox", "agentflow/engine/_sandboxes.py"),
        ("learning rate", "agentflow/learner/local/_model.py"),
        ("rate limit", "mcp_servers/"),
        ("navigation", "mcp_servers/browser/_navigation.py"),
        ("prefix packing", "agentflow/learner/packing.py"),
    ],
)
def test_a_standard_term_leads_to_its_file(words: str, file: str) -> None:
    found = [
        name(path)
        for path in source_modules()
        if all(word in f"{name(path)} {path.read_text(encoding='utf-8')}".lower() for word in words.split())
        and words.split()[0]
        in f"{path.stem} {ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))}".lower()
    ]
    assert [path for path in found if path.startswith(file)], found


@pytest.mark.promise("language:examples")
@pytest.mark.parametrize("module", [one for one in public_modules() if one not in INTERNAL])
def test_a_public_function_shows_an_example_or_links_to_one(module: str) -> None:
    package = importlib.import_module(module)
    functions = {public: getattr(package, public) for public in package.__all__}
    bare = [
        public
        for public, function in functions.items()
        if inspect.isfunction(function) and not EXAMPLE.search(inspect.getdoc(function) or "")
    ]
    assert bare == []
