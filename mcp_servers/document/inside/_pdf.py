"""PDF files: text, sections by outline or font size, tables, and images of pages."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Final, NamedTuple

from mcp_servers.document.inside._draft import (
    DocumentWriter,
    UnreadableDocument,
    Untyped,
    as_cell,
    as_line,
    as_text,
)
from mcp_servers.document.inside._images import Ocr, png_of

MAX_PAGES = 20_000
MAX_PIXELS = 16_000_000
MAX_SIDE = 8_000
MAX_OUTLINE_ENTRIES = 10_000
HEADING_RATIO = 1.12
"""Font size of a heading, relative to that of most of the text."""
MAX_HEADING = 160
MAX_LEVELS = 4
RUNNING_TITLE_PAGES = 3
"""A large line on more pages than this is a running title, not a heading."""
OCR_DPI = 200
OCR_PAGES = 50

_SOFT_HYPHEN: Final = re.compile("[\x02\ufffe]\n?")


class _Line(NamedTuple):
    position: int
    text: str
    size: float


class PdfDocument:
    """An open PDF file."""

    def __init__(self, path: str) -> None:
        pypdfium2 = import_module("pypdfium2")
        self._path = path
        try:
            self._file: Untyped = pypdfium2.PdfDocument(path)
        except pypdfium2.PdfiumError as error:
            if "password" in str(error).lower():
                raise UnreadableDocument("denied", "it is encrypted: save it without a password") from None
            raise UnreadableDocument("failed", "it is damaged or not a PDF file") from None
        self._count = len(self._file)
        if self._count > MAX_PAGES:
            raise UnreadableDocument(
                "file_too_large", f"it claims {self._count} pages; the limit is {MAX_PAGES}"
            )
        if not self._count:
            raise UnreadableDocument("failed", "it has no readable pages")

    def draft(self, ocr: Ocr) -> DocumentWriter:
        """Return its text, page by page, and its sections."""
        draft = DocumentWriter("pdf", self._file.get_metadata_dict().get("Title", ""))
        lines: list[_Line] = []
        texts: list[str] = []
        blank = 0
        for number in range(self._count):
            draft.page()
            position = draft.position
            try:
                page = self._page(number)
            except UnreadableDocument:
                draft.note("Some pages are damaged and were not read.")
                draft.write("\n\n")
                texts.append("")
                continue
            text, sizes = _text_of(page)
            if not text.strip() and any(True for _ in page.get_objects(max_depth=1)):
                blank += 1
                text = self._recognised(page, draft, ocr, blank)
            texts.append(text)
            # A page without text also needs its own position.
            draft.write(text.rstrip() + "\n\n")
            lines.extend(_lines_of(text, sizes, position))
            page.close()
        if not self._sections_by_outline(draft, texts):
            for title, level, at in _headings(lines):
                draft.section(title, level, at)
        return draft

    def image(self, number: int, dpi: int) -> tuple[bytes, int, int, int]:
        """Return a page as PNG, its width and height, and the resolution of the rendering."""
        if not 1 <= number <= self._count:
            raise UnreadableDocument("not_found", f"it has no page {number}, only {self._count}")
        page = self._page(number - 1)
        image, dpi = _rendered(page, dpi)
        page.close()
        return png_of(image), image.width, image.height, dpi

    def tables(self, numbers: Sequence[int]) -> list[dict[str, object]]:
        """Return the ruled tables on these pages."""
        import pdfplumber

        tables: list[dict[str, object]] = []
        with pdfplumber.open(self._path, pages=list(numbers)) as pdf:
            for page in pdf.pages:
                for table in page.find_tables():
                    rows = [list(map(as_cell, row)) for row in table.extract()]
                    if any(cell for row in rows for cell in row):
                        tables.append({"page": page.page_number, "rows": rows})
                page.close()
        return tables

    def _page(self, number: int) -> Untyped:
        pypdfium2 = import_module("pypdfium2")
        try:
            return self._file[number]
        except pypdfium2.PdfiumError:
            raise UnreadableDocument("failed", f"its page {number + 1} is damaged") from None

    def _recognised(self, page: Untyped, draft: DocumentWriter, ocr: Ocr, blank: int) -> str:
        """Return the text of a page without text, by OCR."""
        if not ocr.there:
            draft.note(f"Pages without text are pictures and were not read. {ocr.missing}")
            return ""
        if blank > OCR_PAGES:
            draft.note(f"Only the first {OCR_PAGES} pages that are pictures were read.")
            return ""
        return ocr.text(_rendered(page, OCR_DPI)[0])

    def _sections_by_outline(self, draft: DocumentWriter, texts: Sequence[str]) -> bool:
        starts = draft.pages
        before = 0
        for number, mark in enumerate(self._file.get_toc()):
            if number >= MAX_OUTLINE_ENTRIES:
                break
            title = as_line(mark.get_title())
            target = mark.get_dest()
            page: int | None = target.get_index() if target is not None else None
            if not title or page is None or not 0 <= page < len(texts):
                continue
            offset = _find_title(title, texts[page], before - starts[page])
            before = max(before, starts[page] + offset)
            draft.section(title, mark.level + 1, before)
        return bool(draft.sections)


def _rendered(page: Untyped, dpi: int) -> tuple[Untyped, int]:
    """Render the page, with a resolution reduced to the pixel limit; return it with the resolution."""
    width, height = page.get_size()
    if width <= 0 or height <= 0:
        raise UnreadableDocument("failed", "the page has no size")
    scale = min(dpi / 72, (MAX_PIXELS / (width * height)) ** 0.5, MAX_SIDE / max(width, height))
    if min(width, height) * scale < 1:
        raise UnreadableDocument("failed", "the page is too narrow to be rendered")
    return page.render(scale=scale, rev_byteorder=True).to_pil().convert("RGB"), round(scale * 72)


def _text_of(page: Untyped) -> tuple[str, dict[str, float]]:
    """Return the text of a page and the font size of each line."""
    text_page = page.get_textpage()
    text = _SOFT_HYPHEN.sub("", as_text(text_page.get_text_bounded()))
    sizes: dict[str, float] = {}
    position = 0
    for line in text_page.get_text_range().split("\n"):
        stripped = line.strip()
        at = position + line.find(stripped)
        if stripped and at < text_page.count_chars():
            _, bottom, _, top = text_page.get_charbox(at, loose=True)
            sizes[_SOFT_HYPHEN.sub("", as_text(stripped))] = round((top - bottom) * 2) / 2
        position += len(line) + 1
    text_page.close()
    return text, sizes


def _lines_of(text: str, sizes: dict[str, float], position: int) -> Iterator[_Line]:
    for line in text.split("\n"):
        if line.strip():
            yield _Line(position, line.strip(), sizes.get(line.strip(), 0.0))
        position += len(line) + 1


def _headings(lines: Sequence[_Line]) -> Iterator[tuple[str, int, int]]:
    """Yield title, level and position of each heading: short lines in a larger font than most of the text."""
    weights = Counter[float]()
    for line in lines:
        weights[line.size] += len(line.text)
    if not weights:
        return
    body = weights.most_common(1)[0][0] or 1.0
    frequency = Counter(line.text for line in lines)
    large = [
        line
        for line in lines
        if line.size >= body * HEADING_RATIO
        and len(line.text) <= MAX_HEADING
        and frequency[line.text] <= RUNNING_TITLE_PAGES
        and any(character.isalpha() for character in line.text)
    ]
    sizes = sorted({line.size for line in large}, reverse=True)
    levels = {size: min(level, MAX_LEVELS) for level, size in enumerate(sizes, 1)}
    titles: list[list[_Line]] = []
    for line in large:
        last = titles[-1][-1] if titles else None
        if last and line.size == last.size and line.position - last.position <= len(last.text) + 2:
            # A title that spans several lines.
            titles[-1].append(line)
        else:
            titles.append([line])
    for title in titles:
        yield " ".join(line.text for line in title), levels[title[0].size], title[0].position


def _find_title(title: str, text: str, least: int) -> int:
    """Return the position of a title on a page, or 0 if it is not found."""
    pattern = r"\s+".join(re.escape(word) for word in title.split())
    match = re.compile(pattern, re.IGNORECASE).search(text, max(least, 0))
    return match.start() if match else 0
