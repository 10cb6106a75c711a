"""Environment of a core installation: the same checkout, and no extra."""

import fcntl
import os
import subprocess
from pathlib import Path

from tests.behaviour._tree import ROOT

CORE = ROOT / ".venv-core"


def core_python() -> Path:
    """Return the interpreter of the core environment; `make` creates it, otherwise the first test does."""
    python = CORE / "bin/python"
    made = CORE / ".stamp"
    with (ROOT / ".venv-core.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
        if not made.exists() or any(made.stat().st_mtime < source.stat().st_mtime for source in sources):
            subprocess.run([ROOT / "scripts/make-core-venv", CORE], check=True)
    return python


def core_environment() -> dict[str, str]:
    """Return this process's variables without keys, settings and paths of other installations."""
    unwanted = ("AGENTFLOW_", "OPENAI_", "SEEDS_FILE", "OUTPUT_DIR", "VIRTUAL_ENV", "PYTHONPATH")
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(unwanted) and not key.endswith(("_KEY", "_TOKEN"))
    }
