"""What the rag tools return."""

from dataclasses import dataclass

from pydantic import ConfigDict

from mcp_servers.core._call import Output
from mcp_servers.rag._settings import Mode

__all__ = ["BatchHits", "DocumentHit", "DocumentHits", "DocumentText", "QueryHits", "Stats"]


@dataclass(frozen=True, slots=True)
class DocumentHit:
    """One document that was found."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    id: str
    """Its id, to be read by rag_get."""
    title: str
    """Its title."""
    score: float
    """How well it fits; comparable within one search only."""
    snippet: str
    """The part of its text that fits best, in whole sentences."""
    start: int
    """Where the snippet starts in the document's text, in characters."""
    end: int
    """Where the snippet ends."""
    highlights: list[tuple[int, int]]
    """Where words of the query stand in the document's text, within the snippet."""


class DocumentHits(Output):
    """What a search found."""

    hits: list[DocumentHit]
    """Best first; equals by id."""


class QueryHits(Output):
    """What one of several searches found."""

    query: str
    """The query."""
    hits: list[DocumentHit]
    """Best first; equals by id."""


class BatchHits(Output):
    """What several searches found."""

    results: list[QueryHits]
    """In the order of the queries."""


class DocumentText(Output):
    """A document, or a part of it."""

    id: str
    """Its id."""
    title: str
    """Its title."""
    text: str
    """The part that was asked for."""
    start: int
    """Where it starts in the whole text, in characters."""
    end: int
    """Where it ends."""
    characters: int
    """Length of the whole text."""
    next_start: int | None = None
    """The `start` to go on with; null at the end of the document."""


class Stats(Output):
    """What there is to search."""

    documents: int
    """How many documents."""
    mode: Mode
    """How they are found."""
    embedding_model: str | None = None
    """What makes the vectors, if there are any."""
    dimensions: int | None = None
    """Length of the vectors."""
