"""Every command on every installation: mistakes end in one line, and uses succeed."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentflow.extras import PURPOSES, list_extras
from tests._core import core_environment, core_python
from tests.agentflow.cli._mistakes import CORE_ONLY, MISTAKES, README, USES, Case, Ended, call
from tests.behaviour._tree import ROOT

CASES = (*MISTAKES, *CORE_ONLY, *USES, *README)
HEAVY = ("all", "daytona", "e2b", "k8s", "litellm", "modal", "train", "zim")
"""Extras that the environment of the suite has; the others are installed alone."""


def check(case: Case, ended: Ended, extras: Sequence[str]) -> None:
    """Compare the end of a call on an installation with these extras."""
    assert "Traceback" not in ended.err
    assert ended.lost == []
    lines = [line for line in ended.err.splitlines() if line.startswith(("agentflow", "mcp_servers"))]
    if case.needs and case.needs not in extras:
        assert (ended.status, len(lines)) == (2, 1), ended.err
        # Another extra may have the library that is needed first.
        hinted = "needs the extra" in lines[0] and "extras add " in lines[0]
        assert hinted or (extras and case.text in lines[0])
    elif case.status:
        assert (ended.status, len(lines)) == (case.status, 1), ended.err
        assert case.text in lines[0]
    else:
        assert (ended.status, lines) == (0, []), ended.err
        assert case.text in ended.out


def results(python: Path, folder: Path) -> list[Ended]:
    """Make all calls with that interpreter."""
    run = subprocess.run(
        [python, "-m", "tests.agentflow.cli._mistakes"],
        cwd=folder,
        env=core_environment() | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    return [Ended(**record) for record in json.loads(run.stdout)]


@pytest.fixture(scope="module")
def on_core(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Ended]:
    """Return the ends of all calls on an installation without extras."""
    ends = results(core_python(), tmp_path_factory.mktemp("core"))
    return {id(case): ended for case, ended in zip(CASES, ends, strict=True)}


@pytest.mark.promise("cli:core")
@pytest.mark.parametrize("case", [*USES, *README], ids=lambda case: case.name)
def test_a_core_installation_runs_every_command(case: Case, on_core: dict[int, Ended]) -> None:
    check(case, on_core[id(case)], [])


@pytest.mark.promise("cli:mistakes")
@pytest.mark.parametrize("case", [*MISTAKES, *CORE_ONLY], ids=lambda case: case.name)
def test_a_mistake_on_a_core_installation_is_one_line_and_a_status(
    case: Case, on_core: dict[int, Ended]
) -> None:
    check(case, on_core[id(case)], [])


@pytest.mark.promise("cli:mistakes")
@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_a_mistake_on_a_full_installation_is_one_line_and_a_status(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ.keys() - core_environment().keys():
        monkeypatch.delenv(name)
    check(case, call(case), [*PURPOSES])


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.promise("cli:core")
@pytest.mark.parametrize("extra", sorted(PURPOSES.keys() - set(HEAVY)))
def test_every_command_works_on_an_installation_with_one_extra(extra: str, tmp_path: Path) -> None:
    uv = ROOT / ".venv/bin/uv"
    subprocess.run([uv, "venv", "--quiet", "--python", core_python(), tmp_path / "own"], check=True)
    python = tmp_path / "own/bin/python"
    package = f"{ROOT}[{extra}]"
    pins = ROOT / "constraints.txt"
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, "-c", pins, "-e", package], check=True
    )
    parts = {one.name: set(one.requirements) for one in list_extras()}
    extras = [name for name, own in parts.items() if own <= parts[extra]]
    for case, ended in zip(CASES, results(python, tmp_path), strict=True):
        check(case, ended, extras)
