"""A parsed document: its text, the positions of sections, pages, tables and pictures in it, and the selection of parts."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean

Cell: TypeAlias = str | int | float | bool | None
"""Value of a table cell."""
Span: TypeAlias = tuple[int, int]
"""Start and end of a part of the text."""
PREFACE_ID: Final = "0"
"""Id of the text before the first section."""
MAX_PAGES = 1_000
_Line: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_000)]


class DocumentTable(msgspec.Struct, frozen=True):
    """A table."""

    rows: list[list[Cell]]
    """Rows; the value of a merged cell is repeated in each cell that it covers."""
    start: int = 0
    """Start in the text, in characters."""
    end: int = 0
    """End in the text."""
    title: _Line = ""
    """Title, if it has one."""
    page: int | None = None
    """Page on which it was found."""


class DocumentContent(msgspec.Struct, frozen=True):
    """Content of a document as the reader process returns it."""

    kind: _Line
    """Format of the document."""
    title: _Line
    """Title, if it has one."""
    text: str
    """Text; empty in the head of the reply, which the text follows."""
    pages: list[int]
    """Start of each page, slide or sheet in the text."""
    sections: list[tuple[_Line, int, int]]
    """Title, level and start of each section."""
    tables: list[DocumentTable]
    """Tables, except for a PDF file."""
    pictures: list[tuple[int, _Line]]
    """Position and key of each picture."""
    notes: Annotated[list[_Line], msgspec.Meta(max_length=100)]
    """Limitations of what was read."""


class SectionNode(NamedTuple):
    """A section."""

    id: str
    """Number of the section: `2.1` is the first subsection of the second section."""
    title: str
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
        self.text = content.text

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


def as_list(value: str | Sequence[str] | None) -> list[str]:
    """Return one or several values as a list, without empty ones."""
    values = [value] if isinstance(value, str) else value or ()
    return [item for item in values if item.strip()]


def page_numbers(pages: str | int) -> list[int]:
    """Parse page numbers written as `3`, `3-5` or `1,4-6`.

    :raises ToolFailure: `bad_arguments`, if they cannot be parsed.
    """
    numbers: dict[int, None] = {}
    for part in str(pages).split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.strip().isdecimal() and (not dash or last.strip().isdecimal())):
            message = f"document: invalid pages {str(pages)!r}: write them as 3, 3-5 or 1,4-6."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        begin, end = int(first[:9]), int((last if dash else first)[:9])
        numbers.update(dict.fromkeys(range(begin, min(end, begin + MAX_PAGES) + 1)))
    return list(numbers)[:MAX_PAGES]


def spans_of(
    document: ParsedDocument,
    name: str,
    sections: Sequence[str],
    pages: str | int | None,
    start: int | None,
    end: int | None,
) -> list[Span]:
    """Return the requested spans of the text, or the whole text.

    :raises ToolFailure: `not_found`, `bad_arguments`.
    """
    selectors = [bool(sections), pages is not None, start is not None or end is not None]
    if sum(selectors) > 1:
        message = "document: give sections, pages or a range (start, end), not several of these."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if sections:
        return [_section(document, name, section) for section in sections]
    if pages is not None:
        return [_page(document, name, number) for number in page_numbers(pages)]
    length = len(document.text)
    begin, stop = start or 0, length if end is None else min(end, length)
    if begin and begin >= length:
        message = f"document: {name!r} has {length} characters: choose a start below {begin}."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if end is not None and end <= begin:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"document: end {end} must be greater than start {begin}.")
    return [(begin, stop)]


def _section(document: ParsedDocument, name: str, wanted: str) -> Span:
    node = document.node(wanted)
    if node is None:
        node = next(
            (section for section in document.nodes if section.title.casefold() == wanted.strip().casefold()),
            None,
        )
    if node is None:
        hint = did_you_mean(wanted, [section.id for section in document.nodes])
        message = f"document: {name!r} has no section {wanted!r}.{hint} document_outline lists them."
        raise ToolFailure(ErrorKind.NOT_FOUND, message)
    return node.start, node.end


def _page(document: ParsedDocument, name: str, number: int) -> Span:
    span = document.page_span(number)
    if span is None:
        count = len(document.content.pages)
        has = f"it has {count}" if count else "it has none: read it by section or range"
        raise ToolFailure(ErrorKind.NOT_FOUND, f"document: {name!r} has no page {number}: {has}.")
    return span


def select_best(spans: Iterable[Span], tokens: int, document: ParsedDocument) -> list[Span]:
    """Return the first spans within the token limit, at least one, in the order of the text."""
    kept: list[Span] = []
    for start, end in spans:
        tokens -= _tokens(document.text[start:end])
        if tokens < 0 and kept:
            break
        kept.append((start, end))
    return sorted(kept)


def limit_spans(
    spans: Sequence[Span], tokens: int, document: ParsedDocument
) -> tuple[list[Span], int | None]:
    """Shorten spans to a number of tokens; return them and the position at which to continue."""
    kept: list[Span] = []
    for start, end in spans:
        stop = _end_within(document.text, start, end, tokens)
        if stop > start or start == end:
            kept.append((start, stop))
        if stop < end:
            return kept, stop
        tokens -= _tokens(document.text[start:stop])
    return kept, None


def _tokens(text: str) -> int:
    """Estimate the number of tokens at four bytes each."""
    return (len(text.encode()) + 3) // 4


def _end_within(text: str, start: int, end: int, tokens: int) -> int:
    """Return the end of the text that fits into `tokens`, at the end of a word if possible."""
    most = max(tokens, 0) * 4
    piece = text[start : min(end, start + most)]
    if len(piece.encode()) > most:
        piece = piece.encode()[:most].decode("utf-8", "ignore")
    stop = start + len(piece)
    if stop < end:
        blank = max(text.rfind(" ", start, stop), text.rfind("\n", start, stop))
        stop = blank + 1 if blank > start + len(piece) // 2 else stop
    return stop
