"""The demonstration shows what it says."""

import subprocess
import sys

import pytest


@pytest.mark.promise("project:demo")
def test_the_demonstration_shows_a_fork_that_is_independent_of_its_sandbox() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "agentflow.demo"],
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    shown = " ".join(run.stdout.split())
    assert (
        "sandbox bash blue, in /tmp, note: written before the fork python {'rows': 3, 'total': 12}" in shown
    )
    assert "fork bash red, in /, note: written after the fork python {'rows': 1, 'total': 3}" in shown
