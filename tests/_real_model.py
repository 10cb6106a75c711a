"""SmolLM2-135M-Instruct, a small real model."""

import json
import subprocess
import sys
from pathlib import Path

from tests.behaviour._tree import ROOT


def real_model() -> Path:
    """Return its folder in float32, downloaded and converted by the first caller: `make real-model` does it beforehand.

    That may take longer than the time limit of a test: mark it with `@pytest.mark.timeout(600)`.
    """
    folder = ROOT / "build/models/smollm2"
    fetch = [sys.executable, "-m", "agentflow.cli", "models", "fetch", "smollm2", "--to", folder, "--json"]
    done = subprocess.run(fetch, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return Path(json.loads(done.stdout)["folder"])
