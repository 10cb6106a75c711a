"""Descriptions of tools name only tools that are offered."""

import re
from collections.abc import AsyncGenerator
from itertools import chain
from typing import Any, Literal

import msgspec
import pytest

from agentflow.engine import GrowthSettings, card_of
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._rendering import describe_tools
from agentflow.trace import Task, ToolCard
from mcp_servers import BACKENDS, load_backend
from tests.agentflow.engine._functions import SEED, PlanBy, fresh_page, grower
from tests.agentflow.team.test_single import Agent, solved

WITHOUT_OWN_TOOLS = {"mcp"}
"""The backend whose tools are those of configured servers."""


@pytest.fixture(scope="module")
async def tools(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[dict[str, Tool]]:
    """All tools of all backends."""
    assert len(BACKENDS) == 12
    async with Sandbox(backends=[*BACKENDS]) as sandbox:
        found = [await sandbox.tools(name) for name in BACKENDS if name not in WITHOUT_OWN_TOOLS]
        yield {tool.name: tool for tool in chain.from_iterable(found)}


def words_in(value: object) -> set[str]:
    """All words in a card that may be names."""
    return set(re.findall(r"\w+", msgspec.json.encode(value).decode()))


def descriptions(schema: Any) -> list[str]:  # noqa: ANN401 - JSON
    match schema:
        case {**members}:
            own = [members["description"]] if isinstance(members.get("description"), str) else []
            return [*own, *chain.from_iterable(map(descriptions, members.values()))]
        case [*items]:
            return [*chain.from_iterable(map(descriptions, items))]
        case _:
            return []


def texts(card: ToolCard) -> list[str]:
    return [card.description, *card.limits, *card.practices, *descriptions(card.schema)]


def clauses(text: str) -> list[str]:
    return [part.strip().rstrip(".;") for part in re.split(r"[.;]\s", " ".join(text.split()))]


@pytest.mark.promise("team:tools:offered")
def test_a_tool_that_is_offered_alone_names_no_other_tool(tools: dict[str, Tool]) -> None:
    assert len(tools) > 80
    shortened = 0
    for name, tool in tools.items():
        whole, alone = card_of(tool, {}), card_of(tool, {}, [name])
        assert words_in(alone) & tools.keys() <= {name}
        assert alone.description.startswith(clauses(whole.description)[0])
        # What is left is a part of what was there.
        original = " ".join(" ".join(texts(whole)).split())
        assert [part for text in texts(alone) for part in clauses(text) if part not in original] == []
        assert card_of(tool, {}, tools) == whole
        shortened += alone != whole
    assert shortened > 40


@pytest.mark.promise("team:tools:offered")
def test_parts_of_a_sentence_that_name_no_absent_tool_remain(tools: dict[str, Tool]) -> None:
    search = card_of(tools["rag_search"], {}, ["rag_search"])
    assert "Use it first, to find the documents on a topic. Names and rare words" in search.description
    both = card_of(tools["rag_search"], {}, ["rag_search", "rag_get"])
    assert "rag_get then reads a whole document." in " ".join(both.description.split())
    database = card_of(tools["sql_execute"], {}, ["sql_execute"]).schema["properties"]["database"]
    assert database["description"] == "Id of the database. Omit it if there is only one."
    # Constants of a schema look like names of tools and are none.
    assert "vm_command_line" in describe_tools([card_of(tools["vm_evaluate"], {}, ["vm_evaluate"])])


@pytest.mark.promise("team:tools:offered")
async def test_planner_and_agent_read_only_of_tools_that_they_have() -> None:
    planner = PlanBy(lambda _: [])
    async with grower(
        planner, settings=GrowthSettings(max_depth=1), backends=("bash",), tools=("bash_run",)
    ) as growing:
        await growing.grow(SEED, fresh_page())
    (card,) = planner.requests[0].tools
    assert card.name == "bash_run" and "bash_input" not in words_in(card)
    agent = Agent("1871")
    await solved(
        agent, backends=[load_backend("bash")], tools="bash_run", task=Task(index=0, id="t", question="?")
    )
    (spec,) = agent.calls[0].tools
    assert spec.name == "bash_run" and "bash_input" not in words_in([spec.description, spec.schema])
