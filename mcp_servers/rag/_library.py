"""A library: the documents of one configuration, ready to be searched."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import anyio.to_thread

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.rag._documents import Document
from mcp_servers.rag._embedding import Embedder
from mcp_servers.rag._index import Found, WordIndex
from mcp_servers.rag._settings import Mode
from mcp_servers.rag._vectors import VectorIndex
from mcp_servers.rag._words import terms_of

__all__ = ["Library", "Ranked"]

_SEARCHED = 100
"""How many documents each way of searching gives, for both to be joined."""
_FUSION = 60
"""The constant of reciprocal rank fusion."""
_ON_THE_LOOP = 50_000
"""Up to so many documents a search is over sooner than a thread would have begun it."""


class Ranked(NamedTuple):
    """What a search found, and by which terms."""

    terms: tuple[str, ...]
    """The terms of the query."""
    found: list[Found]
    """Best first, equals by id."""


class Library:
    """Documents with their index of words and, if they have one, that of vectors."""

    def __init__(
        self,
        words: WordIndex,
        mode: Mode,
        vectors: VectorIndex | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self._words = words
        self.mode: Mode = mode
        """How documents are found."""
        self.vectors = vectors
        """Their vectors."""
        self._embedder = embedder

    def __len__(self) -> int:
        return len(self._words)

    async def search(self, query: str, count: int) -> Ranked:
        """The documents that fit best.

        :raises ToolFailure: `unavailable`, if the vector of the query can't be had.
        """
        terms = terms_of(query)
        if self.mode == "lexical" or self.vectors is None or self._embedder is None:
            if len(self) <= _ON_THE_LOOP:
                return Ranked(terms.single, self._words.search(terms, count))
            return Ranked(terms.single, await anyio.to_thread.run_sync(self._words.search, terms, count))
        vector = await self._embedder.of_query(query)
        depth = max(count, _SEARCHED)
        near = await anyio.to_thread.run_sync(self.vectors.nearest, vector, depth)
        if self.mode == "dense":
            return Ranked(terms.single, self._loaded(near[:count]))
        by_words = await anyio.to_thread.run_sync(self._words.search, terms, depth)
        names = [[one.document.id for one in by_words], [name for name, _ in near]]
        return Ranked(terms.single, self._loaded(_fused(names)[:count]))

    def get(self, name: str) -> Document:
        """The document of that id.

        :raises ToolFailure: `not_found`, naming ids that are alike.
        """
        found = self._words.get(name)
        if found is None:
            alike = [repr(one.document.id) for one in self._words.search(terms_of(name), 3)]
            hint = f" Did you mean {', '.join(alike)}?" if alike else ""
            message = f"rag_get: no document {name!r}.{hint} rag_search tells the ids."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        return found

    def _loaded(self, ranked: Sequence[tuple[str, float]]) -> list[Found]:
        return list(self._load(ranked))

    def _load(self, ranked: Sequence[tuple[str, float]]) -> Iterator[Found]:
        for name, score in ranked:
            document = self._words.get(name)
            if document is not None:
                yield Found(document, round(score, 4))


def _fused(rankings: Sequence[Sequence[str]]) -> list[tuple[str, float]]:
    """Reciprocal rank fusion, equals by id."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, 1):
            scores[name] = scores.get(name, 0.0) + 1 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda one: (-round(one[1], 6), one[0]))
