"""The backends page lists the real tools. `python -m tests.mcp_servers.test_backends_page` regenerates its tables."""

from pathlib import Path
from typing import cast

import pytest
from pydantic import BaseModel

from mcp_servers import Backend, Tool
from mcp_servers.bash import BashBackend, BashSettings
from mcp_servers.browser import BrowserBackend, BrowserSettings
from mcp_servers.code import CodeBackend, CodeSettings, InstallSettings
from mcp_servers.data import DataBackend, DataSettings
from mcp_servers.document import DocumentBackend, DocumentSettings
from mcp_servers.external import ExternalSettings, MountSettings
from mcp_servers.files import FilesBackend, FilesSettings
from mcp_servers.rag import EmbeddingSettings, RagBackend, RagSettings
from mcp_servers.sql import SqlBackend, SqlSettings
from mcp_servers.vm import DesktopSettings, VmBackend, VmSettings
from mcp_servers.web import CacheSettings, ReadingSettings, WebBackend, WebSettings
from mcp_servers.world import WorldBackend, WorldSettings

PAGE = Path(__file__).parents[2] / "docs/backends.md"
TOOLS: list[Backend] = [
    BashBackend(),
    BrowserBackend(),
    CodeBackend(),
    DataBackend(),
    DocumentBackend(),
    FilesBackend(),
    RagBackend(),
    SqlBackend(),
    VmBackend(),
    WebBackend(),
    WorldBackend(),
]
SETTINGS: dict[str, type[BaseModel]] = {
    "bash": BashSettings,
    "browser": BrowserSettings,
    "code": CodeSettings,
    "code.install": InstallSettings,
    "data": DataSettings,
    "document": DocumentSettings,
    "files": FilesSettings,
    "mcp": ExternalSettings,
    "mcp.servers.*": MountSettings,
    "rag": RagSettings,
    "rag.embedding": EmbeddingSettings,
    "sql": SqlSettings,
    "vm": VmSettings,
    "vm.desktop": DesktopSettings,
    "web": WebSettings,
    "web.reading": ReadingSettings,
    "web.cache": CacheSettings,
    "world": WorldSettings,
}


def tool_table() -> str:
    """Return the table of tools with their arguments and results."""
    lines = ["| tool | arguments | returns |", "| --- | --- | --- |"]
    lines += [
        f"| `{tool.name}` | {arguments(tool)} | {returned(tool)} |"
        for backend in TOOLS
        for tool in backend.tools
    ]
    return "\n".join(lines)


def arguments(tool: Tool) -> str:
    required = cast("list[str]", tool.input_schema.get("required", []))
    properties = cast("dict[str, object]", tool.input_schema["properties"])
    return ", ".join(f"`{name}`" if name in required else f"`{name}`?" for name in properties)


def returned(tool: Tool) -> str:
    assert tool.output_schema is not None
    return ", ".join(f"`{name}`" for name in cast("dict[str, object]", tool.output_schema["properties"]))


def settings_table() -> str:
    """Return the table of settings with their defaults."""
    lines = ["| setting | default | what it is |", "| --- | --- | --- |"]
    for section, model in SETTINGS.items():
        for name, field in model.model_fields.items():
            default = (
                "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)}`"
            )
            lines.append(
                f"| `{section}.{name}` | {default} | {' '.join((field.description or '').split())} |"
            )
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """Return the page with regenerated tables."""
    for name, table in (("tools", tool_table()), ("settings", settings_table())):
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert start and end, f"{PAGE.name} has no place for {name}"
        page = f"{before}{start}{table}\n{end}{after}"
    return page


@pytest.mark.promise("backends:documented")
def test_the_page_lists_the_real_tools_and_settings() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
