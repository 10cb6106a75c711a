"""The conformance suite's scenarios that need no fixtures, against servers of several backends."""

import json
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from tests.conformance._node import CONFORMANCE, PACKAGES, node, run_node
from tests.mcp_servers._program import Program, program

BACKENDS = ("bash", "browser", "code", "data", "document", "files", "rag", "sql", "vm", "web", "world")

MODERN = (
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "server-sse-multiple-streams",
    "resources-list",
    "sep-2164-resource-not-found",
    "prompts-list",
    "dns-rebinding-protection",
    "caching",
    "http-header-validation",
    "input-required-result-missing-input-response",
    "input-required-result-unsupported-methods",
    "input-required-result-ignore-extra-params",
    "input-required-result-validate-input",
    "server-stateless",
)
"""Scenarios of the stateless era."""

LEGACY = ("server-initialize", "ping", "server-session-lifecycle")
"""Scenarios of the handshake era."""

NEED_A_FIXTURE = {"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"}
"""Checks of `server-stateless` that call a tool of the fixture server."""


async def address(running: Program) -> str:
    """Return the URL that the server prints, without its path."""
    while "serving" not in (line := await running.said()):
        continue
    return line.split()[-1].removesuffix("/mcp")


def failed(run: Path) -> set[str]:
    """Return the failed checks of one run of a scenario."""
    checks = json.loads((run / "checks.json").read_text(encoding="utf-8"))
    return {check["id"] for check in checks if check["status"] == "FAILURE"}


async def wrong(url: str, scenarios: Sequence[str], version: str, folder: Path) -> list[str]:
    """Return the failed checks of a server in some scenarios."""
    results = folder / version
    results.mkdir()
    # One process runs all scenarios, including those that need a fixture: a process for each is far slower.
    arguments = ("server", "--url", url, "--suite", "all", "--spec-version", version, "-o", str(results))
    ran = await run_node(CONFORMANCE, *arguments, folder=folder)
    found: list[str] = []
    for scenario in scenarios:
        runs = list(results.glob(f"server-{scenario}-2*"))
        assert len(runs) == 1, f"{scenario} of {version} did not run once: {ran.output[-2000:]}"
        if checks := failed(runs[0]) - NEED_A_FIXTURE:
            found.append(f"{scenario} of {version}: {sorted(checks)}")
    return found


def mounted() -> str:
    """Return the argument that mounts an external server."""
    command = [node(), str(PACKAGES / "server-everything/dist/index.js"), "stdio"]
    return f"backends.mcp={json.dumps({'servers': {'everything': {'command': command}}})}"


async def conforms(words: Sequence[str], path: str, folder: Path) -> None:
    """Check that a server started with these arguments passes all scenarios without fixtures."""
    node()
    with anyio.fail_after(110):
        async with program(*words, "--http", "127.0.0.1:0", "--token", "none") as running:
            url = f"{await address(running)}{path}"
            found = await wrong(url, MODERN, "2026-07-28", folder)
            found += await wrong(url, LEGACY, "2025-11-25", folder)
    assert found == []


@pytest.mark.promise("mcp:conformance:backends")
@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_scenarios_that_need_no_fixture_pass_on_the_real_servers(
    backend: str, tmp_path: Path
) -> None:
    await conforms([backend], f"/{backend}/mcp", tmp_path)


@pytest.mark.promise("mcp:conformance:backends")
async def test_the_scenarios_that_need_no_fixture_pass_where_an_external_server_is_mounted(
    tmp_path: Path,
) -> None:
    await conforms([mounted()], "/mcp/mcp", tmp_path)


@pytest.mark.promise("mcp:conformance:backends")
async def test_the_scenarios_that_need_no_fixture_pass_where_several_workers_serve(tmp_path: Path) -> None:
    await conforms(["files", "--workers", "2"], "/mcp", tmp_path)
