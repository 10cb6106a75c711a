"""Tools: one definition for the route, the schema, the annotations and the prompt."""

from typing import Annotated

import pytest
from pydantic import Field

from mcp_servers import Backend, Tool, tool
from mcp_servers.core import Hints
from tests.mcp_servers._counter import Counter

TOOLS = {entry.verb: entry for entry in Counter().tools}


@pytest.mark.promise("mcp:tool:definition")
def test_one_definition_gives_name_route_function_and_prompt() -> None:
    add = TOOLS["add"]
    assert add.name == "counter_add"
    assert add.route == "counter:add"
    assert add.function() == {
        "type": "function",
        "function": {
            "name": "counter_add",
            "description": "Add to the session's counter.",
            "parameters": add.input_schema,
        },
    }
    assert "counter:add — Add to the session's counter." in add.prompt()
    assert "amount (integer, optional): How much to add." in add.prompt()


def test_tools_come_in_the_order_of_their_definition() -> None:
    assert list(TOOLS)[:3] == ["add", "echo", "length"]


def test_a_read_only_tool_is_not_destructive_and_idempotent() -> None:
    assert TOOLS["echo"].hints == Hints(read_only=True, destructive=False, idempotent=True, open_world=False)


def test_a_subclass_has_the_tools_of_its_base_and_its_own() -> None:
    class Better(Counter):
        name = "better"

        @tool(read_only=True)
        async def more(self) -> int:
            """More."""
            return 1

    assert [entry.name for entry in Better().tools][-1] == "better_more"
    assert "better_add" in [entry.name for entry in Better().tools]


def test_a_verb_may_differ_from_the_method_s_name() -> None:
    class Lister(Backend):
        name = "lister"

        @tool(read_only=True, verb="list")
        async def list_all(self) -> int:
            """List."""
            return 1

    assert [entry.route for entry in Lister().tools] == ["lister:list"]


@pytest.mark.parametrize("name", ["", "Bash", "a-b", "1a", "a:b"])
def test_an_invalid_tool_name_is_refused(name: str) -> None:
    async def act(what: Annotated[str, Field(description="What.")]) -> str:
        """Act."""
        return what

    with pytest.raises(TypeError, match="is not a valid tool name"):
        Tool.of(act, backend=name)


async def test_a_plain_function_becomes_a_tool() -> None:
    async def shout(text: Annotated[str, Field(description="What to shout.")]) -> str:
        """Shout."""
        return text.upper()

    made = Tool.of(shout, backend="api")
    assert made.route == "api:shout"
    assert made.dump(await made.invoke(**made.bind({"text": "hi"}))) == {"result": "HI"}


@pytest.mark.promise("journal:page:noted")
def test_only_open_world_tools_that_write_change_the_world() -> None:
    assert Hints(open_world=True).changes_world
    assert Hints(open_world=True, idempotent=True).changes_world
    assert not Hints(open_world=True, read_only=True).changes_world
    assert not Hints().changes_world
