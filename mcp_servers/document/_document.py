"""A parsed document: its text, and the positions of sections, pages, tables and pictures in it."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import msgspec

__all__ = ["Cell", "Document", "Draft", "Node", "Table"]

Cell: TypeAlias = str | int | float | bool | None
"""What a field of a table holds."""
BEFORE: Final = "0"
"""The id of what stands before the first section."""


class Table(msgspec.Struct, frozen=True):
    """A table."""

    rows: list[list[Cell]]
    """Its rows; a field that was merged stands in each place that it covers."""
    start: int = 0
    """Where it stands in the text, in characters."""
    end: int = 0
    """Where it ends there."""
    title: str = ""
    """Its title, if it has one."""
    page: int | None = None
    """The page it was found on."""


class Draft(msgspec.Struct, frozen=True):
    """A document as the reader gives it."""

    kind: str
    """Its format."""
    title: str
    """Its title, if it says one."""
    text: str
    """All its text."""
    pages: list[int]
    """Where each page, slide or sheet begins in the text."""
    sections: list[tuple[str, int, int]]
    """Title, level and beginning of each section."""
    tables: list[Table]
    """Its tables, but not those of a PDF file."""
    pictures: list[tuple[int, str]]
    """Where pictures stand in the text, and what finds them again."""
    notes: list[str]
    """What else there is to know."""


class Node(NamedTuple):
    """A section."""

    id: str
    """Its number, as in `2.1`: the first part of the second section."""
    title: str
    """Its title."""
    level: int
    """How deep it lies; 1 is the highest."""
    start: int
    """Where it begins in the text."""
    end: int
    """Where it ends, its own sections included."""


class Document:
    """A document, ready to be looked things up in."""

    def __init__(self, digest: str, draft: Draft) -> None:
        self.digest = digest
        """Stands for its content."""
        self.draft = draft
        """What was read."""
        self.text = draft.text
        """All its text."""

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Its sections in the order of the text."""
        return tuple(_numbered(self.draft.sections, self.text, self.draft.title))

    @cached_property
    def _by_id(self) -> dict[str, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def _starts(self) -> list[int]:
        return [node.start for node in self.nodes]

    def node(self, name: str) -> Node | None:
        """The section of that id."""
        return self._by_id.get(name.strip().strip("§[]"))

    def node_at(self, place: int) -> Node:
        """The innermost section at that place."""
        return self.nodes[max(bisect_right(self._starts, place) - 1, 0)]

    def page_at(self, place: int) -> int | None:
        """The page at that place."""
        return bisect_right(self.draft.pages, place) or (1 if self.draft.pages else None)

    def page_span(self, number: int) -> tuple[int, int] | None:
        """Where a page begins and ends."""
        pages = self.draft.pages
        if not 1 <= number <= len(pages):
            return None
        return pages[number - 1], pages[number] if number < len(pages) else len(self.text)

    def pages_of(self, start: int, end: int) -> Sequence[int]:
        """The pages that a part of the text lies on."""
        first, last = self.page_at(start), self.page_at(max(start, end - 1))
        return range(first, last + 1) if first and last else ()


def _numbered(sections: Sequence[tuple[str, int, int]], text: str, title: str) -> list[Node]:
    """The sections with their ids; there is at least one."""
    if not sections:
        return [Node("1", title, 1, 0, len(text))]
    nodes: list[Node] = []
    if text[: sections[0][2]].strip():
        nodes.append(Node(BEFORE, "", 1, 0, sections[0][2]))
    path: list[tuple[int, int]] = []
    for (name, level, start), end in zip(sections, _ends(sections, len(text)), strict=True):
        count = 1
        while path and path[-1][0] >= level:
            count = path.pop()[1] + 1
        path.append((level, count))
        nodes.append(Node(".".join(str(number) for _, number in path), name, len(path), start, end))
    return nodes


def _ends(sections: Sequence[tuple[str, int, int]], end: int) -> list[int]:
    """Where each section ends: where the next one begins that is no part of it."""
    ends: list[int] = []
    following: list[tuple[int, int]] = []
    for _, level, start in reversed(sections):
        while following and following[-1][0] > level:
            following.pop()
        ends.append(following[-1][1] if following else end)
        following.append((level, start))
    return ends[::-1]
