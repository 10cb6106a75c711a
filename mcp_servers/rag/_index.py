"""Tantivy full-text index, searched without scoring every document that has a word of the query."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tantivy import DocAddress, Index, Occur, Query, Schema, SchemaBuilder, Searcher
from tantivy import Document as Entry

from mcp_servers.rag._documents import CorpusDocument
from mcp_servers.rag._terms import Terms, prose_analyzer

_TITLE_BOOST = 2.0
_MARGIN = 1e-3
"""Scores that differ by less may be equal, as sums of the same numbers in another order."""
_LOOKAHEAD = 8
"""Number of documents fetched beyond the request, to detect ties at the end."""
_MAX_TIED = 200
"""Most documents fetched when there is a tie at the end."""
_WORD_CACHE_SIZE = 8192
"""Size of the caches of word lookups."""
_SCORED_AT_LEAST = 1000
_SHARES = (0.01, 0.05)
"""Shares of all documents to score before scoring all that contain a query word; at least `_SCORED_AT_LEAST`."""
_COMMON = 2_000
_COMMON_SHARE = 0.05
"""Adjacent words do not count as a pair if each is in more documents than both of these numbers."""
Scored: TypeAlias = tuple[float, DocAddress]
_ANALYZER = "prose"
_PLACES = 4
_CACHE_SIZE = 4096
_MAX_CACHED_CHARS = 20_000
"""Longest document, in characters, that is cached after loading."""
_Place: TypeAlias = tuple[float, int, int, DocAddress]
"""Negated score, segment, document number, and the address of both, in sort order."""


class _Word(NamedTuple):
    """A query word in one field."""

    query: Query
    documents: int
    """Number of documents that contain it."""
    field: str
    term: str


class TopDocumentFinder:
    """Search for the best documents of an index snapshot, without scoring all documents that contain a query word.

    The documents with the rarest words are scored first, by all words. If the best of them score higher than the other
    words can contribute to any document, no other document can be among the best. The result equals that of scoring all.
    """

    def __init__(self, searcher: Searcher, schema: Schema) -> None:
        self._searcher = searcher
        self._schema = schema
        self._words = lru_cache(_WORD_CACHE_SIZE)(self._look_up)
        self._most = lru_cache(_WORD_CACHE_SIZE)(self._look_for_most)
        self._budgets = [max(_SCORED_AT_LEAST, share * searcher.num_docs) for share in _SHARES]
        self._few = range(1, max(_COMMON, int(searcher.num_docs * _COMMON_SHARE)) + 1)

    def best(self, terms: Terms, count: int) -> Sequence[Scored]:
        """Return at least `count` of the best documents, if there are as many, best first."""
        words = sorted(
            (word for term in terms.single for word in self._words(term)), key=lambda word: word.documents
        )
        pairs = self._pairs(terms, words)
        limit = count + _LOOKAHEAD
        best = self._best(words, pairs, count, limit)
        if len(best) == limit < _MAX_TIED and self._has_more(best[count - 1][0], best[-1][0]):
            return self._best(words, pairs, count, _MAX_TIED)
        return best

    def _has_more(self, least: float, last: float) -> bool:
        """Return whether a document with a tied score and a smaller id may have been left out."""
        # Within a segment, ties are in the order of their ids.
        return least - last < _MARGIN and (least != last or self._searcher.num_segments > 1)

    def _best(
        self, words: Sequence[_Word], pairs: Sequence[Query], count: int, limit: int
    ) -> Sequence[Scored]:
        """Score documents with word pairs and with the rarest words, then more, until no other can be among the best."""
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
        """Yield growing numbers of words to select documents by, rarest first; the last is all words."""
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
            Query.phrase_query(self._schema, "text", [first, second])
            for first, second in terms.pairs
            if min(documents.get(first, 0), documents.get(second, 0)) in self._few
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
        """Return the highest score that this word gives to any document."""
        return max((score for score, _ in self._hits(word.query, 1)), default=0.0)

    def _hits(self, query: Query, limit: int) -> Sequence[Scored]:
        hits: Sequence[Scored] = self._searcher.search(query, limit, count=False).hits
        return hits


def _any(queries: Sequence[Query]) -> Query:
    return Query.boolean_query([(Occur.Should, query) for query in queries])


def _with(query: Query, words: Sequence[_Word]) -> Query:
    """Return a query for the same documents, scored by additional words."""
    for word in words:
        # Nested: in one boolean query, the words would be scored in all documents that contain them.
        query = Query.boolean_query([(Occur.Must, query), (Occur.Should, word.query)])
    return query


def _joined(first: Sequence[Scored], second: Sequence[Scored]) -> Sequence[Scored]:
    """Merge two rankings; a document in both keeps its score of the first."""
    if not first:
        return second
    addresses = {(at.segment_ord, at.doc) for _, at in first}
    more = [(score, at) for score, at in second if (at.segment_ord, at.doc) not in addresses]
    return sorted([*first, *more], key=lambda scored: -scored[0])


class ScoredDocument(NamedTuple):
    """A document and its relevance."""

    document: CorpusDocument
    """The document."""
    score: float
    """Higher is better."""


@cache
def _schema() -> Schema:
    builder = SchemaBuilder()
    builder.add_text_field("id", stored=True, fast=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("title", stored=True, tokenizer_name=_ANALYZER)
    builder.add_text_field("text", stored=True, tokenizer_name=_ANALYZER)
    builder.add_text_field("file", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("digest", stored=True, tokenizer_name="raw", index_option="basic")
    return builder.build()


def open_index(folder: Path | None) -> Index:
    """Open or create the index in a directory; without a directory, create one in memory."""
    index = Index(_schema(), None if folder is None else str(folder), sort_by_field="id")
    index.register_tokenizer(_ANALYZER, prose_analyzer())
    return index


def entry_of(document: CorpusDocument, file: str, digest: str) -> Entry:
    """Return the index entry of a document."""
    return Entry(id=document.id, title=document.title, text=document.text, file=file, digest=digest)


class WordIndex:
    """Snapshot of an index; ties are ordered by id."""

    def __init__(self, index: Index) -> None:
        index.reload()
        self._loaded: dict[tuple[int, int], CorpusDocument] = {}
        self._searcher: Searcher = index.searcher()
        self._finder = TopDocumentFinder(self._searcher, _schema())

    def __len__(self) -> int:
        return self._searcher.num_docs

    def get(self, name: str) -> CorpusDocument | None:
        """Return the document with this id."""
        hits = self._searcher.search(Query.term_query(_schema(), "id", name, "basic"), 1, count=False).hits
        return self._document(hits[0][1]) if hits else None

    def search(self, terms: Terms, count: int) -> list[ScoredDocument]:
        """Return the best documents, best first, ties by id."""
        ranked = sorted(
            (-round(score, _PLACES), at.segment_ord, at.doc, at)
            for score, at in self._finder.best(terms, count)
        )
        # Within a segment, documents are stored in the order of their ids.
        placed = ranked if self._searcher.num_segments == 1 else self._by_id(ranked)
        return [ScoredDocument(self._document(at), -score) for score, _, _, at in islice(placed, count)]

    def _by_id(self, ranked: Iterable[_Place]) -> Iterator[_Place]:
        """Order ties by id across segments, loading few documents beyond the result."""
        for _, equals in groupby(ranked, key=itemgetter(0)):
            segments = [list(segment) for _, segment in groupby(equals, key=itemgetter(1))]
            yield from heapq.merge(*segments, key=lambda scored: self._document(scored[3]).id)

    def entries(self) -> Iterator[tuple[str, str, str]]:
        """Yield id, source file and digest of every document."""
        for _, address in self._every():
            entry = self._searcher.doc(address)
            yield _text(entry, "id"), _text(entry, "file"), _text(entry, "digest")

    def documents(self) -> Iterator[tuple[CorpusDocument, str]]:
        """Yield every document with its digest."""
        for _, address in self._every():
            entry = self._searcher.doc(address)
            yield self._document(address), _text(entry, "digest")

    def _every(self) -> Sequence[tuple[object, DocAddress]]:
        return self._searcher.search(Query.all_query(), max(len(self), 1), count=False).hits

    def _document(self, address: DocAddress) -> CorpusDocument:
        key = address.segment_ord, address.doc
        document = self._loaded.get(key)
        if document is None:
            entry = self._searcher.doc(address)
            document = CorpusDocument(_text(entry, "id"), _text(entry, "title"), _text(entry, "text"))
            if len(document.text) <= _MAX_CACHED_CHARS and len(self._loaded) < _CACHE_SIZE:
                self._loaded[key] = document
        return document


def _text(entry: Entry, field: str) -> str:
    text: str = entry[field][0]
    return text
