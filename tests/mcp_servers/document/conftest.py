"""A table of the document backend that the tests of this package share, and files that they read."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from mcp_servers import ToolTable
from mcp_servers.document import DocumentBackend
from tests.mcp_servers.document import _made
from tests.mcp_servers.document._reading import Reader, reader_of


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of every format."""
    folder = tmp_path_factory.mktemp("shelf")
    _made.pdf(folder / "book.pdf")
    _made.pdf(folder / "outlined.pdf", outline=True)
    _made.languages_pdf(folder / "languages.pdf")
    _made.word(folder / "ships.docx")
    _made.slides(folder / "fleet.pptx")
    _made.sheets(folder / "sales.xlsx")
    (folder / "dues.html").write_text(_made.HTML, encoding="utf-8")
    (folder / "notes").mkdir()
    (folder / "notes/dues.md").write_text(_made.MARKDOWN, encoding="utf-8")
    (folder / "plain.txt").write_bytes(b"one line\r\nand caf\xe9\r\n")
    (folder / "sign.png").write_bytes(_made.picture("HARBOUR OFFICE"))
    (folder / ".hidden.md").write_text("hidden", encoding="utf-8")
    (folder / "program.bin").write_bytes(b"\0\1")
    return folder


@pytest.fixture(scope="module")
async def table(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[ToolTable]:
    """The backend, whose sessions may name what lies in the folders of tests."""
    base = tmp_path_factory.getbasetemp()
    settings = {"roots": [str(base)], "cache_dir": str(base / "cache"), "folder": str(shelf), "timeout": 100}
    async with ToolTable([DocumentBackend()], settings={"document": settings}) as table:
        yield table


@pytest.fixture
async def reader(table: ToolTable) -> Reader:
    """A session with all files."""
    return await reader_of(table)
