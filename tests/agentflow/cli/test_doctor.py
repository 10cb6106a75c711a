"""`agentflow doctor`."""

import json

import pytest

from agentflow.cli import main

pytestmark = pytest.mark.promise("doctor:command")


def test_working_parts_have_status_0_and_are_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "process", "rag"]) == 0
    shown = capsys.readouterr().out
    for word in ("runtimes", "process", "backends", "rag", "✓"):
        assert word in shown


def test_a_named_part_that_does_not_work_has_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["doctor", "openai", "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)
    assert found["state"] == "missing"
    assert "OPENAI_API_KEY" in found["said"]


def test_an_unknown_name_has_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "everthing"]) == 2
    assert "'everthing' is unknown" in capsys.readouterr().err
