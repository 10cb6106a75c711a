"""Programs that this project starts import and run nothing from the working directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentflow._import_path import import_path, module_command, own_environment


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules and an environment that report their use."""
    for name in (
        "anyio.py",
        "yaml.py",
        "sitecustomize.py",
        "pip.py",
        "agentflow.py",
        ".venv-vllm/bin/python",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\nopen('pwned', 'w')\n", encoding="utf-8")
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.promise("secrets:directory")
def test_a_program_of_ours_imports_nothing_from_the_working_directory(hostile: Path) -> None:
    done = subprocess.run(
        [*module_command("mcp_servers"), "bsh"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        2,
        "mcp_servers: key=value: backends.bsh is unknown; did you mean bash?\n",
    )
    assert not (hostile / "pwned").exists()


@pytest.mark.promise("secrets:directory")
def test_neither_import_paths_nor_environments_come_from_the_working_directory(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(hostile), "", "/usr/lib"])
    assert import_path() == ["/usr/lib"]
    assert hostile not in own_environment(".venv-vllm").parents
