"""`agentflow serve-model`, as a person sees it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from agentflow.serving import ModelServer
from tests._vllm import PYTHON, model_folder


@pytest.mark.timeout(900)
@pytest.mark.promise("serving:command")
def test_a_model_is_served_until_the_command_is_interrupted(vllm: ModelServer) -> None:
    arguments = [
        str(anyio.run(model_folder, vllm)),
        "name=mine",
        f"python={PYTHON}",
        "device=cpu",
        "dtype=float32",
        "--json",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "agentflow.cli", "serve-model", *arguments],
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as program:
        assert program.stdout is not None
        started = json.loads(program.stdout.readline())
        key = Path(started["key_file"])
        assert key.stat().st_mode & 0o777 == 0o600
        assert started["model"] == "mine"
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    assert not key.exists()


@pytest.mark.promise("serving:command")
def test_a_model_that_can_not_be_served_gives_a_one_line_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentflow.cli", "serve-model", "x", "python=/nowhere", "colour=red"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "colour" in done.stderr
