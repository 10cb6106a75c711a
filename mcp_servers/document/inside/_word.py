"""DOCX files."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcp_servers.document.inside._draft import Draft

if TYPE_CHECKING:
    from docx.document import Document
    from docx.table import Table

__all__ = ["Word"]

Foreign: TypeAlias = Any

DEEPEST = 16
_HEADING: Final = re.compile(r"heading\s*(\d)", re.IGNORECASE)
_EMBEDDED: Final = ".//{http://schemas.openxmlformats.org/drawingml/2006/main}blip"
_EMBED: Final = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}embed"
_DESCRIBED: Final = ".//{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}docPr"
_LEVEL: Final = ".//{http://schemas.openxmlformats.org/wordprocessingml/2006/main}outlineLvl"
_VALUE: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}val"


class Word:
    """An open DOCX file."""

    def __init__(self, path: str) -> None:
        import docx

        self._file: Document = docx.Document(path)

    def draft(self) -> Draft:
        """Its paragraphs and tables in order."""
        from docx.text.paragraph import Paragraph

        draft = Draft("docx", self._file.core_properties.title)
        for part in self._file.iter_inner_content():
            if isinstance(part, Paragraph):
                self._paragraph(part, draft)
            else:
                draft.table(_rows(part))
        return draft

    def picture(self, key: str) -> bytes:
        """The picture of that key."""
        return self._file.part.related_parts[key].blob

    def _paragraph(self, paragraph: Foreign, draft: Draft) -> None:
        level = _level(paragraph)
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


def _style_name(paragraph: Foreign) -> str:
    style = paragraph.style
    return f"{style.name} {style.style_id}" if style is not None else ""


def _level(paragraph: Foreign) -> int | None:
    """The level of a heading, by its style or the outline."""
    name = _style_name(paragraph)
    if found := _HEADING.search(name):
        return int(found[1]) or 1
    if name.lower().startswith("title"):
        return 1
    outline = paragraph._p.find(_LEVEL)
    value = outline.get(_VALUE) if outline is not None else None
    return int(value) + 1 if value is not None and value.isdigit() and int(value) < 9 else None


def _rows(table: "Table") -> Iterator[list[str]]:
    """The fields, row by row; a field that was merged stands in each place that it covers."""
    for row in table.rows:
        yield [_text(cell, 0) for cell in row.cells]


def _text(cell: Foreign, depth: int) -> str:
    """The text of a field, with that of tables in it."""
    from docx.text.paragraph import Paragraph

    if depth > DEEPEST:
        return ""
    texts: list[str] = []
    for part in cell.iter_inner_content():
        if isinstance(part, Paragraph):
            texts.append(part.text)
        else:
            texts.extend(_text(inner, depth + 1) for row in part.rows for inner in row.cells)
    return " ".join(text for text in texts if text.strip())
