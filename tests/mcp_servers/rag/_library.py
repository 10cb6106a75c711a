"""Helpers to write documents and search them."""

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from agentflow import Sandbox
from agentflow.sandbox import SandboxSettings, ToolResult

Line = Mapping[str, object]


def write_lines(path: Path, lines: Iterable[Line]) -> Path:
    """A JSONL file of documents."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


class SearchLibrary:
    """The rag tools with some settings."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        return await self.sandbox.execute(f"rag:{tool}", arguments)

    async def data(self, tool: str, **arguments: object) -> dict[str, object]:
        result = await self.call(tool, **arguments)
        assert result.ok, result.error
        return result.data

    async def hits(self, query: str, **arguments: object) -> list[dict[str, object]]:
        return cast("list[dict[str, object]]", (await self.data("search", query=query, **arguments))["hits"])

    async def ids(self, query: str, **arguments: object) -> list[str]:
        return [str(hit["id"]) for hit in await self.hits(query, **arguments)]


@asynccontextmanager
async def library(**settings: object) -> AsyncGenerator[SearchLibrary]:
    """A library with these settings, ready."""
    rag_settings = {
        name: str(value) if isinstance(value, Path) else value for name, value in settings.items()
    }
    async with Sandbox(SandboxSettings.model_validate({"backends": {"rag": rag_settings}})) as sandbox:
        await sandbox.warmup("rag")
        yield SearchLibrary(sandbox)
