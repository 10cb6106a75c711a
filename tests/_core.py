"""Environments with an installation of this checkout: a core one, without any extra, and one beside agent frameworks."""

import fcntl
import os
import subprocess
from pathlib import Path

from tests.behaviour._tree import ROOT


def core_python() -> Path:
    """Return the interpreter of the core environment."""
    return _python_of("core", "constraints.txt")


def frameworks_python() -> Path:
    """Return the interpreter of the environment with the frameworks of docs/tuner.md."""
    return _python_of("frameworks", "scripts/frameworks-constraints.txt")


def _python_of(name: str, constraints: str) -> Path:
    """Return the interpreter of an environment; `make` creates it, otherwise the first test does."""
    folder, script = ROOT / f".venv-{name}", ROOT / f"scripts/make-{name}-venv"
    made = folder / ".stamp"
    with (ROOT / f".venv-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = [ROOT / "pyproject.toml", ROOT / constraints]
        if not made.exists() or any(made.stat().st_mtime < source.stat().st_mtime for source in sources):
            subprocess.run([script, folder], check=True)
    return folder / "bin/python"


def core_environment() -> dict[str, str]:
    """Return this process's variables without keys, settings and paths of other installations."""
    unwanted = ("AGENTFLOW_", "OPENAI_", "SEEDS_FILE", "OUTPUT_DIR", "VIRTUAL_ENV", "PYTHONPATH")
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(unwanted) and not key.endswith(("_KEY", "_TOKEN"))
    }
