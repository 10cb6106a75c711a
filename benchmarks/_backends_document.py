"""Overhead of document calls over the engine, and a search in a document of 500 pages.

The engine is pypdfium2 in this process, with the file open; ours are whole calls through a sandbox. Both sides render
pages for the first time, so that no cache helps. Figures are medians of elapsed time: on a busy machine the rendering sandbox
waits for a free core.
"""

import io
import statistics
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from agentflow.sandbox import Sandbox, SandboxSettings
from benchmarks._rows import Row

Foreign: TypeAlias = Any

PAGES = 500
DRAWN = 40
SEARCHES = 100
SCALE = 100 / 72


def book(path: Path) -> None:
    """Write that many pages of text with headings."""
    words = ("harbour", "sloop", "mast", "boiler", "ledger", "silver", "tide", "rope", "captain", "cargo")
    canvas: Foreign = import_module("reportlab.pdfgen.canvas").Canvas(str(path))
    for page in range(PAGES):
        canvas.setFont("Helvetica-Bold", 18)
        canvas.drawString(72, 780, f"Chapter {page + 1}")
        canvas.setFont("Helvetica", 10)
        for line in range(50):
            told = " ".join(words[(page * 7 + line * 3 + place * (line + 1)) % 10] for place in range(12))
            canvas.drawString(72, 755 - line * 14, f"{told} {page}-{line}")
        canvas.showPage()
    canvas.save()


class Engine:
    """pypdfium2 alone."""

    def __init__(self, path: Path) -> None:
        self._file: Foreign = import_module("pypdfium2").PdfDocument(str(path))

    def draw(self, page: int) -> int:
        """A page as PNG."""
        out = io.BytesIO()
        self._file[page].render(scale=SCALE).to_pil().convert("RGB").save(out, "PNG", compress_level=1)
        return len(out.getvalue())

    def text(self) -> int:
        """The text of all pages."""
        return sum(len(page.get_textpage().get_text_bounded()) for page in self._file)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


async def timed(sandbox: Sandbox, tool: str, arguments: dict[str, object]) -> float:
    """Milliseconds of a call that must succeed."""
    begin = time.perf_counter()
    result = await sandbox.execute(f"document:{tool}", arguments)
    spent = (time.perf_counter() - begin) * 1000
    assert result.ok, result.error
    return spent


async def measure() -> list[Row]:
    """The figures."""
    with tempfile.TemporaryDirectory(prefix="document-") as folder:
        path = Path(folder, "book.pdf")
        await anyio.to_thread.run_sync(book, path)
        settings = {"backends": {"document": {"file": str(path), "cache_dir": f"{folder}/kept"}}}
        engine = await anyio.to_thread.run_sync(Engine, path)
        try:
            begin = time.perf_counter()
            await anyio.to_thread.run_sync(engine.text)
            texts = (time.perf_counter() - begin) * 1000
            async with Sandbox(SandboxSettings.model_validate(settings)) as sandbox:
                return await figures(sandbox, engine, texts)
        finally:
            engine.close()


async def figures(sandbox: Sandbox, engine: Engine, texts: float) -> list[Row]:
    """The figures of a fresh sandbox."""
    opened = await timed(sandbox, "outline", {"max_sections": 1})
    first = await timed(sandbox, "search", {"query": "boiler 250-3"})
    ours: list[float] = []
    theirs: list[float] = []
    for page in range(1, DRAWN + 1):
        ours.append(await timed(sandbox, "page_image", {"page": page}))
        begin = time.perf_counter()
        engine.draw(page - 1)
        theirs.append((time.perf_counter() - begin) * 1000)
    reads = [await timed(sandbox, "read", {"pages": page}) for page in range(1, DRAWN + 1)]
    queries = [
        f"{word} of the cargo {page}-7"
        for page, word in zip(range(SEARCHES), ["tide", "rope"] * SEARCHES, strict=False)
    ]
    searches = [await timed(sandbox, "search", {"query": query}) for query in queries]
    # Both renderings of a page ran at the same time, so pairs show the overhead best.
    alone = statistics.median(theirs)
    drawn = alone + statistics.median(a - b for a, b in zip(ours, theirs, strict=True)), alone
    return [
        Row("document_500_pages_read_ms", opened, texts, "pypdfium2: text of all pages"),
        Row("document_first_search_ms", first),
        Row("document_page_image_ms", *drawn, "pypdfium2: draw, PNG", floor=2.0, added=True),
        Row("document_read_page_ms", statistics.median(reads), floor=2.0),
        Row("document_search_500_pages_ms", statistics.median(searches)),
    ]
