"""Argument types and results of the document tools, and their text form for a model. Positions are counted in characters."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AliasChoices, Field

from mcp_servers.core._call import Output
from mcp_servers.document._document import Cell, DocumentTable, ParsedDocument, Span

Name = Annotated[
    str | None,
    Field(description="Name of the document, as in document_outline; required if there are several."),
]
Query = Annotated[str, Field(min_length=1, max_length=10_000)]
Sections = Annotated[
    str | list[str] | None,
    Field(description="Ids of the sections to read, as in document_outline."),
]
Pages = Annotated[str | int | None, Field(description="Pages, slides or sheets to read: 3, 3-5 or 1,4-6.")]
Goal = Annotated[
    str | None,
    Field(max_length=10_000, description="What you want to know; only relevant passages are returned."),
]
MaxImages = Annotated[
    int | None,
    Field(
        ge=0,
        le=50,
        validation_alias=AliasChoices("max_images", "max_image_num"),
        description="Maximum number of pictures to show; by default a few for a goal, otherwise none.",
    ),
]
MaxTokens = Annotated[
    int | None,
    Field(
        ge=1,
        le=200_000,
        validation_alias=AliasChoices("max_tokens", "max_text_token"),
        description="Maximum amount of text, in tokens of about four characters.",
    ),
]


class ListedDocument(Output):
    """One of several documents."""

    document: str
    """Its name."""
    size: int
    """Size of its file in bytes."""


class DocumentSection(Output):
    """A section of a document."""

    id: str
    """Id of the section, as document_read takes it."""
    title: str
    """Its title."""
    page: int | None
    """Page, slide or sheet on which it starts; null for formats without pages."""
    start: int
    """Position of the first character."""
    end: int
    """Position after the last character, subsections included."""


class Outline(Output):
    """The sections of a document, or the list of documents."""

    documents: list[ListedDocument] = Field(default_factory=list[ListedDocument])
    """The documents, if there are several and none was named."""
    document: str | None = None
    """Name of the document."""
    format: str | None = None
    """Its format."""
    title: str = ""
    """Title of the document, if it has one."""
    pages: int = 0
    """Number of pages, slides or sheets; 0 for formats without pages."""
    characters: int = 0
    """Length of the text."""
    tables: int | None = None
    """Number of tables; null for a PDF file, where document_tables searches page by page."""
    pictures: int = 0
    """Number of pictures in the text."""
    sections: list[DocumentSection] = Field(default_factory=list[DocumentSection])
    """Sections in order; `1.2` is a subsection of `1`."""
    total_sections: int = 0
    """Number of all sections, including those beyond the limit."""
    notes: list[str] = Field(default_factory=list[str])
    """Notes on parts that were not read, if any."""


class PassageHit(Output):
    """A passage that matches a query."""

    document: str
    """The document."""
    section: str
    """Id of its section."""
    title: str
    """Title of the section."""
    page: int | None
    """Page, slide or sheet; null for formats without pages."""
    start: int
    """Position of the first character."""
    end: int
    """Position after the last character."""
    text: str
    """Text of the passage."""
    highlights: list[tuple[int, int]]
    """Positions of words of the query, counted like `start`."""
    score: float
    """Relevance; comparable only within one search."""


class UnreadDocument(Output):
    """A document that could not be read."""

    document: str
    """Its name."""
    reason: str
    """Reason."""


class PassageHits(Output):
    """Results of a search."""

    hits: list[PassageHit]
    """Best first."""
    documents: int
    """Number of documents searched."""
    unread: list[UnreadDocument] = Field(default_factory=list[UnreadDocument])
    """Documents that could not be searched."""


class Part(Output):
    """A part of a document's text."""

    section: str
    """Id of the section in which it starts."""
    title: str
    """Title of the section."""
    page: int | None
    """Page, slide or sheet on which it starts; null for formats without pages."""
    start: int
    """Position of the first character."""
    end: int
    """Position after the last character."""
    text: str
    """The text."""


class DocumentRead(Output):
    """The parts of a document that were read."""

    document: str
    """The document."""
    parts: list[Part]
    """Parts in the order of the text."""
    answer: str | None = None
    """Answer of the vision model to the goal, if one is configured."""
    images: int = 0
    """Number of pictures shown with the result."""
    next_start: int | None = None
    """The `start` with which to continue reading; null at the end."""
    note: str = ""
    """Notes on the result, if any."""


class TableData(Output):
    """A table."""

    section: str
    """Id of its section."""
    page: int | None
    """Page, slide or sheet; null for formats without pages."""
    title: str
    """Title of the table, if it has one."""
    rows: list[list[Cell]]
    """Rows including the header; the value of a merged cell is repeated in each cell that it covers."""
    total_rows: int
    """Number of all rows, including those beyond the limit."""
    start: int | None = None
    """Position of the table in the text; null for a PDF file."""
    end: int | None = None
    """Position after the last character."""


class DocumentTables(Output):
    """The tables of a document or of a part of it."""

    document: str
    """The document."""
    tables: list[TableData]
    """Tables in the order of the document."""
    total_tables: int
    """Number of all tables, including those beyond the limit."""


class PageImage(Output):
    """A page that is shown as an image with the result."""

    document: str
    """The document."""
    page: int
    """The page."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""
    dpi: int
    """Resolution in dots per inch; 0 for an image file."""


def outlined(name: str, document: ParsedDocument, depth: int | None, limit: int) -> Outline:
    """Return the outline of a document."""
    content = document.content
    nodes = [node for node in document.nodes if depth is None or node.level <= depth]
    return Outline(
        document=name,
        format=content.kind,
        title=content.title,
        pages=len(content.pages),
        characters=len(document.text),
        tables=None if content.kind == "pdf" else len(content.tables),
        pictures=len(content.pictures),
        sections=[
            DocumentSection(
                id=node.id,
                title=node.title,
                page=document.page_at(node.start),
                start=node.start,
                end=node.end,
            )
            for node in nodes[:limit]
        ],
        total_sections=len(nodes),
        notes=content.notes,
    )


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


def outline_text(outline: Outline) -> str:
    """Format an outline for a model."""
    if outline.document is None:
        return (
            "\n".join(f"{section.document} ({section.size} bytes)" for section in outline.documents)
            or "no documents"
        )
    facts = [str(outline.format), f"{outline.characters} characters"]
    facts += [f"{outline.pages} pages"] if outline.pages else []
    lines = [f"{outline.document}{': ' if outline.title else ''}{outline.title} ({', '.join(facts)})"]
    for section in outline.sections:
        where = f", page {section.page}" if section.page else ""
        indent = "  " * section.id.count(".")
        lines.append(
            f"{indent}[{section.id}] {section.title}{where} ({section.end - section.start} characters)"
        )
    if outline.total_sections > len(outline.sections):
        lines.append(f"… {outline.total_sections - len(outline.sections)} more")
    return "\n".join([*lines, *outline.notes])


def hits_text(hits: Sequence[PassageHit], unread: Sequence[UnreadDocument]) -> str:
    """Format search hits for a model."""
    shown = [f"{_location(hit.document, hit)}, {hit.start}-{hit.end}\n{hit.text}" for hit in hits]
    return "\n\n".join([*(shown or ["no hits"]), *(document.reason for document in unread)])


def parts_text(document: str, parts: Sequence[Part], answer: str | None, note: str) -> str:
    """Format parts of a document for a model."""
    shown = [f"{_location(document, part)}, {part.start}-{part.end}\n{part.text.strip()}" for part in parts]
    answers = [answer] if answer else []
    return "\n\n".join([*answers, *shown, *([note] if note else [])])


def tabled(document: ParsedDocument, tables: Sequence[DocumentTable], limit: int) -> list[TableData]:
    """Return tables with their section, page and position."""
    result: list[TableData] = []
    for table in tables:
        in_text = table.page is None
        span = None if table.page is None else document.page_span(table.page)
        position = table.start if in_text or span is None else span[0]
        result.append(
            TableData(
                section=document.node_at(position).id,
                page=table.page or document.page_at(position),
                title=table.title,
                rows=table.rows[:limit],
                total_rows=len(table.rows),
                start=table.start if in_text else None,
                end=table.end if in_text else None,
            )
        )
    return result


def tables_text(document: str, tables: Sequence[TableData]) -> str:
    """Format tables for a model."""
    shown: list[str] = []
    for table in tables:
        lines = [_location(document, table)]
        lines += (" | ".join("" if value is None else str(value) for value in row) for row in table.rows)
        if table.total_rows > len(table.rows):
            lines.append(f"… {table.total_rows - len(table.rows)} more rows")
        shown.append("\n".join(lines))
    return "\n\n".join(shown) or "no tables"


def _location(document: str, part: Part | PassageHit | TableData) -> str:
    """Name the section and the page of a part of a document."""
    page = f", page {part.page}" if part.page else ""
    return f"{document} [{part.section}]{' ' if part.title else ''}{part.title}{page}"
