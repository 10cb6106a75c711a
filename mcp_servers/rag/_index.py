"""The index of words: a tantivy index, searched so that equal documents come in the order of their ids."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

from tantivy import DocAddress, Index, Occur, Query, Schema, SchemaBuilder, Searcher
from tantivy import Document as Entry

from mcp_servers.rag._documents import Document
from mcp_servers.rag._words import Terms, prose_analyzer

__all__ = ["Found", "WordIndex", "entry_of", "open_index"]

_ANALYZER = "prose"
_TITLE_BOOST = 2.0
_PAIR_BOOST = 1.0
_MARGIN = 1e-3
"""Scores that differ by less may be equal: sums of the same numbers in another order."""
_PLACES = 4
_SMALL = 20_000
_REMEMBERED = 4096
_SHORT = 20_000
"""Characters of a document that is remembered once it was loaded."""
_MOST_TIED = 4096
"""So many documents of one score are put in order; more than that are as good as each other."""


class Found(NamedTuple):
    """A document and how well it fits."""

    document: Document
    """The document."""
    score: float
    """Higher is better."""


@cache
def _schema() -> Schema:
    builder = SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("title", stored=True, tokenizer_name=_ANALYZER)
    builder.add_text_field("text", stored=True, tokenizer_name=_ANALYZER)
    builder.add_text_field("file", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("digest", stored=True, tokenizer_name="raw", index_option="basic")
    return builder.build()


def open_index(folder: Path | None) -> Index:
    """The index in this folder, made if there is none; without a folder a new one in memory."""
    index = Index(_schema(), None if folder is None else str(folder))
    index.register_tokenizer(_ANALYZER, prose_analyzer())
    return index


def entry_of(document: Document, file: str, digest: str) -> Entry:
    """The document as it is put into the index."""
    return Entry(id=document.id, title=document.title, text=document.text, file=file, digest=digest)


class WordIndex:
    """An index as it stood when this was made."""

    def __init__(self, index: Index, *, small: int = _SMALL) -> None:
        """Open it.

        :param small: up to so many documents all are looked at, which then is sooner done than choosing.
        """
        index.reload()
        self._small = small
        self._loaded: dict[tuple[int, int], Document] = {}
        self._searcher: Searcher = index.searcher()

    def __len__(self) -> int:
        return self._searcher.num_docs

    def get(self, name: str) -> Document | None:
        """The document of that id."""
        hits = self._searcher.search(Query.term_query(_schema(), "id", name, "basic"), 1, count=False).hits
        return self._document(hits[0][1]) if hits else None

    def search(self, terms: Terms, count: int) -> list[Found]:
        """The documents that fit best, best first, equals by id."""
        if not terms.single:
            return []
        limit = count + 8
        while True:
            scores = self._scores(terms, limit)
            ranked = sorted(scores.values(), key=lambda scored: -scored[0])
            enough = len(ranked) <= count or len(ranked) < limit or limit >= _MOST_TIED
            least = ranked[min(count, len(ranked)) - 1][0] - _MARGIN if ranked else 0.0
            if enough or ranked[limit - 1][0] < least:
                break
            limit = min(limit * 8, _MOST_TIED)
        found = [
            Found(self._document(address), round(score, _PLACES))
            for score, address in ranked
            if score >= least
        ]
        found.sort(key=lambda one: (-one.score, one.document.id))
        return found[:count]

    def entries(self) -> Iterator[tuple[str, str, str]]:
        """Of every document its id, the file it was read from, and its digest."""
        for _, address in self._every():
            entry = self._searcher.doc(address)
            yield _text(entry, "id"), _text(entry, "file"), _text(entry, "digest")

    def documents(self) -> Iterator[tuple[Document, str]]:
        """Every document with its digest."""
        for _, address in self._every():
            entry = self._searcher.doc(address)
            yield self._document(address), _text(entry, "digest")

    def _every(self) -> Sequence[tuple[object, DocAddress]]:
        return self._searcher.search(Query.all_query(), max(len(self), 1), count=False).hits

    def _scores(self, terms: Terms, limit: int) -> dict[tuple[int, int], tuple[float, DocAddress]]:
        """The best by single terms and by pairs of them.

        In a large index by two searches: the best by single terms, and the best of those that have a pair, each with
        its whole score. One search for both would have to look at every document with any of the terms.
        """
        single = [(Occur.Should, query) for query in self._single(terms)]
        pairs = [(Occur.Should, query) for query in self._pairs(terms)]
        if not pairs or len(self) <= self._small:
            return self._hits(Query.boolean_query(single + pairs), limit)
        scores = self._hits(Query.boolean_query(single), limit)
        with_pairs = [(Occur.Must, Query.boolean_query(pairs)), *single]
        return scores | self._hits(Query.boolean_query(with_pairs), limit)

    def _hits(self, query: Query, limit: int) -> dict[tuple[int, int], tuple[float, DocAddress]]:
        hits = self._searcher.search(query, limit, count=False).hits
        return {(at.segment_ord, at.doc): (cast("float", score), at) for score, at in hits}

    @staticmethod
    def _single(terms: Terms) -> Iterator[Query]:
        for term in terms.single:
            yield Query.term_query(_schema(), "text", term, "freq")
            yield Query.boost_query(Query.term_query(_schema(), "title", term, "freq"), _TITLE_BOOST)

    @staticmethod
    def _pairs(terms: Terms) -> Iterator[Query]:
        for pair in terms.pairs:
            yield Query.boost_query(Query.phrase_query(_schema(), "text", list(pair)), _PAIR_BOOST)

    def _document(self, address: DocAddress) -> Document:
        place = address.segment_ord, address.doc
        found = self._loaded.get(place)
        if found is None:
            entry = self._searcher.doc(address)
            found = Document(_text(entry, "id"), _text(entry, "title"), _text(entry, "text"))
            if len(found.text) <= _SHORT and len(self._loaded) < _REMEMBERED:
                self._loaded[place] = found
        return found


def _text(entry: Entry, field: str) -> str:
    return cast("str", entry[field][0])
