"""The conformance suite's scenarios that need no fixtures, against servers of several backends."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from tests.conformance._node import CONFORMANCE, PACKAGES, node, run_node
from tests.mcp_servers._program import Program, program

BACKENDS = ("bash", "browser", "code", "data", "document", "files", "rag", "sql", "vm", "web", "world")

Era: TypeAlias = tuple[str, tuple[str, ...]]
"""Version of the protocol, and scenarios."""

MODERN: Era = (
    "2026-07-28",
    (
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
    ),
)
"""Scenarios of the stateless era."""

LEGACY: Era = ("2025-11-25", ("server-initialize", "ping", "server-session-lifecycle"))
"""Scenarios of the handshake era."""

NEED_A_FIXTURE = {"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"}
"""Checks of `server-stateless` that call a tool of the fixture server."""


async def address(running: Program) -> str:
    """Return the URL that the server prints, without its path."""
    while "serving" not in (line := await running.next_line()):
        continue
    return line.split()[-1].removesuffix("/mcp")


def failed(run: Path) -> set[str]:
    """Return the failed checks of one run of a scenario."""
    checks = json.loads((run / "checks.json").read_text(encoding="utf-8"))
    return {check["id"] for check in checks if check["status"] == "FAILURE"}


async def check(url: str, folder: Path, *eras: Era) -> None:
    """Check that a server passes all scenarios without fixtures."""
    found: list[str] = []
    for version, scenarios in eras:
        found += await wrong(url, scenarios, version, folder)
    assert found == []


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


@asynccontextmanager
async def serving(*words: str) -> AsyncGenerator[str]:
    """Yield the URL of a server with these arguments."""
    node()
    async with program(*words, "--http", "127.0.0.1:0", "--token", "none") as running:
        yield await address(running)


@pytest.fixture(scope="module")
async def server() -> AsyncGenerator[str]:
    """URL of a server with all backends."""
    async with serving(*BACKENDS) as url:
        yield url


@pytest.mark.promise("mcp:conformance:backends")
@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_scenarios_that_need_no_fixture_pass_on_the_real_servers(
    backend: str, server: str, tmp_path: Path
) -> None:
    with anyio.fail_after(110):
        await check(f"{server}/{backend}/mcp", tmp_path, MODERN)


@pytest.mark.promise("mcp:conformance:backends")
async def test_the_scenarios_of_both_eras_pass_where_all_backends_are_served_together(
    server: str, tmp_path: Path
) -> None:
    with anyio.fail_after(110):
        await check(f"{server}/mcp", tmp_path, MODERN, LEGACY)


@pytest.mark.promise("mcp:conformance:backends")
async def test_the_scenarios_that_need_no_fixture_pass_where_an_external_server_is_mounted(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(110):
        async with serving(mounted()) as url:
            await check(f"{url}/mcp/mcp", tmp_path, MODERN, LEGACY)


@pytest.mark.promise("mcp:conformance:backends")
async def test_the_scenarios_that_need_no_fixture_pass_where_several_workers_serve(tmp_path: Path) -> None:
    with anyio.fail_after(110):
        async with serving("files", "--workers", "2") as url:
            await check(f"{url}/mcp", tmp_path, MODERN, LEGACY)
