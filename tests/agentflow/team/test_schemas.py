"""Schemas as the strictest endpoints want them."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.questions import HiddenAnswer, QuestionProposal
from agentflow.sandbox import Sandbox
from agentflow.team._schemas import answer_schema, plan_schema
from agentflow.trace import Judgement, ToolCard
from tests.agentflow.team._model import SEARCH

Schema = dict[str, Any]

TREE = ToolCard(
    "own_tree",
    "A tool with nested, shared and endless types.",
    {
        "$defs": {
            "Leaf": {"type": "object", "properties": {"name": {"type": "string", "default": ""}}},
            "Node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/Node"}},
                "required": ["next"],
            },
        },
        "type": "object",
        "properties": {
            "leaf": {"$ref": "#/$defs/Leaf", "description": "A leaf."},
            "leaves": {"type": "array", "items": {"$ref": "#/$defs/Leaf"}},
            "node": {"$ref": "#/$defs/Node"},
            "free": {"type": "object", "additionalProperties": {"type": "string"}},
            "properties": {"type": "string"},
        },
        "required": ["leaf"],
    },
)


def objects(schema: object) -> Iterator[Schema]:
    """Every object schema in a schema that has properties."""
    if isinstance(schema, dict):
        known = cast("Schema", schema)
        if isinstance(known.get("properties"), dict) and known.get("type") == "object":
            yield known
        for value in known.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for each in cast("list[object]", schema):
            yield from objects(each)


def assert_strict(schema: Schema) -> None:
    assert schema["type"] == "object"
    assert "$ref" not in str(schema)
    assert "$defs" not in str(schema)
    for each in objects(schema):
        assert each["additionalProperties"] is False
        assert sorted(each["required"]) == sorted(each["properties"])


@pytest.mark.promise("team:schemas")
@pytest.mark.parametrize("kind", [Judgement, HiddenAnswer])
def test_answer_schemas_are_closed_and_require_every_property_without_nulls(
    kind: type[msgspec.Struct],
) -> None:
    schema = answer_schema(kind)
    assert_strict(schema)
    assert "null" not in str(schema)
    assert list(schema["properties"]) == list(kind.__struct_fields__)


@pytest.mark.promise("team:schemas")
def test_a_draft_has_all_fields_and_a_region_may_be_null() -> None:
    schema = answer_schema(QuestionProposal)
    assert_strict(schema)
    assert "region" in str(schema) and "null" in str(schema)


@pytest.mark.promise("team:schemas")
async def test_a_plan_schema_gives_each_tool_its_own_arguments() -> None:
    async with Sandbox(backends=["bash", "code", "files"]) as sandbox:
        tools = await sandbox.tools()
    cards = tuple(ToolCard(tool.name, tool.description, tool.input_schema) for tool in tools)
    schema = plan_schema((*cards, SEARCH, TREE), 3)
    assert_strict(schema)
    proposals = schema["properties"]["proposals"]
    assert proposals["minItems"] == proposals["maxItems"] == 3
    named = {each["properties"]["tool"]["const"]: each for each in proposals["items"]["anyOf"]}
    assert list(named) == [card.name for card in (*cards, SEARCH, TREE)]
    search = named["rag_search"]["properties"]["arguments"]["properties"]
    assert search == {
        "query": {"type": "string"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }


@pytest.mark.promise("team:schemas")
def test_references_are_inlined_unless_they_are_recursive() -> None:
    arguments = plan_schema((TREE,), 1)["properties"]["proposals"]["items"]["anyOf"][0]["properties"][
        "arguments"
    ]
    assert arguments["properties"]["leaf"]["description"] == "A leaf."
    node = arguments["properties"]["node"]["anyOf"][0]
    assert node["properties"]["next"] == {}
    assert arguments["properties"]["free"]["anyOf"][0]["additionalProperties"] == {"type": "string"}
    assert "properties" in arguments["properties"]


@pytest.mark.promise("team:schemas")
@given(st.integers(1, 9), st.lists(st.sampled_from([SEARCH, TREE]), min_size=1, max_size=4, unique_by=id))
def test_a_plan_schema_depends_only_on_tools_and_count(count: int, tools: list[ToolCard]) -> None:
    again = msgspec.json.decode(msgspec.json.encode(tools), type=tuple[ToolCard, ...])
    assert plan_schema(tuple(tools), count) == plan_schema(again, count)
