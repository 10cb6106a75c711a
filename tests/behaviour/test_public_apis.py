"""Every public name is exported and documented."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.behaviour._tree import ROOT, SOURCES, name, source_modules


def public_modules() -> list[str]:
    """Return the packages and modules whose names have no leading underscore."""
    modules = [path.relative_to(ROOT).with_suffix("").parts for path in source_modules()]
    named = [parts[:-1] if parts[-1] == "__init__" else parts for parts in modules]
    return sorted(".".join(parts) for parts in named if not any(part.startswith("_") for part in parts))


def public_classes(module: ModuleType) -> Iterator[tuple[type, ast.ClassDef]]:
    """Iterate over the project's classes that a module exports, with their source."""
    for public in module.__all__:
        thing = getattr(module, public)
        if not inspect.isclass(thing) or thing.__module__.partition(".")[0] not in SOURCES:
            continue
        tree = ast.parse(Path(inspect.getfile(thing)).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == thing.__name__:
                yield thing, node


def undocumented(thing: type, node: ast.ClassDef) -> Iterator[str]:
    """Iterate over the public methods and fields without a docstring."""
    if ast.get_docstring(node) is None:
        yield thing.__name__
    inherited = {
        member for base in thing.__mro__[1:] for member in (*vars(base), *inspect.get_annotations(base))
    }
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        match statement:
            case ast.FunctionDef(name=member) | ast.AsyncFunctionDef(name=member):
                if not member.startswith("_") and not inspect.getdoc(getattr(thing, member)):
                    yield f"{thing.__name__}.{member}"
            case ast.AnnAssign(target=ast.Name(id=member)) | ast.Assign(targets=[ast.Name(id=member)]):
                documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                said = documented or member.startswith("_") or member in inherited
                if not said:
                    yield f"{thing.__name__}.{member}"
            case _:
                pass


@pytest.mark.promise("style:docstrings")
@pytest.mark.parametrize("module", public_modules())
def test_every_public_name_is_documented(module: str) -> None:
    package = importlib.import_module(module)
    assert package.__doc__, f"{module} has no docstring"
    missing = [member for thing, node in public_classes(package) for member in undocumented(thing, node)]
    missing += [
        public
        for public in package.__all__
        if inspect.isfunction(function := getattr(package, public)) and not inspect.getdoc(function)
    ]
    assert missing == []


@pytest.mark.promise("repository:public_apis")
@pytest.mark.parametrize("module", public_modules())
def test_a_public_module_exports_existing_names(module: str) -> None:
    package = importlib.import_module(module)
    assert [offered for offered in package.__all__ if not hasattr(package, offered)] == []


@pytest.mark.promise("repository:public_apis")
def test_only_packages_and_documented_modules_are_public() -> None:
    modules = [path for path in source_modules() if not path.name.startswith("_")]
    assert sorted(map(name, modules)) == [
        "agentflow/compat.py",
        "agentflow/errors.py",
        "agentflow/extras.py",
        "agentflow/learner/data.py",
        "agentflow/learner/packing.py",
        "agentflow/learner/trackers.py",
        "agentflow/rollout.py",
        "agentflow/rollouts/analysis.py",
        "agentflow/supervisor.py",
        "agentflow/synthesis/api.py",
        "agentflow/synthesis/pipeline.py",
    ]
