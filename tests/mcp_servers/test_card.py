"""Limits, practices and examples of a tool, the same through every entry point."""

import tomllib
from pathlib import Path
from typing import Annotated

import pytest
from mcp import Client
from pydantic import Field

from agentflow.errors import ConfigurationError
from agentflow.sandbox import Sandbox
from mcp_servers import BACKENDS, Backend, HttpOptions, ToolTable, load_backend, tool
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
            metas = {entry.name: entry.meta or {} for entry in (await client.list_tools()).tools}
        async with (
            serving(table, HttpOptions(port=0)) as server,
            Sandbox(server.url.removesuffix("/mcp")) as remote,
        ):
            there = await remote.tools("lamps")
    for tools in (here, there):
        find, count = tools
        assert find.limits == ("It knows no candles.",)
        assert find.practices == ("Name the lamp.",)
        assert [dict(example) for example in find.examples] == [{"lamp": "the Long Light"}]
        assert (count.limits, count.practices, count.examples) == ((), (), ())
    assert CARD_KEY in metas["lamps_find"]
    assert CARD_KEY not in metas["lamps_count"]


@pytest.mark.promise("mcp:tool:cards")
@pytest.mark.parametrize("name", sorted(BACKENDS.keys() - {"mcp"}))
def test_every_tool_of_a_backend_has_a_short_card(name: str) -> None:
    backend = load_backend(name)
    assert backend.cards is not None
    assert tomllib.loads(backend.cards.read_text()).keys() == {tool.verb for tool in backend.tools}
    for entry in backend.tools:
        assert entry.limits and entry.practices, entry.name
        for line in (*entry.limits, *entry.practices):
            assert line.endswith(".") and len(line) <= 120, line


class NotedLamps(Lamps):
    """Lamps with a card in a file."""

    cards = None


@pytest.mark.promise("mcp:tool:cards")
def test_a_card_in_a_file_completes_the_notes_of_the_code(tmp_path: Path) -> None:
    NotedLamps.cards = tmp_path / "cards.toml"
    NotedLamps.cards.write_text('[count]\nlimits = ["Slow."]\n[find]\nlimits = ["Other."]\n')
    find, count = NotedLamps().tools
    assert find.limits == ("It knows no candles.",)
    assert (count.limits, count.practices) == (("Slow.",), ())
    NotedLamps.cards = tmp_path / "wrong.toml"
    NotedLamps.cards.write_text('[count]\nlimit = ["Slow."]\n')
    with pytest.raises(ConfigurationError, match=r"wrong\.toml: .*`limit`"):
        _ = NotedLamps().tools
