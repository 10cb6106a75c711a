"""The documents of one configuration, searched by words and vectors."""

from collections.abc import Sequence
from typing import NamedTuple

import anyio.to_thread

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.rag._documents import CorpusDocument, CorpusSummary
from mcp_servers.rag._embedders import Embedder
from mcp_servers.rag._index import ScoredDocument, WordIndex
from mcp_servers.rag._settings import Mode
from mcp_servers.rag._terms import Terms, terms_of
from mcp_servers.rag._vectors import VectorIndex

_FUSION_DEPTH = 100
"""Number of documents that each ranking contributes to hybrid search."""
_FUSION_CONSTANT = 60
"""The constant of reciprocal rank fusion."""
_MAX_WITHOUT_THREAD = 50_000
"""Up to this number of documents, searching directly is faster than starting a thread."""


class SearchRanking(NamedTuple):
    """Ranked documents and the terms of the query."""

    terms: tuple[str, ...]
    """Terms of the query."""
    documents: list[ScoredDocument]
    """Best first, ties by id."""


class SearchLibrary:
    """Documents with a word index and, in dense and hybrid mode, vectors."""

    def __init__(
        self,
        words: WordIndex,
        mode: Mode,
        corpus: CorpusSummary,
        vectors: VectorIndex | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self._words = words
        self.mode: Mode = mode
        """Search mode."""
        self.corpus = corpus
        """Origin of the documents, and the files that were left out."""
        self.vectors = vectors
        """Vectors, if used."""
        self._embedder = embedder

    def __len__(self) -> int:
        return len(self._words)

    async def search(self, query: str, count: int) -> SearchRanking:
        """Return the best documents for a query.

        :raises ToolFailure: `unavailable`, if the query cannot be embedded.
        """
        terms = terms_of(query)
        return SearchRanking(terms.single, await self._ranked(query, terms, count))

    async def _ranked(self, query: str, terms: Terms, count: int) -> list[ScoredDocument]:
        if self.vectors is None or self._embedder is None:
            if len(self) <= _MAX_WITHOUT_THREAD:
                return self._words.search(terms, count)
            return await anyio.to_thread.run_sync(self._words.search, terms, count)
        vector = await self._embedder.of_query(query)
        depth = max(count, _FUSION_DEPTH)
        near = await anyio.to_thread.run_sync(self.vectors.nearest, vector, depth)
        if self.mode == "dense":
            return self._loaded(near[:count])
        by_words = await anyio.to_thread.run_sync(self._words.search, terms, depth)
        names = [[scored.document.id for scored in by_words], [name for name, _ in near]]
        return self._loaded(_fused(names)[:count])

    def get(self, name: str) -> CorpusDocument:
        """Return the document with this id.

        :raises ToolFailure: `not_found`, with similar ids.
        """
        document = self._words.get(name)
        if document is None:
            alike = [repr(scored.document.id) for scored in self._words.search(terms_of(name), 3)]
            hint = f" Did you mean {', '.join(alike)}?" if alike else ""
            message = f"rag_get: no document {name!r}.{hint} rag_search returns the ids."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        return document

    def _loaded(self, ranked: Sequence[tuple[str, float]]) -> list[ScoredDocument]:
        documents = ((self._words.get(name), score) for name, score in ranked)
        return [ScoredDocument(document, round(score, 4)) for document, score in documents if document]


def _fused(rankings: Sequence[Sequence[str]]) -> list[tuple[str, float]]:
    """Merge rankings by reciprocal rank fusion, ties by id."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, 1):
            scores[name] = scores.get(name, 0.0) + 1 / (_FUSION_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-round(item[1], 6), item[0]))
