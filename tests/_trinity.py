"""Environment of Trinity, for its soak tests."""

import fcntl
import subprocess
from pathlib import Path

from tests.behaviour._tree import ROOT

_PYTHON = ROOT / ".venv-trinity/bin/python"
_LOCK = ROOT / "build/trinity.lock"


def trinity_python() -> Path:
    """Return its Python; create the environment if it is missing."""
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "--silent", ".venv-trinity/.stamp"], cwd=ROOT, check=True)
    return _PYTHON
