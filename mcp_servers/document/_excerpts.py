"""Selection of the parts of a document that are read: by section, page, character range or goal."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.document._document import Document
from mcp_servers.document._results import Part
from mcp_servers.document._search import Found

__all__ = ["Cut", "Span", "as_list", "chosen", "cut", "page_numbers", "part_of", "spans_of"]

Span = tuple[int, int]
MOST_PAGES = 1_000


class Cut(NamedTuple):
    """As much of the text as may be returned."""

    spans: list[Span]
    """The parts."""
    next_start: int | None
    """Where to go on."""


def as_list(value: str | Sequence[str] | None) -> list[str]:
    """One or several, without empty ones."""
    given = [value] if isinstance(value, str) else value or ()
    return [one for one in given if one.strip()]


def page_numbers(pages: str | int) -> list[int]:
    """The numbers that `3`, `3-5` or `1,4-6` mean.

    :raises ToolFailure: `bad_arguments`, if they mean none.
    """
    numbers: dict[int, None] = {}
    for part in str(pages).split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.strip().isdecimal() and (not dash or last.strip().isdecimal())):
            message = f"document: pages {str(pages)!r} can't be read: write them as 3, 3-5 or 1,4-6."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        begin, end = int(first[:9]), int((last if dash else first)[:9])
        numbers.update(dict.fromkeys(range(begin, min(end, begin + MOST_PAGES) + 1)))
    return list(numbers)[:MOST_PAGES]


def spans_of(
    document: Document,
    name: str,
    sections: Sequence[str],
    pages: str | int | None,
    start: int | None,
    end: int | None,
) -> list[Span]:
    """The parts of the text that were asked for; all of it, if none was.

    :raises ToolFailure: `not_found`, `bad_arguments`.
    """
    asked = [bool(sections), pages is not None, start is not None or end is not None]
    if sum(asked) > 1:
        message = (
            "document: ask for sections, for pages or for a place (start, end), not for several of these."
        )
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if sections:
        return [_section(document, name, one) for one in sections]
    if pages is not None:
        return [_page(document, name, number) for number in page_numbers(pages)]
    length = len(document.text)
    begin, stop = start or 0, length if end is None else min(end, length)
    if begin and begin >= length:
        message = f"document: {name!r} has {length} characters: choose a smaller start than {begin}."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if end is not None and end <= begin:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"document: end {end} must be greater than start {begin}.")
    return [(begin, stop)]


def _section(document: Document, name: str, wanted: str) -> Span:
    node = document.node(wanted)
    if node is None:
        node = next(
            (one for one in document.nodes if one.title.casefold() == wanted.strip().casefold()), None
        )
    if node is None:
        hint = did_you_mean(wanted, [one.id for one in document.nodes])
        message = f"document: {name!r} has no section {wanted!r}.{hint} document_outline lists them."
        raise ToolFailure(ErrorKind.NOT_FOUND, message)
    return node.start, node.end


def _page(document: Document, name: str, number: int) -> Span:
    span = document.page_span(number)
    if span is None:
        count = len(document.draft.pages)
        has = f"it has {count}" if count else "it has none: read it by sections or places"
        raise ToolFailure(ErrorKind.NOT_FOUND, f"document: {name!r} has no page {number}: {has}.")
    return span


def chosen(found: Iterable[Found], tokens: int, document: Document) -> list[Span]:
    """The best passages that fit, in the order of the text; neighbours are one."""
    kept: list[Span] = []
    for one in found:
        span = (one.passage.start, one.passage.end)
        tokens -= _tokens(document.text[span[0] : span[1]])
        if tokens < 0 and kept:
            break
        kept.append(span)
    return sorted(kept)


def cut(spans: Sequence[Span], tokens: int, document: Document) -> Cut:
    """The spans, up to so many tokens."""
    kept: list[Span] = []
    for start, end in spans:
        stop = _stop(document.text, start, end, tokens)
        if stop > start or start == end:
            kept.append((start, stop))
        if stop < end:
            return Cut(kept, stop)
        tokens -= _tokens(document.text[start:stop])
    return Cut(kept, None)


def part_of(document: Document, span: Span) -> Part:
    """A part of the text, and where it stands."""
    start, end = span
    node = document.node_at(start)
    return Part(
        section=node.id,
        title=node.title,
        page=document.page_at(start),
        start=start,
        end=end,
        text=document.text[start:end],
    )


def _tokens(text: str) -> int:
    """About so many tokens: four bytes are one."""
    return (len(text.encode()) + 3) // 4


def _stop(text: str, start: int, end: int, tokens: int) -> int:
    """How far one can read with so many tokens: to the end of a word, if there is one."""
    most = max(tokens, 0) * 4
    piece = text[start : min(end, start + most)]
    if len(piece.encode()) > most:
        piece = piece.encode()[:most].decode("utf-8", "ignore")
    stop = start + len(piece)
    if stop < end:
        blank = max(text.rfind(" ", start, stop), text.rfind("\n", start, stop))
        stop = blank + 1 if blank > start + len(piece) // 2 else stop
    return stop
