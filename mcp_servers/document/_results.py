"""What the document tools return. Places are counted in characters of the document's text."""

from pydantic import Field

from mcp_servers.core._call import Output
from mcp_servers.document._document import Cell

__all__ = [
    "Hit",
    "Hits",
    "Listed",
    "Outline",
    "PageImage",
    "Part",
    "Read",
    "Section",
    "TableData",
    "Tables",
    "Unread",
]


class Listed(Output):
    """One of several documents."""

    document: str
    """Its name."""
    size: int
    """Bytes of its file."""


class Section(Output):
    """A section of a document."""

    id: str
    """Its id, to be read by document_read."""
    title: str
    """Its title."""
    page: int | None
    """The page, slide or sheet it begins on; null where there are none."""
    start: int
    """Where it begins."""
    end: int
    """Where it ends, its own sections included."""


class Outline(Output):
    """How a document is built, or which documents there are."""

    documents: list[Listed] = Field(default_factory=list[Listed])
    """The documents, where there are several and none was named."""
    document: str | None = None
    """The document that was looked at."""
    format: str | None = None
    """Its format."""
    title: str = ""
    """Its title, if it says one."""
    pages: int = 0
    """How many pages, slides or sheets it has; 0 where there is no such thing."""
    characters: int = 0
    """Length of its text."""
    tables: int | None = None
    """How many tables it has; null for a PDF file, where document_tables looks for them page by page."""
    pictures: int = 0
    """How many pictures stand in its text."""
    sections: list[Section] = Field(default_factory=list[Section])
    """Its sections in order; `1.2` is a part of `1`."""
    total_sections: int = 0
    """How many sections it has; more than are given when there are too many."""
    notes: list[str] = Field(default_factory=list[str])
    """What else there is to know."""


class Hit(Output):
    """A place that was found."""

    document: str
    """The document."""
    section: str
    """The id of the section that it stands in."""
    title: str
    """The section's title."""
    page: int | None
    """The page, slide or sheet; null where there are none."""
    start: int
    """Where it begins."""
    end: int
    """Where it ends."""
    text: str
    """The text there."""
    highlights: list[tuple[int, int]]
    """Where words of the query stand in it, counted as `start` is."""
    score: float
    """How well it fits; comparable within one search only."""


class Unread(Output):
    """A document that could not be read."""

    document: str
    """Its name."""
    reason: str
    """Why."""


class Hits(Output):
    """What a search found."""

    hits: list[Hit]
    """Best first."""
    documents: int
    """How many documents were searched."""
    unread: list[Unread] = Field(default_factory=list[Unread])
    """Documents that could not be searched."""


class Part(Output):
    """A part of a document's text."""

    section: str
    """The id of the section that it begins in."""
    title: str
    """The section's title."""
    page: int | None
    """The page, slide or sheet that it begins on."""
    start: int
    """Where it begins."""
    end: int
    """Where it ends."""
    text: str
    """The text."""


class Read(Output):
    """What was read."""

    document: str
    """The document."""
    parts: list[Part]
    """Its parts, in the order of the text."""
    answer: str | None = None
    """What the model that sees says to the goal, if there is one."""
    images: int = 0
    """How many pictures are shown beside the data."""
    next_start: int | None = None
    """The `start` to go on with where not all could be returned."""
    note: str = ""
    """What else there is to know."""


class TableData(Output):
    """A table."""

    section: str
    """The id of the section that it stands in."""
    page: int | None
    """The page, slide or sheet; null where there are none."""
    title: str
    """Its title, if it has one."""
    rows: list[list[Cell]]
    """Its rows, the heading included; a field that was merged stands in each place that it covers."""
    total_rows: int
    """How many rows it has; more than are given when there are too many."""
    start: int | None = None
    """Where it begins in the text; null for a PDF file."""
    end: int | None = None
    """Where it ends."""


class Tables(Output):
    """The tables that were found."""

    document: str
    """The document."""
    tables: list[TableData]
    """In the order of the document."""
    total_tables: int
    """How many there are; more than are given when there are too many."""


class PageImage(Output):
    """A page as a picture; it is shown beside the data."""

    document: str
    """The document."""
    page: int
    """The page."""
    width: int
    """Pixels from left to right."""
    height: int
    """Pixels from top to bottom."""
    dpi: int
    """The resolution; 0 for a picture."""
