"""Real clients, each in its own environment, take the same steps."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.clients._drivers.steps import IMAGE
from tests.clients._environments import DEVELOPMENT, DRIVERS, FRAMEWORKS, node_folder, python_of, run
from tests.clients.conftest import TOKEN
from tests.conformance._node import node

TOOLS = {"bash_run", "code_run", "files_read", "session_start", "session_fork", "session_end", "session_list"}


@dataclass(frozen=True)
class ClientCase:
    """A client and the differences of what arrives in it."""

    driver: str
    """File of its driver."""
    environment: str = DEVELOPMENT
    """Its environment."""
    arguments: tuple[str, ...] = ()
    """Further arguments of the driver."""
    image: str = "inline"
    """Way by which a large image arrives."""
    late_image: str | None = "link"
    """Way by which a large image arrives after progress; `None` without progress."""
    resources: bool = True
    """It reads resources."""
    unstarted: str = "Start one with session_start"
    """Part of the error of a call without a session."""
    required: bool = True
    """It shows which arguments are required."""

    def __str__(self) -> str:
        return "-".join([self.driver, *self.arguments])


SHORT = [
    ClientCase("mcp2"),
    ClientCase("mcp2", arguments=("legacy",)),
    ClientCase("inspect_client", late_image=None, resources=False),
]
LONG = [
    ClientCase("mcp1", "mcp1"),
    ClientCase("fastmcp_client", FRAMEWORKS, image="link"),
    ClientCase("langchain_client", "langchain", image="link"),
    ClientCase("openai_agents_client", FRAMEWORKS, late_image=None, unstarted="missing required parameters: session"),
    ClientCase("pydantic_ai_client", FRAMEWORKS, image="link", late_image=None),
    ClientCase("mcp_use_client", "mcp-use", late_image=None),
    ClientCase("smolagents_client", "smolagents", image="file", late_image=None, resources=False, required=False),
]  # fmt: skip


def check(said: dict[str, Any], case: ClientCase) -> None:
    """Compare a driver's report with what must arrive."""
    assert set(said["listed"]) >= TOOLS
    if case.required:
        assert said["required"] == ["code", "session"]
    assert case.unstarted in said["unstarted"][0]
    assert said["forked"] == ["42", "41"]
    assert said["image"] == case.image
    assert said.get("resource") == ([True, True] if case.resources else None)
    assert said.get("progress") == (["one", "two"] if case.late_image else None)
    assert said.get("image_after_progress") == case.late_image
    assert said["cancelled"] is True
    assert "session_not_found: no session 'session-0'" in said["error"][0]
    assert said["python_error"] == "ZeroDivisionError"


@pytest.mark.promise("clients:matrix")
@pytest.mark.parametrize(
    "case", [*SHORT, *(pytest.param(case, marks=pytest.mark.soak) for case in LONG)], ids=str
)
async def test_a_python_client_takes_every_step(case: ClientCase, url: str, tmp_path: Path) -> None:
    driver = str(DRIVERS / f"{case.driver}.py")
    with anyio.fail_after(600):
        command = [python_of(case.environment), driver, url, TOKEN, *case.arguments]
        status, output, errors = await run(command, tmp_path, {})
    assert status == 0, errors
    check(json.loads(output.splitlines()[-1]), case)


@pytest.mark.soak
@pytest.mark.promise("clients:matrix")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("name", "late_image"), [("test", "link"), ("unlimited", "inline")])
async def test_a_typescript_client_takes_every_step(
    version: int, name: str, late_image: str, url: str, tmp_path: Path
) -> None:
    with anyio.fail_after(600):
        driver = str(node_folder() / f"typescript{version}.mjs")
        status, output, errors = await run([node(), driver, url, TOKEN, IMAGE, name], tmp_path, {})
    assert status == 0, errors
    check(json.loads(output), ClientCase(f"typescript{version}", late_image=late_image))
