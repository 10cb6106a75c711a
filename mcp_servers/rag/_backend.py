"""Tools of the rag backend, and their results."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from pydantic import ConfigDict, Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Output, TextContent
from mcp_servers.core._running import check_settings
from mcp_servers.core._tool import tool
from mcp_servers.rag._embedders import check_embedding, open_embedder
from mcp_servers.rag._index_update import locate_index, open_library
from mcp_servers.rag._library import SearchLibrary, SearchRanking
from mcp_servers.rag._settings import Mode, RagSettings
from mcp_servers.rag._terms import snippet_of
from mcp_servers.rag._vectors import whole_end


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
    characters: int
    """Length of the document's text, in characters."""


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
    """Size, origin and search mode of the collection."""

    documents: int
    """Number of documents."""
    summary: str
    """One line about them: their number and origin, and the files that were skipped, with the reason."""
    skipped: dict[str, int]
    """Numbers of skipped files by suffix."""
    unreadable: dict[str, str]
    """Reasons of files that could not be read, by name."""
    mode: Mode
    """Search mode."""
    embedding_model: str | None = None
    """Embedding model, if vectors are used."""
    dimensions: int | None = None
    """Length of the vectors."""


NO_HITS = "no hits"

MAX_QUERY_CHARS = 10_000

Query = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_CHARS, description="Search words or a question."),
]
Count = Annotated[
    int | None, Field(ge=1, le=100, description="Maximum number of documents; by default a few.")
]


class RagBackend(Backend):
    """Tools to search and read a collection of documents, shared by all sessions."""

    name = "rag"
    description = "Search a collection of documents and read them."
    settings_model = RagSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = frozenset(RagSettings.model_fields)

    def __init__(self) -> None:
        self._settings = RagSettings()
        self._opened: SearchLibrary | None = None
        self._stack = AsyncExitStack()

    def check(self, settings: Mapping[str, object]) -> None:
        """Reject invalid settings, missing documents and a missing model."""
        checked = check_settings(RagSettings, self.name, settings)
        locate_index(checked)
        check_embedding(checked.embedding)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Apply the server's settings."""
        self._settings = check_settings(RagSettings, self.name, settings)

    async def warmup(self) -> None:
        """Open the index; build or update it first if necessary."""
        if self._opened is None:
            settings = self._settings
            location = await anyio.to_thread.run_sync(locate_index, settings)
            embedder = await open_embedder(settings.embedding) if settings.embedding else None
            async with AsyncExitStack() as stack:
                if embedder is not None:
                    stack.push_async_callback(embedder.close)
                self._opened = await open_library(location, settings, embedder)
                self._stack = stack.pop_all()

    async def shutdown(self) -> None:
        """Close the index and the embedding model."""
        self._opened = None
        await self._stack.aclose()

    @tool(title="Search the documents", read_only=True)
    async def search(self, context: CallContext, query: Query, top_k: Count = None) -> DocumentHits:
        """Find documents by a plain-text query; return their ids, titles and best matching parts.

        Use it first, to find the documents on a topic; rag_get then reads a whole document. Names and rare words work
        better than long questions.
        """
        hits = _hits(await self._library.search(query, top_k or self._settings.top_k))
        context.show(TextContent(_as_text(hits)))
        return DocumentHits(hits=hits)

    @tool(title="Run several searches", read_only=True)
    async def batch_search(
        self,
        context: CallContext,
        queries: Annotated[list[Query], Field(min_length=1, max_length=32, description="The queries.")],
        top_k: Count = None,
    ) -> BatchHits:
        """Run several searches at once and return the hits of each.

        Use it instead of rag_search if you have several queries, such as the parts of a question or synonyms.
        """
        results: list[QueryHits] = []
        for query in queries:
            ranked = await self._library.search(query, top_k or self._settings.top_k)
            results.append(QueryHits(query=query, hits=_hits(ranked)))
        shown = (f"# {result.query}\n\n{_as_text(result.hits)}" for result in results)
        context.show(TextContent("\n\n".join(shown)))
        return BatchHits(results=results)

    @tool(title="Read a document", read_only=True)
    async def get(
        self,
        context: CallContext,
        id: Annotated[str, Field(description="Id of the document, as returned by rag_search.")],
        start: Annotated[int, Field(ge=0, description="Position of the first character to read.")] = 0,
        length: Annotated[int, Field(ge=1, le=100_000, description="Maximum number of characters.")] = 10_000,
    ) -> DocumentText:
        """Read a document, or a part of it, by its id.

        Use it when a snippet of rag_search is not enough, or when a document refers to another one by id.
        """
        document = self._library.get(id)
        characters = len(document.text)
        if start and start >= characters:
            message = f"rag_get: {id!r} has {characters} characters: choose a start below {start}."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        end = whole_end(document.text, start, length)
        text = document.text[start:end]
        rest = f"\n… continue with start={end}: {characters - end:,} of {characters:,} characters are left"
        shown = f"{document.title} ({document.id})\n{text}{rest if end < characters else ''}"
        context.show(TextContent(shown))
        return DocumentText(
            id=document.id,
            title=document.title,
            text=text,
            start=start,
            end=end,
            characters=characters,
            next_start=end if end < characters else None,
        )

    @tool(title="Describe the collection", read_only=True)
    async def stats(self) -> Stats:
        """Return the number and origin of the documents, the skipped files, and the search mode.

        Use it once to learn about the collection; it does not search.
        """
        library, embedding = self._library, self._settings.embedding
        return Stats(
            documents=len(library),
            summary=library.corpus.line(len(library)),
            skipped=dict(library.corpus.skipped),
            unreadable=dict(library.corpus.unreadable),
            mode=library.mode,
            embedding_model=embedding.model_name if embedding and library.vectors else None,
            dimensions=library.vectors.dimensions if library.vectors else None,
        )

    @property
    def _library(self) -> SearchLibrary:
        if self._opened is None:
            raise ToolFailure(ErrorKind.UNAVAILABLE, "rag: the documents are not open.")
        return self._opened


def _hits(ranked: SearchRanking) -> list[DocumentHit]:
    """Return hits with their best matching snippets."""
    hits: list[DocumentHit] = []
    for document, score in ranked.documents:
        text = document.text
        start, end, highlights = snippet_of(text, ranked.terms)
        hits.append(
            DocumentHit(
                document.id, document.title, score, text[start:end], start, end, highlights, len(text)
            )
        )
    return hits


def _as_text(hits: list[DocumentHit]) -> str:
    """Format hits for a model."""
    shown = (f"[{number}] {hit.title} ({hit.id})\n{hit.snippet}" for number, hit in enumerate(hits, 1))
    return "\n\n".join(shown) or NO_HITS
