"""Results of the document tools. Positions are counted in characters of the document's text."""

from pydantic import Field

from mcp_servers.core._call import Output
from mcp_servers.document._document import Cell


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
