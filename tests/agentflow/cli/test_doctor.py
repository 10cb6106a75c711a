"""`agentflow doctor`."""

import json
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from agentflow import _import_path
from agentflow.cli import main
from agentflow.doctor import _checks
from agentflow.extras import Extra, add_command
from agentflow.models import PROVIDERS

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


@pytest.mark.promise("doctor:installation")
def test_unset_providers_share_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for provider in PROVIDERS.values():
        monkeypatch.delenv(provider.key_variable, raising=False)
    assert main(["doctor", "models"]) == 1
    lines = capsys.readouterr().out.splitlines()
    text = " ".join(" ".join(lines).split())
    assert "not set up" in text
    for name in ("openai", "anthropic"):
        assert f"{name} ({PROVIDERS[name].key_variable})" in text
        assert not any(line.startswith(f"✗ {name}") for line in lines)


@pytest.mark.promise("doctor:installation")
def test_missing_extras_and_bytecode_are_installed_by_one_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").touch()
    spec = spec_from_file_location("numpy", tmp_path / "numpy/__init__.py")
    lacking = [Extra("all", ("protego", "numpy"), ("protego",)), Extra("web", ("protego",), ("protego",))]
    monkeypatch.setattr(_checks, "find_spec", {"numpy": spec, "pandas": None}.get)
    monkeypatch.setattr(_checks, "list_extras", lambda: lacking)
    assert main(["doctor", "extras", "bytecode"]) == 0
    shown = capsys.readouterr().out
    assert "missing: web" in shown
    compiles = f"{sys.executable} -m compileall -q -j 0 {tmp_path / 'numpy'}"
    assert shown.splitlines()[-1] == f"{add_command('all')} && {compiles}"


@pytest.mark.promise("doctor:installation")
def test_the_environments_of_servers_and_trainers_are_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_import_path, "_OWN", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    assert main(["doctor", "verl", "trinity", "verifiers", "serving", "--json"]) == 1
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["serving"]["said"].endswith("agentflow serve-model --install cpu")
    for name in ("verl", "trinity", "verifiers"):
        assert found[name]["said"].endswith(f"make .venv-{name}/.stamp")
