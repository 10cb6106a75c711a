"""Environment of verl, for its tests."""

import fcntl
import subprocess
from pathlib import Path

from tests.behaviour._tree import ROOT

_PYTHON = ROOT / ".venv-verl/bin/python"
_LOCK = ROOT / "build/verl.lock"


def verl_python() -> Path:
    """Return its Python; create the environment if it is missing."""
    # Two processes of the suite may want it at the same time.
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "--silent", ".venv-verl/.stamp"], cwd=ROOT, check=True)
    return _PYTHON
