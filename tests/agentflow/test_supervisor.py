"""`python -m agentflow.supervisor` without a word more: the first thing that anybody tries."""

import json
from pathlib import Path

import pytest

from agentflow.cli import synth
from agentflow.synthesis import PAIRS
from tests.agentflow.cli._programs import run, run_here

PROGRAM = "agentflow.supervisor"


@pytest.mark.timeout(320)  # It is started twice.
@pytest.mark.promise("supervisor:first-run")
def test_without_arguments_it_creates_a_dataset_and_a_second_run_has_nothing_to_do(
    tmp_path: Path,
) -> None:
    first = run(PROGRAM, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    shown = " ".join(first.stdout.split())
    for words in (
        "engine offline",
        "seeds 12",
        "One of the questions Q: ",
        "Its path",
        "rag_search",
        "Files in",
    ):
        assert words in shown
    pairs = (tmp_path / "synthesis_results" / PAIRS).read_bytes()
    assert len(pairs.splitlines()) > 10
    lines = [json.loads(line) for line in first.stderr.splitlines()]
    assert (lines[0]["event"], lines[-1]["event"], lines[-1]["done"]) == ("started", "ended", 12)

    second = run(PROGRAM, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("Nothing to do")
    assert "Q: " in second.stdout

    third = run_here("--json", cwd=tmp_path, command=synth)
    said = json.loads(third.stdout)
    assert said["nothing_to_do"]
    assert said["report"]["pairs"] == len(pairs.splitlines())
    assert (tmp_path / "synthesis_results" / PAIRS).read_bytes() == pairs
