"""Small real models: SmolLM2-135M-Instruct and, for embeddings, all-MiniLM-L6-v2."""

import json
import subprocess
import sys
from pathlib import Path

from tests.behaviour._tree import ROOT


def real_model(name: str = "smollm2") -> Path:
    """Return a model's folder in float32, downloaded and converted by the first caller: `make real-model` does it beforehand.

    That may take longer than the time limit of a test: mark it with `@pytest.mark.timeout(600)`.
    """
    folder = ROOT / "build/models" / name
    fetch = [sys.executable, "-m", "agentflow.cli", "models", "fetch", name, "--to", folder, "--json"]
    done = subprocess.run(fetch, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return Path(json.loads(done.stdout)["folder"])
