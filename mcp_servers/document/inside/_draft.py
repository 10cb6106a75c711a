"""Collection of a document's text while it is parsed, with the positions of its parts."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

Untyped: TypeAlias = Any
"""An object of a library without types."""

Cell: TypeAlias = str | int | float | bool | None
"""Value of a table cell."""

FailureKind: TypeAlias = Literal[
    "failed", "denied", "bad_arguments", "file_too_large", "unavailable", "not_found"
]

MAX_CHARACTERS = 20_000_000
MAX_CELLS = 200_000
MAX_TABLES = 20_000
MAX_TABLE_BYTES = 24 * 1024 * 1024
MAX_SECTIONS = 20_000
MAX_SECTION_BYTES = 4 * 1024 * 1024
MAX_PICTURES = 5_000
MAX_TITLE = 300
MAX_CELL = 10_000
MAX_DEPTH = 12

_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufeff]")


class UnreadableDocument(Exception):
    """A document cannot be read, or a requested part of it does not exist; the message gives the reason."""

    def __init__(self, why: FailureKind, message: str) -> None:
        super().__init__(message)
        self.why: FailureKind = why


def as_text(text: str) -> str:
    """Return the text without control characters and with LF line endings."""
    return _CONTROL_CHARACTERS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def as_line(text: str) -> str:
    """Return the text on one line."""
    return " ".join(as_text(text).split())


def as_cell(value: object) -> Cell:
    """Convert a cell's value to JSON."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    isoformat = getattr(value, "isoformat", None)
    return as_line(str(isoformat() if callable(isoformat) else value))[:MAX_CELL]


class DocumentWriter:
    """Collector of a document's parts, in reading order."""

    def __init__(self, kind: str, title: str = "") -> None:
        self.kind = kind
        self.title = as_line(title)[:MAX_TITLE]
        self.position = 0
        """Length of the text so far, in characters."""
        self.notes: list[str] = []
        self._text: list[str] = []
        self.pages: list[int] = []
        """Start of each page."""
        self.sections: list[tuple[str, int, int]] = []
        """Title, level and start of each section."""
        self._tables: list[dict[str, object]] = []
        self._pictures: list[tuple[int, str]] = []
        self._cells = 0
        self._table_bytes = 0
        self._section_bytes = 0

    def write(self, text: str) -> None:
        """Append text."""
        text = as_text(text)
        self.position += len(text)
        if self.position > MAX_CHARACTERS:
            raise UnreadableDocument("file_too_large", f"it has more than {MAX_CHARACTERS} characters")
        self._text.append(text)

    def paragraph(self, text: str) -> None:
        """Append a block of text, unless it is blank."""
        if text.strip():
            self.write(f"{text.strip()}\n\n")

    def page(self) -> None:
        """Start a page."""
        self.pages.append(self.position)

    def section(self, title: str, level: int, at: int | None = None) -> None:
        """Start a section, here or at an earlier position after the start of the previous one."""
        title = as_line(title)[:MAX_TITLE]
        self._section_bytes += _json_bytes(title)
        if len(self.sections) >= MAX_SECTIONS or self._section_bytes > MAX_SECTION_BYTES:
            return
        before = self.sections[-1][2] if self.sections else 0
        position = max(self.position if at is None else at, before)
        self.sections.append((title, max(1, min(level, MAX_DEPTH)), position))

    def heading(self, title: str, level: int) -> None:
        """Start a section and append its title."""
        if as_line(title):
            self.section(title, level)
            self.write(f"{as_line(title)}\n\n")

    def table(self, rows: Iterable[Sequence[object]], title: str = "", *, at: int | None = None) -> None:
        """Add a table as data and, unless its text was already written from `at` on, as text."""
        kept: list[list[Cell]] = []
        title = as_line(title)[:MAX_TITLE]
        self._table_bytes += _json_bytes(title)
        for row in rows:
            self._cells += len(row) + 1
            if self._cells > MAX_CELLS:
                self.note(f"Only the first {MAX_CELLS} cells of the tables are read.")
                break
            cells = [as_cell(value) for value in row]
            self._table_bytes += _json_bytes(cells)
            if self._table_bytes > MAX_TABLE_BYTES:
                self.note(f"Only the first {MAX_TABLE_BYTES} bytes of the tables are read.")
                break
            kept.append(cells)
        while kept and all(value in (None, "") for value in kept[-1]):
            kept.pop()
        if not kept:
            return
        start = self.position if at is None else at
        if at is None:
            lines = (" | ".join("" if value is None else str(value) for value in row) for row in kept)
            self.write("\n".join(lines) + "\n\n")
        if len(self._tables) >= MAX_TABLES:
            self.note(f"Only the first {MAX_TABLES} tables are read as data.")
            return
        self._tables.append({"start": start, "end": self.position, "title": title, "rows": kept})

    def picture(self, key: str, text: str = "") -> None:
        """Add a picture at this position; `key` identifies it later."""
        if len(self._pictures) < MAX_PICTURES:
            self._pictures.append((self.position, key))
        self.paragraph(f"[picture: {as_line(text)}]" if as_line(text) else "[picture]")

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def finished(self) -> tuple[dict[str, object], str]:
        """Return the content as JSON values, and the text that belongs into it."""
        head: dict[str, object] = {
            "kind": self.kind,
            "title": self.title,
            "text": "",
            "pages": self.pages,
            "sections": self.sections,
            "tables": self._tables,
            "pictures": self._pictures,
            "notes": self.notes,
        }
        return head, "".join(self._text)


def _json_bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
