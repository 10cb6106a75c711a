"""Results of the rag tools."""

from dataclasses import dataclass

from pydantic import ConfigDict

from mcp_servers.core._call import Output
from mcp_servers.rag._settings import Mode


@dataclass(frozen=True, slots=True)
class DocumentHit:
    """A document that matches a query."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    id: str
    """Id of the document, as rag_get takes it."""
    title: str
    """Title of the document."""
    score: float
    """Relevance; comparable only within one search."""
    snippet: str
    """Best matching part of the text, in whole sentences."""
    start: int
    """Start of the snippet in the document's text, in characters."""
    end: int
    """End of the snippet."""
    highlights: list[tuple[int, int]]
    """Positions of query words in the document's text, within the snippet."""


class DocumentHits(Output):
    """Results of a search."""

    hits: list[DocumentHit]
    """Best first; ties by id."""


class QueryHits(Output):
    """Results of one of several queries."""

    query: str
    """The query."""
    hits: list[DocumentHit]
    """Best first; ties by id."""


class BatchHits(Output):
    """Results of several queries."""

    results: list[QueryHits]
    """One result per query, in order."""


class DocumentText(Output):
    """A document, or a part of it."""

    id: str
    """Id of the document."""
    title: str
    """Title of the document."""
    text: str
    """Requested part of the text."""
    start: int
    """Start of the part, in characters."""
    end: int
    """End of the part."""
    characters: int
    """Length of the whole text, in characters."""
    next_start: int | None = None
    """The `start` with which to continue; null at the end of the document."""


class Stats(Output):
    """Size and search mode of the collection."""

    documents: int
    """Number of documents."""
    mode: Mode
    """Search mode."""
    embedding_model: str | None = None
    """Embedding model, if vectors are used."""
    dimensions: int | None = None
    """Length of the vectors."""
