"""Environments of trainers, and drivers that run in them."""

import fcntl
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests._verl import verl_python
from tests.behaviour._tree import ROOT

_DRIVERS = Path(__file__).parent / "_drivers"
_LOCK = ROOT / "build/trainers.lock"
_SECONDS = 600


def trainer_python(name: str) -> Path:
    """Return the Python of an environment; create it if it is missing."""
    if name == "verl":
        return verl_python()
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "--silent", f".venv-{name}/.stamp"], cwd=ROOT, check=True)
    return ROOT / f".venv-{name}/bin/python"


def drive(name: str, driver: str, *arguments: str | Path, scratch: Path) -> Any:  # noqa: ANN401 - each has its own
    """Run a driver in an environment; return the figures that it prints in its last line."""
    python = trainer_python(name)
    own = {"HF_HOME": str(scratch / "hub"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    own |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [str(python), str(_DRIVERS / driver), *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=scratch,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
