"""The conformance suite's required set, on a fixture server behind our serving code."""

import sys
from pathlib import Path

import anyio
import pytest

from tests.conformance._node import CONFORMANCE, node, run_node
from tests.mcp_servers._program import program


@pytest.mark.promise("mcp:conformance:required")
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_the_required_set_passes(version: str, tmp_path: Path) -> None:
    node()
    with anyio.fail_after(110):
        async with program(command=[sys.executable, "-m", "tests.conformance._fixture"]) as fixture:
            url = (await fixture.stdout.receive_until(b"\n", 1000)).decode().strip()
            ran = await run_node(
                CONFORMANCE, "server", "--url", url, "--requirements", version, folder=tmp_path
            )
    assert ran.status == 0, ran.output[-5000:]
