"""The agents of docs/tuner.md run with the current versions of their frameworks, in one environment, through a real gateway."""

import ast
import json
import re
from pathlib import Path

import anyio
import pytest

from agentflow.gateway import EpisodeOutcome
from agentflow.testing import fake_endpoint
from tests.behaviour._markdown import snippets
from tests.clients._environments import DRIVERS, FRAMEWORKS, ROOT, python_of, run
from tests.clients.test_gateway import begin, gateway

PAGE = ROOT / "docs/tuner.md"
PINS = (ROOT / "scripts/frameworks-constraints.txt").read_text(encoding="utf-8").splitlines()
ROWS = re.findall(
    r"^\| (?P<framework>[^|]+) \| (?P<version>[^|]*)\| `(?P<function>\w+)` \| (?P<dialect>\w+), (?P<calls>\d+) call",
    PAGE.read_text(encoding="utf-8"),
    re.MULTILINE,
)
"""Rows of the table of frameworks."""


def agents_of_page() -> tuple[str, list[str]]:
    """Return the imports and agents of the page as one program, and the names of the agents."""
    nodes = [node for snippet in snippets(PAGE, "python") for node in ast.parse(snippet.text).body]
    agents = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and [argument.arg for argument in node.args.args] == ["task", "policy"]
        and not any(isinstance(line, ast.Expr) and ast.unparse(line) == "..." for line in node.body)
    ]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return ast.unparse(ast.Module([*imports, *agents], [])), [agent.name for agent in agents]


@pytest.mark.timeout(300)
@pytest.mark.promise("tuner:frameworks")
async def test_every_printed_agent_answers_with_the_version_in_the_table(tmp_path: Path) -> None:
    source, names = agents_of_page()
    assert names == [name for _, _, name, _, _ in ROWS]
    versions = {version.strip().replace(" ", "==") for _, version, *_ in ROWS} - {""}
    assert versions <= set(PINS)
    async with fake_endpoint() as url, gateway(url, "fake") as client:
        begun = [await begin(client, number) for number in range(len(names))]
        endpoints = {
            name: {
                "base_url": one.base_url, "api_key": one.keys[""], "model": one.model, "keys": one.keys
            }
            for name, one in zip(names, begun, strict=True)
        }  # fmt: skip
        given = {"source": source, "question": "What is 1 + 1?", "endpoints": endpoints}
        command = [python_of(FRAMEWORKS), str(DRIVERS / "printed_agents.py")]
        variables = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
        with anyio.fail_after(280):
            status, output, errors = await run(command, tmp_path, variables, json.dumps(given))
        assert status == 0, errors
        answers = json.loads(output)
        recorded: dict[str, list[str]] = {}
        for name, one in zip(names, begun, strict=True):
            await client.end(one, EpisodeOutcome(reward=1.0))
            calls = await client.calls(one.episode, one.attempt)
            assert calls, answers[name]
            assert [part.text for part in calls[-1].answer.parts] == [answers[name]]  # type: ignore[union-attr]
            recorded[name] = [call.dialect for call in calls]
    assert recorded == {name: [dialect] * int(count) for _, _, name, dialect, count in ROWS}
