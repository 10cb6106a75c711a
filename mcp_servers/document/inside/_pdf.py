"""PDF files: text, sections by outline or by size of type, tables, pictures of pages."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from mcp_servers.document.inside._draft import Draft, Unreadable, as_cell, as_line, as_text
from mcp_servers.document.inside._images import Ocr, png_of

__all__ = ["Pdf"]

Foreign: TypeAlias = Any
"""An object of a library that has no types."""

MOST_PAGES = 20_000
MOST_PIXELS = 16_000_000
LONGEST_SIDE = 8_000
MOST_MARKS = 10_000
HEADING = 1.12
"""So much larger than most of the text is a heading."""
LONGEST_HEADING = 160
MOST_LEVELS = 4
RUNNING = 3
"""A line that is large on more pages than that is no heading but a running title."""
OCR_DPI = 200
OCR_PAGES = 50

_SOFT_HYPHEN: Final = re.compile("[\x02\ufffe]\n?")


def _library() -> Foreign:
    return import_module("pypdfium2")


class _Line(NamedTuple):
    place: int
    text: str
    size: float


class Pdf:
    """An open PDF file."""

    def __init__(self, path: str) -> None:
        pypdfium2 = _library()
        self._path = path
        try:
            self._file: Foreign = pypdfium2.PdfDocument(path)
        except pypdfium2.PdfiumError as error:
            if "password" in str(error).lower():
                raise Unreadable("denied", "it is encrypted: save it without a password") from None
            raise Unreadable("failed", "it is damaged, or no PDF") from None
        self._count = len(self._file)
        if self._count > MOST_PAGES:
            raise Unreadable(
                "file_too_large", f"it claims {self._count} pages; at most {MOST_PAGES} are read"
            )
        if not self._count:
            raise Unreadable("failed", "it has no pages that can be read")

    def draft(self, ocr: Ocr) -> Draft:
        """Its text, page by page, and its sections."""
        draft = Draft("pdf", self._file.get_metadata_dict().get("Title", ""))
        lines: list[_Line] = []
        texts: list[str] = []
        blank = 0
        for number in range(self._count):
            draft.page()
            place = draft.place
            try:
                page = self._page(number)
            except Unreadable:
                draft.note("Some of its pages are damaged.")
                draft.write("\n\n")
                texts.append("")
                continue
            text, sizes = _text_of(page)
            if not text.strip() and not self._is_empty(page):
                blank += 1
                text = self._recognised(page, draft, ocr, blank)
            texts.append(text)
            # Also a page without text has a place of its own.
            draft.write(text.rstrip() + "\n\n")
            lines.extend(_lines_of(text, sizes, place))
            page.close()
        if not self._sections_by_outline(draft, texts):
            for title, level, at in _headings(lines):
                draft.section(title, level, at)
        return draft

    def image(self, number: int, dpi: int) -> tuple[bytes, int, int, int]:
        """A page as PNG, with its width and height, and the resolution that it was drawn in."""
        if not 1 <= number <= self._count:
            raise Unreadable("not_found", f"there is no page {number}: it has {self._count}")
        page = self._page(number - 1)
        image, dpi = _drawn(page, dpi)
        page.close()
        return png_of(image), image.width, image.height, dpi

    def tables(self, numbers: Sequence[int]) -> list[dict[str, object]]:
        """The ruled tables on these pages, as data."""
        import pdfplumber

        found: list[dict[str, object]] = []
        with pdfplumber.open(self._path, pages=list(numbers)) as pdf:
            for page in pdf.pages:
                for table in page.find_tables():
                    rows = [list(map(as_cell, row)) for row in table.extract()]
                    if any(cell for row in rows for cell in row):
                        found.append({"page": page.page_number, "rows": rows})
                page.close()
        return found

    def _page(self, number: int) -> Foreign:
        pypdfium2 = _library()
        try:
            return self._file[number]
        except pypdfium2.PdfiumError:
            raise Unreadable("failed", f"its page {number + 1} is damaged") from None

    def _is_empty(self, page: Foreign) -> bool:
        return next(iter(page.get_objects(max_depth=1)), None) is None

    def _recognised(self, page: Foreign, draft: Draft, ocr: Ocr, blank: int) -> str:
        """The text of a page that is only a picture."""
        if not ocr.there:
            draft.note(f"Pages without text are pictures. {ocr.missing}")
            return ""
        if blank > OCR_PAGES:
            draft.note(f"Of pages that are only pictures, the first {OCR_PAGES} are read.")
            return ""
        return ocr.text(_drawn(page, OCR_DPI)[0])

    def _sections_by_outline(self, draft: Draft, texts: Sequence[str]) -> bool:
        starts = draft.page_starts
        before = 0
        for number, mark in enumerate(self._file.get_toc()):
            if number >= MOST_MARKS:
                break
            title = as_line(mark.get_title())
            target = mark.get_dest()
            page: int | None = target.get_index() if target is not None else None
            if not title or page is None or not 0 <= page < len(texts):
                continue
            inside = _place_of(title, texts[page], before - starts[page])
            before = max(before, starts[page] + inside)
            draft.section(title, mark.level + 1, before)
        return draft.has_sections


def _drawn(page: Foreign, dpi: int) -> tuple[Foreign, int]:
    """The page as a picture, in a resolution that gives no more pixels than are allowed."""
    width, height = page.get_size()
    if width <= 0 or height <= 0:
        raise Unreadable("failed", "the page has no size")
    scale = min(dpi / 72, (MOST_PIXELS / (width * height)) ** 0.5, LONGEST_SIDE / max(width, height))
    if min(width, height) * scale < 1:
        raise Unreadable("failed", "the page is too long and thin to be drawn")
    return page.render(scale=scale, rev_byteorder=True).to_pil().convert("RGB"), round(scale * 72)


def _text_of(page: Foreign) -> tuple[str, dict[str, float]]:
    """The text of a page, and how large each of its lines is set."""
    text_page = page.get_textpage()
    text = _SOFT_HYPHEN.sub("", as_text(text_page.get_text_bounded()))
    sizes: dict[str, float] = {}
    place = 0
    for line in text_page.get_text_range().split("\n"):
        stripped = line.strip()
        at = place + line.find(stripped)
        if stripped and at < text_page.count_chars():
            _, bottom, _, top = text_page.get_charbox(at, loose=True)
            sizes[_SOFT_HYPHEN.sub("", as_text(stripped))] = round((top - bottom) * 2) / 2
        place += len(line) + 1
    text_page.close()
    return text, sizes


def _lines_of(text: str, sizes: dict[str, float], place: int) -> Iterator[_Line]:
    for line in text.split("\n"):
        if line.strip():
            yield _Line(place, line.strip(), sizes.get(line.strip(), 0.0))
        place += len(line) + 1


def _headings(lines: Sequence[_Line]) -> Iterator[tuple[str, int, int]]:
    """Titles, levels and places of headings: short lines set larger than most of the text."""
    weights = Counter[float]()
    for line in lines:
        weights[line.size] += len(line.text)
    if not weights:
        return
    body = weights.most_common(1)[0][0] or 1.0
    often = Counter(line.text for line in lines)
    large = [
        line
        for line in lines
        if line.size >= body * HEADING
        and len(line.text) <= LONGEST_HEADING
        and often[line.text] <= RUNNING
        and any(character.isalpha() for character in line.text)
    ]
    sizes = sorted({line.size for line in large}, reverse=True)
    levels = {size: min(level, MOST_LEVELS) for level, size in enumerate(sizes, 1)}
    titles: list[list[_Line]] = []
    for line in large:
        last = titles[-1][-1] if titles else None
        if last and line.size == last.size and line.place - last.place <= len(last.text) + 2:
            # A title of several lines.
            titles[-1].append(line)
        else:
            titles.append([line])
    for title in titles:
        yield " ".join(line.text for line in title), levels[title[0].size], title[0].place


def _place_of(title: str, text: str, least: int) -> int:
    """Where on a page a title stands; its beginning, if it can't be found."""
    pattern = r"\s+".join(re.escape(word) for word in title.split())
    found = re.compile(pattern, re.IGNORECASE).search(text, max(least, 0))
    return found.start() if found else 0
