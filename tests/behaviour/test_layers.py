"""The packages follow docs/architecture.md: layers, public APIs, light imports."""

import subprocess
import sys
import tomllib

import pytest

from tests.behaviour._tree import ROOT

HEAVY = {
    "aiodocker", "aiohttp", "anyio", "duckdb", "matplotlib", "mcp", "numpy", "pandas", "playwright", "pyarrow",
    "pydantic", "ray", "starlette", "tantivy", "torch", "uvicorn", "verl",
}  # fmt: skip
"""Libraries that `import agentflow` must not load: each is loaded where it is used."""


def layers() -> list[str]:
    """Return the packages of the layers contract, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers: list[str] = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [package.strip(" ()") for layer in layers for package in layer.replace(":", "|").split("|")]


@pytest.mark.promise("repository:layers")
@pytest.mark.promise("repository:stdlib_only")
def test_a_layer_imports_only_lower_layers() -> None:
    lint = "import sys; from importlinter.cli import lint_imports_command as lint; sys.exit(lint())"
    run = subprocess.run(
        [sys.executable, "-c", lint, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.promise("repository:layers")
def test_every_package_belongs_to_a_layer() -> None:
    parts = {f"agentflow.{path.parent.name}" for path in (ROOT / "agentflow").glob("*/__init__.py")}
    parts |= {f"agentflow.{path.stem}" for path in (ROOT / "agentflow").glob("[!_]*.py")}
    assert sorted(parts - set(layers())) == []


@pytest.mark.promise("repository:light_import")
def test_import_agentflow_loads_nothing_heavy() -> None:
    probe = "import sys, agentflow; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert sorted(HEAVY & set(loaded.split())) == []
