"""Real vLLM on the CPU with a tiny random model."""

import fcntl
import os
import runpy
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

from anyio.from_thread import start_blocking_portal

from agentflow.models import ModelSettings
from agentflow.serving import ModelServer, ServingSettings, Weights
from agentflow.serving._control import EngineControl
from agentflow.testing import TINY_MODEL
from tests._real_model import real_model
from tests.behaviour._tree import ROOT

PYTHON = ROOT / ".venv-vllm/bin/python"
"""Path of its environment, created if missing."""
CORPUS = ROOT / "mcp_servers/rag/corpus/documents.jsonl"
NAME = "tiny"
_LOCK = ROOT / "build/vllm.lock"


def make_tiny_model(folder: Path) -> None:
    """Create a model of random weights; its tokenizer is trained on the bundled corpus."""
    # Here and not by a program: torch takes longer to import than the model takes to make.
    runpy.run_path(str(TINY_MODEL))["main"]([str(folder), str(CORPUS)])


def settings_of(server: ModelServer, **more: object) -> ModelSettings:
    """Return the settings of a model client for it."""
    return ModelSettings.model_validate(
        {"name": server.model, "base_url": server.url, "api_key": server.key, **more}
    )


def make_environment() -> None:
    """Create the environment if it is missing."""
    # Two processes of the suite may want it at the same time.
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "--silent", ".venv-vllm/.stamp"], cwd=ROOT, check=True)


async def model_folder(server: ModelServer) -> Path:
    """Return the folder with the server's weights."""
    if server.weights is not None:
        return server.weights.folder
    async with EngineControl(server.address, server.key) as control:
        _, root = await control.model()
        return Path(root)


@asynccontextmanager
async def as_it_was(server: ModelServer) -> AsyncGenerator[Path]:
    """Yield the folder of the server's weights, and restore them afterwards."""
    folder = await model_folder(server)
    try:
        yield folder
    finally:
        await server.publish(Weights(folder=folder, version="default"))


@contextmanager
def real_server(dtype: str, model: Path | None = None) -> Generator[ModelServer]:
    """Serve SmolLM2, or other weights of it, with a loader that leaves tensors stale on demand."""
    make_environment()
    tests = str(ROOT / "tests/agentflow/serving")
    settings = ServingSettings.model_validate(
        {
            "model": str(model or real_model()),
            "name": "smollm2",
            "python": PYTHON,
            "device": "cpu",
            "dtype": dtype,
            "max_model_len": 2048,
            "trains": True,
            "options": {"worker-extension-cls": "_faulty_loader.FaultyLoader"},
        }
    )
    with (
        patch.dict(os.environ, {"PYTHONPATH": tests}),
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ModelServer(settings)) as server,
    ):
        yield server


@contextmanager
def tiny_server() -> Generator[ModelServer]:
    """Serve the model."""
    make_environment()
    with tempfile.TemporaryDirectory(prefix="tiny-") as folder:
        make_tiny_model(Path(folder))
        settings = ServingSettings(
            model=folder, name=NAME, python=PYTHON, device="cpu", dtype="float32", trains=True
        )
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(ModelServer(settings)) as server,
        ):
            yield server
