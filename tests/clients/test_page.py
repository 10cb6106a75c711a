"""The snippets of docs/clients.md run against a real server."""

import re
from pathlib import Path

import anyio
import pytest

from tests.behaviour._markdown import snippets
from tests.clients._environments import DEVELOPMENT, FRAMEWORKS, ROOT, node_folder, python_of, run
from tests.clients._page import PAGE, section_snippet
from tests.clients.conftest import TOKEN
from tests.conformance._node import node

SHORT = {
    "mcp 2.x": DEVELOPMENT,
    "fastmcp": FRAMEWORKS,
    "openai-agents": FRAMEWORKS,
    "pydantic-ai": FRAMEWORKS,
}
LONG = {
    "inspect_ai": DEVELOPMENT,
    "mcp 1.x": "mcp1",
    "langchain-mcp-adapters": "langchain",
    "mcp-use": "mcp-use",
    "smolagents": "smolagents",
}


def test_every_python_snippet_of_the_page_belongs_to_a_client_with_an_environment() -> None:
    texts = [snippet.text for snippet in snippets(PAGE, "py")]
    assert sorted(texts) == sorted(section_snippet(title, "py") for title in [*SHORT, *LONG])


@pytest.mark.promise("clients:page")
def test_the_versions_in_the_table_are_those_of_the_shared_environment() -> None:
    pins = (ROOT / "scripts/frameworks-constraints.txt").read_text(encoding="utf-8").splitlines()
    for title in (name for name, environment in SHORT.items() if environment == FRAMEWORKS):
        row = re.search(rf"^\| \[{title}\]\S+ \| (\S+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        assert row is not None
        assert {f"{title}=={row[1]}", f"{title}-slim=={row[1]}"} & set(pins), row[0]


@pytest.mark.promise("clients:page")
@pytest.mark.parametrize(
    ("title", "environment"),
    [*SHORT.items(), *(pytest.param(*item, marks=pytest.mark.soak) for item in LONG.items())],
)
async def test_a_python_snippet_computes_42(title: str, environment: str, url: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(section_snippet(title, "py", url), encoding="utf-8")
    variables = {"AGENTFLOW_SERVER_TOKEN": TOKEN, "MCP_USE_ANONYMIZED_TELEMETRY": "false"}
    with anyio.fail_after(600):
        status, output, errors = await run([python_of(environment), str(script)], tmp_path, variables)
    assert status == 0, errors
    assert output.splitlines()[-1] == "42"


@pytest.mark.soak
@pytest.mark.promise("clients:page")
async def test_the_typescript_snippet_computes_42(url: str, tmp_path: Path) -> None:
    script = node_folder() / "snippet.mjs"
    script.write_text(section_snippet("TypeScript SDK", "js", url), encoding="utf-8")
    with anyio.fail_after(600):
        status, output, errors = await run([node(), str(script)], tmp_path, {"AGENTFLOW_SERVER_TOKEN": TOKEN})
    assert (status, output) == (0, "42\n"), errors
