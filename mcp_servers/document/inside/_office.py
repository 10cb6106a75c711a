"""Office files: DOCX, PPTX and XLSX."""

import datetime
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from mcp_servers.document.inside._draft import DocumentWriter, Untyped, as_line

if TYPE_CHECKING:
    from docx.document import Document
    from pptx.presentation import Presentation


MAX_DEPTH = 16
_HEADING: Final = re.compile(r"heading\s*(\d)", re.IGNORECASE)
_EMBEDDED: Final = ".//{http://schemas.openxmlformats.org/drawingml/2006/main}blip"
_EMBED: Final = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}embed"
_DESCRIBED: Final = ".//{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}docPr"
_WORD: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_LEVEL: Final = f".//{_WORD}outlineLvl"
_VALUE: Final = f"{_WORD}val"
_RELATION: Final = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_REMARKS: Final = ("footnote", "endnote", "comment")
"""Kinds of texts beside that of a DOCX file, each in a part of its own."""
_FIELD_CODE: Final = re.compile(r"&(?:(&)|\[\w+\]|[A-Z](?:[+-]\d+)?)")
"""Code in the header of a sheet, such as that of the page number; `&&` is an ampersand."""
STREAMED_BYTES: Final = 8 * 1024 * 1024
"""A larger file is read as a stream, without merged cells."""
MAX_COLUMNS = 1_000
MAX_MERGED = 10_000


class DocxDocument:
    """An open DOCX file."""

    def __init__(self, path: str) -> None:
        import docx

        self._file: Document = docx.Document(path)

    def draft(self) -> DocumentWriter:
        """Return headers, paragraphs and tables in order, and footers. Notes and comments follow what refers to them."""
        from docx.text.paragraph import Paragraph

        draft = DocumentWriter("docx", self._file.core_properties.title)
        remarks = self._remarks()
        self._margins("header", draft)
        for part in self._file.iter_inner_content():
            if isinstance(part, Paragraph):
                self._paragraph(part, draft)
            else:
                # The value of a merged cell is repeated in each cell that it covers.
                draft.table([_cell_text(cell, 0) for cell in row.cells] for row in part.rows)
            for mark in _marks(part, *_REMARKS):
                draft.paragraph(remarks.pop((mark.tag, mark.get(f"{_WORD}id")), ""))
        # Their marks are in parts of the file that are not read.
        for text in remarks.values():
            draft.paragraph(text)
        self._margins("footer", draft)
        return draft

    def _remarks(self) -> dict[tuple[str, str], str]:
        """Return footnotes, endnotes and comments by the tag and id of the mark that refers to them."""
        remarks: dict[tuple[str, str], str] = {}
        for relation in self._file.part.rels.values():
            kind = relation.reltype.rpartition("/")[2].removesuffix("s")
            if kind in _REMARKS and not relation.is_external:
                for remark in _root(relation.target_part).iterfind(f"{_WORD}{kind}"):
                    author = remark.get(f"{_WORD}author")
                    label = f"{kind} by {author}" if author else kind
                    mark = (f"{_WORD}{kind}Reference", remark.get(f"{_WORD}id"))
                    remarks[mark] = _labelled(label, _paragraphs(remark))
        return remarks

    def _margins(self, kind: str, draft: DocumentWriter) -> None:
        """Write the headers or footers of all sections, each text once."""
        keys = [mark.get(_RELATION) for mark in _marks(self._file, kind)]
        parts: Untyped = self._file.part.related_parts
        texts = (_labelled(kind, _paragraphs(parts[key].element)) for key in keys if key in parts)
        for text in dict.fromkeys(texts):
            draft.paragraph(text)

    def picture(self, key: str) -> bytes:
        """Return the picture with this key."""
        return self._file.part.related_parts[key].blob

    def _paragraph(self, paragraph: Untyped, draft: DocumentWriter) -> None:
        level = _heading_level(paragraph)
        text = paragraph.text
        if level and text.strip():
            draft.heading(text, level)
        else:
            mark = "- " if "list" in _style_name(paragraph).lower() and text.strip() else ""
            draft.paragraph(mark + text.strip())
        for blip in paragraph._p.iterfind(_EMBEDDED):
            key = blip.get(_EMBED)
            if key in self._file.part.related_parts:
                described = paragraph._p.find(_DESCRIBED)
                draft.picture(str(key), described.get("descr") or "" if described is not None else "")


def _root(part: Untyped) -> Untyped:
    """Return the XML of a part that the library keeps unparsed."""
    from docx.oxml.parser import parse_xml

    return parse_xml(part.blob)


def _marks(part: Untyped, *kinds: str) -> Iterator[Untyped]:
    """Iterate over the marks in a part that refer to headers, footers, notes or comments."""
    return part._element.iter(*(f"{_WORD}{kind}Reference" for kind in kinds))


def _paragraphs(element: Untyped) -> str:
    """Return the text of all paragraphs in an element, in tables and text boxes as well."""
    paragraphs = element.iter(f"{_WORD}p")
    # A text box is stored a second time, for old programs.
    return " ".join(
        paragraph.text
        for paragraph in paragraphs
        if next(paragraph.iterancestors("{*}Fallback"), None) is None
    )


def _labelled(label: str, text: str) -> str:
    """Return a text that stands beside that of the document; empty if it is blank."""
    return f"[{as_line(label)}: {as_line(text)}]" if as_line(text) else ""


def _style_name(paragraph: Untyped) -> str:
    style = paragraph.style
    return f"{style.name} {style.style_id}" if style is not None else ""


def _heading_level(paragraph: Untyped) -> int | None:
    """Return the level of a heading, by its style or outline level."""
    name = _style_name(paragraph)
    if match := _HEADING.search(name):
        return int(match[1]) or 1
    if name.lower().startswith("title"):
        return 1
    outline = paragraph._p.find(_LEVEL)
    value = outline.get(_VALUE) if outline is not None else None
    return int(value) + 1 if value is not None and value.isdigit() and int(value) < 9 else None


def _cell_text(cell: Untyped, depth: int) -> str:
    """Return the text of a cell, including nested tables."""
    from docx.text.paragraph import Paragraph

    if depth > MAX_DEPTH:
        return ""
    texts: list[str] = []
    for part in cell.iter_inner_content():
        if isinstance(part, Paragraph):
            texts.append(part.text)
        else:
            texts.extend(_cell_text(inner, depth + 1) for row in part.rows for inner in row.cells)
    return " ".join(text for text in texts if text.strip())


class PptxDocument:
    """An open PPTX file. Each slide is a page and a section."""

    def __init__(self, path: str) -> None:
        import pptx

        self._file: Presentation = pptx.Presentation(path)

    def draft(self) -> DocumentWriter:
        """Return its slides in order."""
        draft = DocumentWriter("pptx", self._file.core_properties.title)
        for number, slide in enumerate(self._file.slides, 1):
            title: Untyped = slide.shapes.title
            text = as_line(title.text_frame.text) if title is not None else ""
            draft.page()
            draft.heading(text or f"Slide {number}", 1)
            for shape in _flat(slide.shapes, 0):
                if title is None or shape.shape_id != title.shape_id:
                    _write_shape(shape, draft, number)
            if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
                notes = slide.notes_slide.notes_text_frame.text
                draft.paragraph(f"Notes: {notes}" if notes.strip() else "")
            for text in _slide_comments(slide.part):
                draft.paragraph(_labelled("comment", text))
        return draft

    def picture(self, key: str) -> bytes:
        """Return the picture with this key."""
        number, _, shape_id = key.partition("/")
        slide = self._file.slides[int(number) - 1]
        shape = next(shape for shape in _flat(slide.shapes, 0) if shape.shape_id == int(shape_id))
        return shape.image.blob


def _slide_comments(part: Untyped) -> Iterator[str]:
    """Yield the comments on a slide, of the old and the new form, and replies."""
    for relation in part.rels.values():
        if relation.reltype.endswith("/comments") and not relation.is_external:
            for comment in _root(relation.target_part):
                yield " ".join(text.text or "" for text in comment.iter("{*}text", "{*}t"))


def _flat(shapes: Iterable[Untyped], depth: int) -> Iterator[Untyped]:
    """Yield shapes, including those in groups."""
    for shape in shapes:
        if hasattr(shape, "shapes") and depth < MAX_DEPTH:
            yield from _flat(shape.shapes, depth + 1)
        else:
            yield shape


def _write_shape(shape: Untyped, draft: DocumentWriter, number: int) -> None:
    if getattr(shape, "has_table", False):
        draft.table(_pptx_rows(shape.table), shape.name)
    elif getattr(shape, "has_chart", False):
        draft.table(_chart(shape.chart), shape.name)
    elif hasattr(shape, "image"):
        draft.picture(f"{number}/{shape.shape_id}", _described(shape))
    elif getattr(shape, "has_text_frame", False):
        lines = ("  " * paragraph.level + paragraph.text for paragraph in shape.text_frame.paragraphs)
        draft.paragraph("\n".join(line for line in lines if line.strip()))


def _described(shape: Untyped) -> str:
    marks = shape._element.xpath(".//p:cNvPr")
    return (marks[0].get("descr") or "") if marks else ""


def _pptx_rows(table: Untyped) -> Iterator[list[str]]:
    """Yield the rows; the value of a merged cell is repeated in each cell that it covers."""
    covered: dict[tuple[int, int], str] = {}
    for y, row in enumerate(table.rows):
        texts: list[str] = []
        for x, cell in enumerate(row.cells):
            text: str = cell.text_frame.text
            if cell.is_merge_origin:
                for position in (
                    (y + j, x + i) for j in range(cell.span_height) for i in range(cell.span_width)
                ):
                    covered[position] = text
            texts.append(covered.get((y, x), text))
        yield texts


def _chart(chart: Untyped) -> Iterator[list[object]]:
    """Yield the data of a chart, with its series as columns."""
    series = [series_data for plot in chart.plots for series_data in plot.series]
    plot = next(iter(chart.plots), None)
    names = [str(category) for category in plot.categories] if plot is not None else []
    yield [None, *(series_data.name for series_data in series)]
    columns = [list(series_data.values) for series_data in series]
    for position in range(max(map(len, columns), default=0)):
        name = names[position] if position < len(names) else str(position + 1)
        yield [name, *(column[position] if position < len(column) else None for column in columns)]


class XlsxDocument:
    """An open XLSX file. Each sheet is a page, a section and a table."""

    def __init__(self, path: str) -> None:
        import openpyxl

        self._large = os.path.getsize(path) > STREAMED_BYTES
        self._file: Untyped = openpyxl.load_workbook(path, read_only=self._large, data_only=True)
        # A file that was never saved by a spreadsheet program has formulas without values.
        self._formulas: Untyped = None if self._large else openpyxl.load_workbook(path)

    def draft(self) -> DocumentWriter:
        """Return its sheets in order."""
        draft = DocumentWriter("xlsx", self._file.properties.title or "")
        for sheet in self._file.worksheets:
            draft.page()
            draft.heading(sheet.title, 1)
            if self._large:
                draft.table(self._stream(sheet), sheet.title)
                continue
            comments: list[str] = []
            _sheet_margins(sheet, "Header", draft)
            draft.table(self._rows(sheet, comments), sheet.title)
            for text in comments:
                draft.paragraph(text)
            _sheet_margins(sheet, "Footer", draft)
        return draft

    def _rows(self, sheet: Untyped, comments: list[str]) -> Iterator[list[object]]:
        """Yield the rows, and add the comments on their cells."""
        formulas = self._formulas[sheet.title]
        merged = _merged_cells(sheet)
        for row in sheet.iter_rows(max_col=min(sheet.max_column, MAX_COLUMNS)):
            values: list[object] = []
            for cell in row:
                y, x = merged.get((cell.row, cell.column), (cell.row, cell.column))
                value = sheet.cell(y, x).value
                values.append(_xlsx_value(formulas.cell(y, x).value if value is None else value))
                if cell.comment is not None:
                    comments.append(_labelled(f"comment on {cell.coordinate}", cell.comment.text))
            yield values

    @staticmethod
    def _stream(sheet: Untyped) -> Iterator[list[object]]:
        # The declared dimensions may be wrong.
        sheet.reset_dimensions()
        for row in sheet.iter_rows(max_col=MAX_COLUMNS, values_only=True):
            values = [_xlsx_value(value) for value in row]
            while values and values[-1] is None:
                values.pop()
            yield values


def _sheet_margins(sheet: Untyped, kind: str, draft: DocumentWriter) -> None:
    """Write the headers or footers of a sheet, each text once."""
    items = [getattr(sheet.HeaderFooter, f"{pages}{kind}") for pages in ("odd", "even", "first")]
    parts = [(item.left.text, item.center.text, item.right.text) for item in items if item is not None]
    texts = (" ".join(_FIELD_CODE.sub(r"\1", text) for text in three if text) for three in parts)
    for text in dict.fromkeys(texts):
        draft.paragraph(_labelled(kind.lower(), text))


def _xlsx_value(value: object) -> object:
    """Convert a date with the time 00:00 to a date."""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time.min:
        return value.date()
    return value


def _merged_cells(sheet: Untyped) -> dict[tuple[int, int], tuple[int, int]]:
    """Map each merged cell to the cell that holds its value."""
    positions: dict[tuple[int, int], tuple[int, int]] = {}
    for part in sheet.merged_cells.ranges:
        for y in range(part.min_row, min(part.max_row, sheet.max_row) + 1):
            for x in range(part.min_col, min(part.max_col, MAX_COLUMNS) + 1):
                if len(positions) >= MAX_MERGED:
                    return positions
                positions[y, x] = (part.min_row, part.min_col)
    return positions
