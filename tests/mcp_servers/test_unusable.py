"""Tools that cannot work with a server's settings are listed with the reason, and refused with it."""

from collections.abc import Mapping

import pytest
from mcp import Client

from agentflow.errors import ErrorKind
from agentflow.sandbox import Sandbox
from mcp_servers import Backend, HttpOptions, ToolTable, tool
from mcp_servers.core import LOCAL
from mcp_servers.serving import McpAdapter
from tests.mcp_servers._serving import serving

REASON = "no key; set NEWS_KEY or the setting key"


class News(Backend):
    """One tool that needs a key, and one that does not."""

    name = "news"
    description = "News."

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        return {} if "key" in settings else {"search": REASON}

    @tool(read_only=True)
    async def search(self) -> str:
        """Search."""
        return "found"

    @tool(read_only=True)
    async def today(self) -> str:
        """Read."""
        return "read"


@pytest.mark.promise("mcp:tool:unusable")
async def test_a_call_of_an_unusable_tool_is_refused_with_the_fix() -> None:
    async with ToolTable([News()]) as table:
        refused = await table.call("news_search")
        assert refused.error is not None
        assert (refused.error.kind, refused.error.message) == (
            ErrorKind.UNAVAILABLE,
            f"news_search: {REASON}",
        )
        assert (await table.call("news_today")).ok
    async with ToolTable([News()], settings={"news": {"key": "k"}}) as table:
        assert (await table.call("news_search")).ok


@pytest.mark.promise("mcp:tool:unusable")
async def test_every_entry_point_reports_an_unusable_tool_before_a_call() -> None:
    async with ToolTable([News()]) as table:
        async with Client(McpAdapter(table, principal=lambda _: LOCAL).server()) as client:
            metas = {tool.name: tool.meta for tool in (await client.list_tools()).tools}
            assert metas["news_search"] == {"agentflow/unusable": REASON}
            assert not metas["news_today"]
        async with (
            serving(table, HttpOptions(port=0)) as server,
            Sandbox(server.url.removesuffix("/mcp")) as sandbox,
        ):
            assert [tool.unusable for tool in await sandbox.tools("news")] == [REASON, ""]
