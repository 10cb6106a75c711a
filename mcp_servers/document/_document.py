"""A parsed document: its text, and the positions of sections, pages, tables and pictures in it."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import msgspec

Cell: TypeAlias = str | int | float | bool | None
"""Value of a table cell."""
PREFACE_ID: Final = "0"
"""Id of the text before the first section."""


class DocumentTable(msgspec.Struct, frozen=True):
    """A table."""

    rows: list[list[Cell]]
    """Rows; the value of a merged cell is repeated in each cell that it covers."""
    start: int = 0
    """Start in the text, in characters."""
    end: int = 0
    """End in the text."""
    title: str = ""
    """Title, if it has one."""
    page: int | None = None
    """Page on which it was found."""


class DocumentContent(msgspec.Struct, frozen=True):
    """Content of a document as the reader process returns it."""

    kind: str
    """Format of the document."""
    title: str
    """Title, if it has one."""
    text: str
    """All its text."""
    pages: list[int]
    """Start of each page, slide or sheet in the text."""
    sections: list[tuple[str, int, int]]
    """Title, level and start of each section."""
    tables: list[DocumentTable]
    """Tables, except for a PDF file."""
    pictures: list[tuple[int, str]]
    """Position and key of each picture."""
    notes: list[str]
    """Limitations of what was read."""


class SectionNode(NamedTuple):
    """A section."""

    id: str
    """Number of the section: `2.1` is the first subsection of the second section."""
    title: str
    """Title of the section."""
    level: int
    """Depth, from 1."""
    start: int
    """Start in the text."""
    end: int
    """End in the text, subsections included."""


class ParsedDocument:
    """A parsed document with lookup by section, page and position."""

    def __init__(self, digest: str, content: DocumentContent) -> None:
        self.digest = digest
        """Digest of the file's content."""
        self.content = content
        """The content as it was read."""
        self.text = content.text
        """All its text."""

    @cached_property
    def nodes(self) -> tuple[SectionNode, ...]:
        """Sections in the order of the text."""
        return tuple(_numbered(self.content.sections, self.text, self.content.title))

    @cached_property
    def _by_id(self) -> dict[str, SectionNode]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def _starts(self) -> list[int]:
        return [node.start for node in self.nodes]

    def node(self, name: str) -> SectionNode | None:
        """Return the section with this id."""
        return self._by_id.get(name.strip().strip("§[]"))

    def node_at(self, position: int) -> SectionNode:
        """Return the innermost section at a position."""
        return self.nodes[max(bisect_right(self._starts, position) - 1, 0)]

    def page_at(self, position: int) -> int | None:
        """Return the number of the page at a position."""
        return bisect_right(self.content.pages, position) or (1 if self.content.pages else None)

    def page_span(self, number: int) -> tuple[int, int] | None:
        """Return the start and end of a page."""
        pages = self.content.pages
        if not 1 <= number <= len(pages):
            return None
        return pages[number - 1], pages[number] if number < len(pages) else len(self.text)

    def pages_of(self, start: int, end: int) -> Sequence[int]:
        """Return the numbers of the pages that a part of the text covers."""
        first, last = self.page_at(start), self.page_at(max(start, end - 1))
        return range(first, last + 1) if first and last else ()


def _numbered(sections: Sequence[tuple[str, int, int]], text: str, title: str) -> list[SectionNode]:
    """Number the sections; return at least one."""
    if not sections:
        return [SectionNode("1", title, 1, 0, len(text))]
    nodes: list[SectionNode] = []
    if text[: sections[0][2]].strip():
        nodes.append(SectionNode(PREFACE_ID, "", 1, 0, sections[0][2]))
    path: list[tuple[int, int]] = []
    for (name, level, start), end in zip(sections, _ends(sections, len(text)), strict=True):
        count = 1
        while path and path[-1][0] >= level:
            count = path.pop()[1] + 1
        path.append((level, count))
        nodes.append(SectionNode(".".join(str(number) for _, number in path), name, len(path), start, end))
    return nodes


def _ends(sections: Sequence[tuple[str, int, int]], end: int) -> list[int]:
    """Return the end of each section: the start of the next one that is not a subsection of it."""
    ends: list[int] = []
    following: list[tuple[int, int]] = []
    for _, level, start in reversed(sections):
        while following and following[-1][0] > level:
            following.pop()
        ends.append(following[-1][1] if following else end)
        following.append((level, start))
    return ends[::-1]
