"""Helpers to call the document tools."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from mcp_servers import Image, TextContent, ToolResult, ToolTable

Row = dict[str, object]


@dataclass(frozen=True)
class Reader:
    """One session of a table."""

    table: ToolTable
    session: str

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        return await self.table.call(f"document:{tool}", {"session": self.session, **arguments})

    async def data(self, tool: str, **arguments: object) -> dict[str, object]:
        result = await self.call(tool, **arguments)
        assert result.ok, result.error
        return result.data

    async def rows(self, tool: str, field: str, **arguments: object) -> list[Row]:
        return cast("list[Row]", (await self.data(tool, **arguments))[field])

    async def failure(self, tool: str, **arguments: object) -> tuple[str, str]:
        """Kind and message of a call that must fail; the message is one line."""
        result = await self.call(tool, **arguments)
        assert result.error is not None, result
        assert "\n" not in result.error.message
        return result.error.kind.value, result.error.message

    async def text(self, **arguments: object) -> str:
        """Return the joined parts of `document_read`."""
        return "".join(str(part["text"]) for part in await self.rows("read", "parts", **arguments))

    async def fork(self) -> "Reader":
        result = await self.table.call("session_fork", {"session": self.session})
        assert result.ok, result.error
        return Reader(self.table, str(result.data["session"]))


async def reader_of(table: ToolTable, path: Path | None = None, **settings: object) -> Reader:
    """A session with the documents at that place."""
    document_settings = {**settings} if path is None else {**settings, "seed_path": str(path)}
    result = await table.call(
        "session_start", {"settings": {"document": document_settings} if document_settings else {}}
    )
    assert result.ok, result.error
    return Reader(table, str(result.data["session"]))


def images(result: ToolResult) -> list[bytes]:
    return [part.data for part in result.parts if isinstance(part, Image)]


def shown_text(result: ToolResult) -> str:
    return "\n".join(part.text for part in result.parts if isinstance(part, TextContent))
