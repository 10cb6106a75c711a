"""`agentflow serve-model`, as a person sees it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests._vllm import PYTHON, make_tiny_model


@pytest.mark.timeout(900)
@pytest.mark.promise("serving:command")
@pytest.mark.usefixtures("vllm")
def test_a_model_is_served_until_somebody_ends_it(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    words = [
        str(tmp_path / "model"),
        "name=mine",
        f"python={PYTHON}",
        "device=cpu",
        "dtype=float32",
        "--json",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "agentflow.cli", "serve-model", *words],
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as program:
        assert program.stdout is not None
        told = json.loads(program.stdout.readline())
        key = Path(told["key_file"])
        assert key.stat().st_mode & 0o777 == 0o600
        assert told["model"] == "mine"
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    assert not key.exists()


@pytest.mark.promise("serving:command")
def test_what_can_t_be_served_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentflow.cli", "serve-model", "x", "python=/nowhere", "colour=red"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "colour" in done.stderr
