"""The audit of the pinned dependencies."""

import json
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tests.behaviour._tree import ROOT

FOUND: dict[str, object] = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}
FINE: dict[str, object] = {"name": "b", "version": "2", "vulns": []}
SKIPPED: dict[str, object] = {"name": "c", "skip_reason": "Dependency not found"}
UNREACHABLE = "audit: the database of vulnerabilities can't be reached from here; nothing was checked\n"


@pytest.mark.promise("repository:audit")
@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (
            [FOUND, FINE, SKIPPED],
            1,
            "pins.txt: a 1: CVE-1, fixed in 1.1\naudit: 2 of 3 packages checked, 1 known vulnerabilities\n",
        ),
        ([FINE], 0, "audit: 1 of 1 packages checked, 0 known vulnerabilities\n"),
        ([SKIPPED], 0, UNREACHABLE),
        (None, 0, UNREACHABLE),
    ],
)
def test_known_vulnerabilities_fail_the_audit_and_an_unreachable_database_is_one_line(
    answer: list[object] | None,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    loader = SourceFileLoader("audit", str(ROOT / "scripts/audit"))
    spec = spec_from_loader("audit", loader)
    assert spec is not None
    script = module_from_spec(spec)
    loader.exec_module(script)
    output = "Traceback" if answer is None else json.dumps({"dependencies": answer})

    def answered(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, output, "")

    monkeypatch.setattr(subprocess, "run", answered)
    assert script.main(Path("pins.txt")) == status
    assert capsys.readouterr().out == said
