"""Finding the best documents of an index without looking at all that have any word of the query.

The documents with the rarest words are scored first, by all words. If the best of them have more than the other words
can give to any document, no other document can be among the best. What is found is the same as if all were scored.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast

from tantivy import DocAddress, Occur, Query, Schema, Searcher

from mcp_servers.rag._words import Terms

__all__ = ["Finder", "Scored"]

_TITLE_BOOST = 2.0
_MARGIN = 1e-3
"""Scores that differ by less may be equal: sums of the same numbers in another order."""
_AHEAD = 8
"""So many documents more than are asked for are taken, to see whether the last has equals."""
_MOST_TIED = 200
"""So many documents are looked at where more than are asked for have one score."""
_REMEMBERED = 8192
"""So many words are not looked up again."""
_FEW = 1000
_SHARES = (0.01, 0.05)
"""Shares of all documents that are scored before all with any of the words are; or so few, where that is more."""
_COMMON = 2_000
_COMMON_SHARE = 0.05
"""Two words that follow each other don't count as a pair where more documents than both figures say have each."""

Scored: TypeAlias = tuple[float, DocAddress]


class _Word(NamedTuple):
    """A word in one field."""

    query: Query
    documents: int
    """How many have it there."""
    field: str
    term: str


class Finder:
    """Finds documents in an index as it stood when this was made."""

    def __init__(self, searcher: Searcher, schema: Schema) -> None:
        self._searcher = searcher
        self._schema = schema
        self._words = lru_cache(_REMEMBERED)(self._look_up)
        self._most = lru_cache(_REMEMBERED)(self._look_for_most)
        self._budgets = [max(_FEW, share * searcher.num_docs) for share in _SHARES]
        self._few = range(1, max(_COMMON, int(searcher.num_docs * _COMMON_SHARE)) + 1)

    def best(self, terms: Terms, count: int) -> Sequence[Scored]:
        """At least so many of the documents that fit best, if there are as many, best first."""
        words = sorted(
            (word for term in terms.single for word in self._words(term)), key=lambda word: word.documents
        )
        pairs = self._pairs(terms, words)
        limit = count + _AHEAD
        best = self._best(words, pairs, count, limit)
        if len(best) == limit < _MOST_TIED and self._has_more(best[count - 1][0], best[-1][0]):
            return self._best(words, pairs, count, _MOST_TIED)
        return best

    def _has_more(self, least: float, last: float) -> bool:
        """There may be documents as good as the least that were left out though their ids come first."""
        # Within one segment equals come in the order of their ids.
        return least - last < _MARGIN and (least != last or self._searcher.num_segments > 1)

    def _best(
        self, words: Sequence[_Word], pairs: Sequence[Query], count: int, limit: int
    ) -> Sequence[Scored]:
        """Score what has a pair, and what has the rarest words; then more, until no other can be among the best."""
        if self._rarest(words, self._budgets[0]) == len(words):
            return self._hits(_any([*(word.query for word in words), *pairs]), limit) if words else ()
        with_pairs = self._hits(_with(_any(pairs), words), limit) if pairs else ()
        best: Sequence[Scored] = ()
        for scored in self._steps(words):
            some = _any([word.query for word in words[:scored]])
            best = _joined(with_pairs, self._hits(_with(some, words[scored:]), limit))[:limit]
            others = sum(self._most(word) for word in words[scored:])
            if len(best) >= count and best[count - 1][0] > others + _MARGIN:
                break
        return best

    def _steps(self, words: Sequence[_Word]) -> Iterator[int]:
        """How many words, the rarest first, to go by: as many as few documents have, then more, then all."""
        before = 0
        for documents in self._budgets:
            number = self._rarest(words, documents)
            if before < number < len(words):
                yield number
            before = number
        yield len(words)

    @staticmethod
    def _rarest(words: Sequence[_Word], documents: float) -> int:
        for number, word in enumerate(words):
            documents -= word.documents
            if documents < 0:
                return number
        return len(words)

    def _pairs(self, terms: Terms, words: Sequence[_Word]) -> list[Query]:
        documents = {word.term: word.documents for word in words if word.field == "text"}
        return [
            Query.phrase_query(self._schema, "text", [one, other])
            for one, other in terms.pairs
            if min(documents.get(one, 0), documents.get(other, 0)) in self._few
        ]

    def _look_up(self, term: str) -> tuple[_Word, ...]:
        text = Query.term_query(self._schema, "text", term, "freq")
        title = Query.boost_query(Query.term_query(self._schema, "title", term, "freq"), _TITLE_BOOST)
        words = (
            _Word(query, self._searcher.doc_freq(field, term), field, term)
            for field, query in (("text", text), ("title", title))
        )
        return tuple(word for word in words if word.documents)

    def _look_for_most(self, word: _Word) -> float:
        """The most that this word gives to any document."""
        return max((score for score, _ in self._hits(word.query, 1)), default=0.0)

    def _hits(self, query: Query, limit: int) -> Sequence[Scored]:
        return cast("Sequence[Scored]", self._searcher.search(query, limit, count=False).hits)


def _any(queries: Sequence[Query]) -> Query:
    return Query.boolean_query([(Occur.Should, query) for query in queries])


def _with(query: Query, words: Sequence[_Word]) -> Query:
    """The documents of a query, scored by these words too."""
    for word in words:
        # One within the other: side by side they would be scored in all documents that have them.
        query = Query.boolean_query([(Occur.Must, query), (Occur.Should, word.query)])
    return query


def _joined(first: Sequence[Scored], second: Sequence[Scored]) -> Sequence[Scored]:
    """Both, best first, each document once: with the score that it has in the first."""
    if not first:
        return second
    known = {(at.segment_ord, at.doc) for _, at in first}
    more = [(score, at) for score, at in second if (at.segment_ord, at.doc) not in known]
    return sorted([*first, *more], key=lambda scored: -scored[0])
