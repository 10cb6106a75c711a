"""Printed imports: the objects of this project, loaded once, and never instead of a user's own module."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentflow
from agentflow.compat import PRINTED_MODULES
from tests.behaviour._tree import ROOT


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget printed modules before and after a test."""
    printed = {name for name in PRINTED_MODULES if not name.startswith("agentflow")}

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in printed]:
            del sys.modules[name]

    forget()
    yield
    forget()


@pytest.mark.promise("compat:imports")
@pytest.mark.parametrize(("printed", "own"), PRINTED_MODULES.items())
def test_a_printed_module_is_the_module_of_this_project(printed: str, own: str) -> None:
    module = importlib.import_module(own)
    assert importlib.import_module(printed) is module
    assert module.__name__ == own
    assert module.__spec__ is not None
    assert module.__spec__.name == own


@pytest.mark.promise("compat:imports")
def test_submodules_are_not_loaded_a_second_time() -> None:
    for name in ("api", "pipeline"):
        assert importlib.import_module(f"synthesis.{name}") is sys.modules[f"agentflow.synthesis.{name}"]
    assert importlib.import_module("rollout.benchmarks") is importlib.import_module(
        "agentflow.rollouts.benchmarks"
    )
    solver = importlib.import_module("agentflow.agentflow.solver")
    assert solver.construct_solver is agentflow.construct_solver


@pytest.mark.promise("compat:imports")
@pytest.mark.parametrize("name", ["synthesis.nothing", "agentflow.nothing", "agentflow.agentflow.nothing"])
def test_a_missing_module_is_reported_as_python_does(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named"):
        importlib.import_module(name)


@pytest.mark.promise("compat:own_modules")
def test_a_user_s_own_module_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "synthesis.py").write_text("mine = True")
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox/tool.py").write_text("mine = True")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert importlib.import_module("synthesis").mine
    assert importlib.import_module("sandbox.tool").mine
    assert not hasattr(importlib.import_module("sandbox"), "Sandbox")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("synthesis.api")


@pytest.mark.promise("compat:own_modules")
def test_a_folder_of_results_is_not_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout/results.jsonl").write_text("{}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert importlib.import_module("rollout") is agentflow.rollouts


@pytest.mark.promise("compat:lazy")
def test_importing_it_loads_nothing_and_changes_no_other_program() -> None:
    probe = (
        "import sys, agentflow.compat, agentflow.compat;"
        "assert sum(type(one).__name__ == '_PrintedFinder' for one in sys.meta_path) == 1;"
        "assert not {'agentflow.synthesis', 'agentflow.team', 'pydantic', 'anyio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, cwd=ROOT)
    without = (
        "import sys; import importlib.util as u; import agentflow; assert u.find_spec('synthesis') is None"
    )
    subprocess.run([sys.executable, "-c", without], check=True, cwd=ROOT / "docs")
