"""The house stands as docs/architecture.md draws it: floors, doors, and a light front door."""

import subprocess
import sys
import tomllib

import pytest

from tests.behaviour._tree import ROOT

HEAVY = {
    "aiodocker", "aiohttp", "anyio", "duckdb", "matplotlib", "mcp", "numpy", "pandas", "playwright", "pyarrow",
    "pydantic", "ray", "starlette", "tantivy", "torch", "uvicorn", "verl",
}  # fmt: skip
"""What must not come in with `import agentflow`: each is loaded where it is used."""


def floors() -> list[str]:
    """The packages that the floors contract names, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers: list[str] = next(contract["layers"] for contract in contracts if contract["id"] == "floors")
    return [package.strip(" ()") for layer in layers for package in layer.replace(":", "|").split("|")]


@pytest.mark.promise("house:floors")
@pytest.mark.promise("house:small")
def test_a_floor_imports_only_floors_below_it() -> None:
    lint = "import sys; from importlinter.cli import lint_imports_command as lint; sys.exit(lint())"
    run = subprocess.run(
        [sys.executable, "-c", lint, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.promise("house:floors")
def test_every_part_of_the_house_stands_on_a_floor() -> None:
    parts = {f"agentflow.{path.parent.name}" for path in (ROOT / "agentflow").glob("*/__init__.py")}
    parts |= {f"agentflow.{path.stem}" for path in (ROOT / "agentflow").glob("[!_]*.py")}
    assert sorted(parts - set(floors())) == []


@pytest.mark.promise("house:light_import")
def test_import_agentflow_loads_nothing_heavy() -> None:
    probe = "import sys, agentflow; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert sorted(HEAVY & set(loaded.split())) == []
