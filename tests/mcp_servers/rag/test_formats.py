"""Documents of other formats than text are read by the document readers; all other files are counted."""

from pathlib import Path

import pytest
from docx import Document
from reportlab.pdfgen.canvas import Canvas

from agentflow.errors import ConfigurationError
from mcp_servers.rag import RagBackend
from mcp_servers.rag import _documents as documents
from tests.mcp_servers.rag._library import library


def write_pdf(path: Path, text: str) -> None:
    page = Canvas(str(path))
    page.drawString(100, 700, text)
    page.save()


def nothing_installed(name: str) -> None:
    return


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    """A directory of readable, unreadable and other files."""
    folder = tmp_path / "papers"
    (folder / "deep").mkdir(parents=True)
    (folder / "otters.md").write_text("# Otters\nOtters swim.", encoding="utf-8")
    (folder / "birds.html").write_text(
        "<title>Birds</title><script>no</script><p>Gulls fly.</p>", encoding="utf-8"
    )
    write_pdf(folder / "deep/light.pdf", "The lighthouse of Varn was built in 1790.")
    ship = Document()
    ship.add_paragraph("The brig Lind sailed in 1820.")
    ship.save(str(folder / "ship.docx"))
    for name in ("damaged.pdf", "chart.png", "photo.png", ".hidden.pdf", "README"):
        (folder / name).write_bytes(b"%PDF-1.4 nothing")
    return folder


@pytest.mark.promise("rag:formats")
async def test_formatted_documents_are_found_and_other_files_are_counted(
    papers: Path, tmp_path: Path
) -> None:
    async with library(index_path=papers, index_dir=tmp_path / "index") as opened:
        for query, id in (("lighthouse", "deep/light.pdf"), ("brig", "ship.docx"), ("gulls", "birds.html")):
            assert await opened.ids(query) == [id]
        stats = await opened.data("stats")
    assert stats["summary"] == (
        "4 documents of papers, 3 files skipped (.png, no suffix); "
        "1 file could not be read (damaged.pdf: it is damaged or not a PDF file)"
    )
    assert stats["skipped"] == {".png": 2, "": 1}
    assert stats["unreadable"] == {"damaged.pdf": "it is damaged or not a PDF file."}
    write_pdf(papers / "damaged.pdf", "A repaired chart of Orm.")
    async with library(index_path=papers, index_dir=tmp_path / "index") as opened:
        assert await opened.ids("repaired") == ["damaged.pdf"]
        assert (await opened.data("stats"))["unreadable"] == {}


@pytest.mark.promise("rag:formats")
async def test_without_the_extra_it_is_named(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "find_spec", nothing_installed)
    async with library(index_path=papers) as opened:
        assert await opened.ids("lighthouse") == []
        assert await opened.ids("gulls") == ["birds.html"]
        summary = str((await opened.data("stats"))["summary"])
    assert summary.startswith("2 documents of papers, 6 files skipped (.pdf, .png, no suffix, .docx); ")
    assert "reading .pdf, .docx needs the extra document: " in summary
    for name in ("otters.md", "birds.html"):
        (papers / name).unlink()
    with pytest.raises(
        ConfigurationError, match=r"contains no .jsonl, .md or .txt file \(0 documents .*the extra document"
    ):
        RagBackend().check({"index_path": str(papers)})


@pytest.mark.promise("rag:formats")
async def test_documents_that_cannot_be_read_at_all_are_refused(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.4 nothing")
    with pytest.raises(
        ConfigurationError, match=r"nothing to search: 0 documents of report.pdf; 1 file could not be read"
    ):
        async with library(index_path=tmp_path / "report.pdf"):
            pass


@pytest.mark.promise("rag:formats")
async def test_the_bundled_corpus_says_that_it_is_one() -> None:
    async with library() as opened:
        assert (await opened.data("stats"))["summary"] == "91 documents of the bundled corpus"
