"""A unit of work passes through no more files of our own code than the ceilings of scripts/walk allow."""

import json
import subprocess
import sys

import pytest

from tests.agentflow.cli._programs import environment
from tests.behaviour._tree import ROOT

JOBS = ("tool", "synthesis", "training", "gateway")


@pytest.mark.timeout(300)
@pytest.mark.promise("repository:walk")
def test_each_job_passes_through_at_most_its_ceiling_of_files() -> None:
    process = subprocess.run(
        [sys.executable, str(ROOT / "scripts/walk"), "--check"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=280,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    counts = json.loads(process.stdout.splitlines()[-1])
    assert tuple(counts) == JOBS
    assert all(0 < job["files"] <= job["ceiling"] for job in counts.values())
