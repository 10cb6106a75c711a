"""The web tools with some settings, among a web of names."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import cast

from agentflow.errors import ErrorKind
from mcp_servers import TextContent, ToolResult, ToolTable
from mcp_servers.web import WebBackend
from tests.mcp_servers.web._site import Site


class Web:
    """Short ways to call the tools."""

    def __init__(self, table: ToolTable) -> None:
        self.table = table

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        return await self.table.call(f"web_{tool}", arguments)

    async def data(self, tool: str, **arguments: object) -> dict[str, object]:
        result = await self.call(tool, **arguments)
        assert result.ok, result.error
        return result.data

    async def failure(self, tool: str, **arguments: object) -> tuple[ErrorKind, str]:
        result = await self.call(tool, **arguments)
        assert result.error is not None, result
        assert "\n" not in result.error.message
        return result.error.kind, result.error.message

    async def page(self, url: str, **arguments: object) -> dict[str, object]:
        """The one page of a visit."""
        (page,) = rows((await self.data("visit", urls=url, **arguments))["pages"])
        return page


def rows(value: object) -> list[dict[str, object]]:
    """A list of objects in some data."""
    return cast("list[dict[str, object]]", value)


def text_of(result: ToolResult) -> str:
    """Return the text shown to a model."""
    (part,) = result.parts
    assert isinstance(part, TextContent)
    return part.text


@asynccontextmanager
async def web_tools(
    site: Site, environment: Mapping[str, str] | None = None, /, **settings: object
) -> AsyncGenerator[Web]:
    """The tools; nothing is kept on disk, and no host is waited for, unless the settings say so."""
    backend = WebBackend(network=site.network, environment=lambda: environment or {}, parsers=site.parsers)
    web_settings = {"cache": None, "host_interval": 0, "robots": False, **settings}
    async with ToolTable([backend], settings={"web": web_settings}) as table:
        yield Web(table)
