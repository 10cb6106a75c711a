"""A document as it is being read: its text, and where in it things stand."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

__all__ = ["Cell", "Draft", "Unreadable", "as_cell", "as_line", "as_text"]

Cell: TypeAlias = str | int | float | bool | None
"""What a field of a table holds."""

Why: TypeAlias = Literal["failed", "denied", "bad_arguments", "file_too_large", "unavailable", "not_found"]

MOST_CHARACTERS = 20_000_000
MOST_CELLS = 200_000
MOST_SECTIONS = 20_000
MOST_PICTURES = 5_000
LONGEST_TITLE = 300
LONGEST_CELL = 10_000
DEEPEST = 12

_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufeff]")


class Unreadable(Exception):
    """A document that can't be read, or a part of it that isn't there; the message says why, in a few words."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why: Why = why


def as_text(text: str) -> str:
    """The text without characters that none should have; lines end in one way."""
    return _NO_TEXT.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def as_line(text: str) -> str:
    """The text on one line."""
    return " ".join(as_text(text).split())


def as_cell(value: object) -> Cell:
    """What a table holds, as JSON has it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    isoformat = getattr(value, "isoformat", None)
    return as_line(str(isoformat() if callable(isoformat) else value))[:LONGEST_CELL]


class Draft:
    """Takes a document's parts in the order of reading."""

    def __init__(self, kind: str, title: str = "") -> None:
        self.kind = kind
        self.title = as_line(title)[:LONGEST_TITLE]
        self.place = 0
        """Where the text ends so far, in characters."""
        self.notes: list[str] = []
        self._text: list[str] = []
        self._pages: list[int] = []
        self._sections: list[tuple[str, int, int]] = []
        self._tables: list[dict[str, object]] = []
        self._pictures: list[tuple[int, str]] = []
        self._cells = 0

    @property
    def page_starts(self) -> list[int]:
        """Where each page begins."""
        return self._pages

    @property
    def has_sections(self) -> bool:
        """A section has begun."""
        return bool(self._sections)

    def write(self, text: str) -> None:
        """More text, as it stands."""
        text = as_text(text)
        self.place += len(text)
        if self.place > MOST_CHARACTERS:
            raise Unreadable("file_too_large", f"it has more than {MOST_CHARACTERS} characters")
        self._text.append(text)

    def paragraph(self, text: str) -> None:
        """A block of text, if there is any in it."""
        if text.strip():
            self.write(f"{text.strip()}\n\n")

    def page(self) -> None:
        """A new page begins."""
        self._pages.append(self.place)

    def section(self, title: str, level: int, at: int | None = None) -> None:
        """A section begins, here or further back in what was written since the last one."""
        if len(self._sections) >= MOST_SECTIONS:
            return
        before = self._sections[-1][2] if self._sections else 0
        place = max(self.place if at is None else at, before)
        self._sections.append((as_line(title)[:LONGEST_TITLE], max(1, min(level, DEEPEST)), place))

    def heading(self, title: str, level: int) -> None:
        """A section that begins with its title."""
        if as_line(title):
            self.section(title, level)
            self.write(f"{as_line(title)}\n\n")

    def table(self, rows: Iterable[Sequence[object]], title: str = "", *, at: int | None = None) -> None:
        """A table: as data, and (unless it was written already, from `at` on) as text."""
        kept: list[list[Cell]] = []
        for row in rows:
            self._cells += len(row) + 1
            if self._cells > MOST_CELLS:
                self.note(f"Of the tables only the first {MOST_CELLS} fields are read.")
                break
            kept.append([as_cell(value) for value in row])
        while kept and all(value in (None, "") for value in kept[-1]):
            kept.pop()
        if not kept:
            return
        start = self.place if at is None else at
        if at is None:
            lines = (" | ".join("" if value is None else str(value) for value in row) for row in kept)
            self.write("\n".join(lines) + "\n\n")
        self._tables.append(
            {"start": start, "end": self.place, "title": as_line(title)[:LONGEST_TITLE], "rows": kept}
        )

    def picture(self, key: str, text: str = "") -> None:
        """A picture stands here; `key` finds it again."""
        if len(self._pictures) < MOST_PICTURES:
            self._pictures.append((self.place, key))
        self.paragraph(f"[picture: {as_line(text)}]" if as_line(text) else "[picture]")

    def note(self, text: str) -> None:
        """Something that the reader should know, once."""
        if text not in self.notes:
            self.notes.append(text)

    def finished(self) -> dict[str, object]:
        """All of it, as JSON values."""
        return {
            "kind": self.kind,
            "title": self.title,
            "text": "".join(self._text),
            "pages": self._pages,
            "sections": self._sections,
            "tables": self._tables,
            "pictures": self._pictures,
            "notes": self.notes,
        }
