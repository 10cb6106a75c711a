"""The conformance suite's scenarios that need no fixtures, on the servers of several backends."""

import json
from pathlib import Path

import anyio
import pytest

from tests.conformance._node import CONFORMANCE, node, run_node
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
"""Checks of `server-stateless` that call a tool which only a fixture has."""


async def address(running: Program) -> str:
    """The address that the server tells, without its path."""
    while "serving" not in (line := await running.said()):
        continue
    return line.split()[-1].removesuffix("/mcp")


def failed(folder: Path) -> set[str]:
    """The checks that failed, of those whose results lie in a folder."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("checks.json")]
    return {check["id"] for checks in results for check in checks if check["status"] == "FAILURE"}


async def wrong(url: str, scenario: str, version: str, folder: Path) -> list[str]:
    """What is wrong with a server in one scenario."""
    results = folder / f"{version}-{scenario}"
    results.mkdir()
    arguments = (
        "server",
        "--url",
        url,
        "--scenario",
        scenario,
        "--spec-version",
        version,
        "-o",
        str(results),
    )
    ran = await run_node(CONFORMANCE, *arguments, folder=folder)
    checks = failed(results)
    fine = ran.status == 0 or (checks and checks <= NEED_A_FIXTURE)
    return [] if fine else [f"{scenario} of {version}: {sorted(checks) or ran.output[-2000:]}"]


@pytest.mark.promise("mcp:conformance:backends")
@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_scenarios_that_need_no_fixture_pass_on_the_real_servers(
    backend: str, tmp_path: Path
) -> None:
    node()
    found: list[str] = []
    with anyio.fail_after(110):
        async with program(backend, "--http", "127.0.0.1:0", "--token", "none") as running:
            url = f"{await address(running)}/{backend}/mcp"
            for scenario in MODERN:
                found += await wrong(url, scenario, "2026-07-28", tmp_path)
            for scenario in LEGACY:
                found += await wrong(url, scenario, "2025-11-25", tmp_path)
    assert found == []
