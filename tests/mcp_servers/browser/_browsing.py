"""Sessions with a browser, and helpers to call their tools."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from mcp_servers import Image, ToolResult, ToolTable
from mcp_servers.browser import BrowserBackend
from mcp_servers.files import FilesBackend
from runtimes import Runtime
from tests.mcp_servers.browser._site import Site


@dataclass(frozen=True)
class Browsing:
    """One session on the site."""

    table: ToolTable
    session: str
    site: Site

    async def call(self, name: str, **arguments: object) -> ToolResult:
        """Call a tool of the browser in this session."""
        return await self.table.call(f"browser_{name}", {"session": self.session, **arguments})

    async def data(self, name: str, **arguments: object) -> dict[str, object]:
        """The data of a call that must succeed."""
        result = await self.call(name, **arguments)
        assert result.ok, result
        return result.data

    async def failure(self, name: str, **arguments: object) -> tuple[str, str]:
        """Kind and message of a call that must fail, with one line."""
        result = await self.call(name, **arguments)
        assert result.error is not None, result
        assert "\n" not in result.error.message
        return result.error.kind.value, result.error.message

    async def open(self, path: str) -> str:
        """Open a page of the site; its snapshot."""
        return str((await self.data("navigate", url=f"{self.site.url}{path}"))["snapshot"])

    async def snapshot(self) -> str:
        """The snapshot now."""
        return str((await self.data("snapshot"))["snapshot"])

    async def press(self, name: str, **arguments: object) -> dict[str, object]:
        """Click a button by its name."""
        return await self.data("click", target=f'role=button[name="{name}"]', **arguments)

    async def script(self, function: str) -> object:
        """Return the JSON value of a function that runs in the page."""
        return (await self.data("evaluate", function=function))["value"]

    async def out(self) -> object:
        """Return the text of an element of the page."""
        return await self.script("() => document.getElementById('out').textContent")

    async def file(self, path: str) -> str:
        """A text file of the workspace."""
        result = await self.table.call("files_read", {"session": self.session, "path": path})
        assert result.ok, result
        return str(result.data["content"])

    async def write(self, path: str, content: str) -> None:
        """Make a file in the workspace."""
        arguments = {"session": self.session, "path": path, "content": content}
        assert (await self.table.call("files_write", arguments)).ok

    async def fork(self) -> tuple["Browsing", list[str]]:
        """A fork of this session, and what could not be carried."""
        forked = await self.table.call("session_fork", {"session": self.session})
        assert forked.ok, forked
        left_behind = cast("list[str]", forked.data["left_behind"])
        return Browsing(self.table, str(forked.data["session"]), self.site), left_behind

    async def end(self) -> None:
        """End the session."""
        await self.table.call("session_end", {"session": self.session})


def ref(snapshot: str, line: str) -> str:
    """The name of the first element whose line holds that."""
    match = re.search(rf"{re.escape(line)}.*?\[ref=(\w+)\]", snapshot)
    assert match, (line, snapshot)
    return match[1]


def pictures(result: ToolResult) -> list[Image]:
    """The pictures that a result shows."""
    return [part for part in result.parts if isinstance(part, Image)]


@asynccontextmanager
async def browsing_table(site: Site, runtime: Runtime, **settings: object) -> AsyncGenerator[ToolTable]:
    """A table with a browser that may visit the site."""

    async def get_runtime() -> Runtime:
        return runtime

    browser_settings: dict[str, object] = {
        "allowed_hosts": [f"127.0.0.1:{site.port}", f"site.test:{site.port}"],
        # What a busy machine takes long to do is done all the same.
        "action_seconds": 60,
        **settings,
    }
    backends = [BrowserBackend(), FilesBackend()]
    async with ToolTable(backends, runtime=get_runtime, settings={"browser": browser_settings}) as table:
        yield table


async def new_session(table: ToolTable, site: Site, **settings: object) -> Browsing:
    """A new session of the table, with settings of its own."""
    started = await table.call("session_start", {"settings": {"browser": settings}} if settings else {})
    return Browsing(table, str(started.data["session"]), site)
