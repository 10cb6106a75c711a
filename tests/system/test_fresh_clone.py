"""A fresh clone in a fresh directory needs nothing but Python and make."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.behaviour._tree import ROOT

OWN = {
    "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS", "TESTS", "WORKERS", "PYTHONPATH",
    "PYTEST_CURRENT_TEST",
}  # fmt: skip
"""Variables of this suite, including those of the `make` that may have started it."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fresh clone of the repository."""
    place = tmp_path_factory.mktemp("fresh") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True)
    return place


def make(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make there, without this suite's environment."""
    environment = {key: value for key, value in os.environ.items() if key not in OWN}
    return subprocess.run(
        ["make", *arguments],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=540,
        check=False,
    )


def readme_output(place: Path) -> list[str]:
    """Return the lines that the README shows of the run, without the dots that stand for others."""
    text = (place / "README.md").read_text(encoding="utf-8")
    shown = text.partition("```text\n$ make run\n")[2].partition("```")[0]
    lines = [line for line in shown.splitlines() if line != "…"]
    assert lines
    return lines


@pytest.mark.timeout(600)
@pytest.mark.promise("project:run")
def test_make_run_in_a_fresh_clone_installs_and_makes_a_dataset(clone: Path) -> None:
    first = make(clone, "run")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "One of the questions" in first.stdout
    printed = iter([line.rstrip() for line in first.stdout.splitlines()])
    for line in readme_output(clone):
        assert line in printed, f"README.md shows what the run does not print there: {line}"
    assert (clone / "synthesis_results/synthesized_qa.jsonl").read_bytes()
    second = make(clone, "run")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "Installing" not in second.stdout
    assert "Nothing to do" in second.stdout
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, check=True, capture_output=True
    ).stdout
    assert status == b""


# The suite itself runs this way wherever it is run in a fresh clone.
@pytest.mark.soak
@pytest.mark.promise("project:test")
def test_make_test_in_a_fresh_clone_installs_what_the_tests_need(clone: Path) -> None:
    run = make(clone, "test", "TESTS=tests/behaviour/test_promises.py tests/behaviour/test_plain_user.py")
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
    assert (clone / "tests/node/node_modules/@modelcontextprotocol/inspector").is_dir()
