"""Selection of the parts of a document that are read: by section, page, character range or goal."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.document._document import ParsedDocument
from mcp_servers.document._results import Part
from mcp_servers.document._search import ScoredPassage

Span = tuple[int, int]
MAX_PAGES = 1_000


class LimitedSpans(NamedTuple):
    """Spans shortened to a token limit."""

    spans: list[Span]
    """The spans."""
    next_start: int | None
    """Position at which to continue."""


def as_list(value: str | Sequence[str] | None) -> list[str]:
    """Return one or several values as a list, without empty ones."""
    given = [value] if isinstance(value, str) else value or ()
    return [one for one in given if one.strip()]


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
    asked = [bool(sections), pages is not None, start is not None or end is not None]
    if sum(asked) > 1:
        message = "document: give sections, pages or a range (start, end), not several of these."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if sections:
        return [_section(document, name, one) for one in sections]
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
            (one for one in document.nodes if one.title.casefold() == wanted.strip().casefold()), None
        )
    if node is None:
        hint = did_you_mean(wanted, [one.id for one in document.nodes])
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


def select_passages(found: Iterable[ScoredPassage], tokens: int, document: ParsedDocument) -> list[Span]:
    """Return the best passages within the token limit, in the order of the text."""
    kept: list[Span] = []
    for one in found:
        span = (one.passage.start, one.passage.end)
        tokens -= _tokens(document.text[span[0] : span[1]])
        if tokens < 0 and kept:
            break
        kept.append(span)
    return sorted(kept)


def limit_spans(spans: Sequence[Span], tokens: int, document: ParsedDocument) -> LimitedSpans:
    """Shorten spans to a number of tokens."""
    kept: list[Span] = []
    for start, end in spans:
        stop = _end_within(document.text, start, end, tokens)
        if stop > start or start == end:
            kept.append((start, stop))
        if stop < end:
            return LimitedSpans(kept, stop)
        tokens -= _tokens(document.text[start:stop])
    return LimitedSpans(kept, None)


def part_of(document: ParsedDocument, span: Span) -> Part:
    """Return a part of the text with its section and page."""
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
