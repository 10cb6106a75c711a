"""Limits, practices and examples of a tool, the same through every entry point."""

from typing import Annotated

import pytest
from mcp import Client
from pydantic import Field

from agentflow.sandbox import Sandbox
from mcp_servers import Backend, HttpOptions, ToolTable, tool
from mcp_servers.core import CARD_KEY, LOCAL
from mcp_servers.serving import McpAdapter
from tests.mcp_servers._serving import serving


class Lamps(Backend):
    """One tool with usage notes, one without."""

    name = "lamps"
    description = "Lamps."

    @tool(
        read_only=True,
        limits=["It knows no candles."],
        practices=["Name the lamp."],
        examples=[{"lamp": "the Long Light"}],
    )
    async def find(self, lamp: Annotated[str, Field(description="Which.")]) -> str:
        """Find a lamp."""
        return lamp

    @tool(read_only=True)
    async def count(self) -> int:
        """Count the lamps."""
        return 3


@pytest.mark.promise("mcp:tool:card")
async def test_a_tool_lists_its_limits_practices_and_examples() -> None:
    async with Sandbox(backends=[Lamps()]) as sandbox, ToolTable([Lamps()]) as table:
        here = await sandbox.tools("lamps")
        async with Client(McpAdapter(table, principal=lambda _: LOCAL).server()) as client:
            metas = {one.name: one.meta or {} for one in (await client.list_tools()).tools}
        async with (
            serving(table, HttpOptions(port=0)) as server,
            Sandbox(server.url.removesuffix("/mcp")) as remote,
        ):
            there = await remote.tools("lamps")
    for found in (here, there):
        find, count = found
        assert find.limits == ("It knows no candles.",)
        assert find.practices == ("Name the lamp.",)
        assert [dict(each) for each in find.examples] == [{"lamp": "the Long Light"}]
        assert (count.limits, count.practices, count.examples) == ((), (), ())
    assert CARD_KEY in metas["lamps_find"]
    assert CARD_KEY not in metas["lamps_count"]
