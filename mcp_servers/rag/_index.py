"""The index of words: a tantivy index, searched so that equal documents come in the order of their ids."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

from tantivy import DocAddress, Index, Query, Schema, SchemaBuilder, Searcher
from tantivy import Document as Entry

from mcp_servers.rag._documents import Document
from mcp_servers.rag._finder import Finder
from mcp_servers.rag._words import Terms, prose_analyzer

__all__ = ["Found", "WordIndex", "entry_of", "open_index"]

_ANALYZER = "prose"
_PLACES = 4
_REMEMBERED = 4096
_SHORT = 20_000
"""Characters of a document that is remembered once it was loaded."""


_Place: TypeAlias = tuple[float, int, int, DocAddress]
"""Score, below zero so that the best come first, then segment, document in it, and both as an address."""


class Found(NamedTuple):
    """A document and how well it fits."""

    document: Document
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
    """The index in this folder, made if there is none; without a folder a new one in memory."""
    index = Index(_schema(), None if folder is None else str(folder), sort_by_field="id")
    index.register_tokenizer(_ANALYZER, prose_analyzer())
    return index


def entry_of(document: Document, file: str, digest: str) -> Entry:
    """The document as it is put into the index."""
    return Entry(id=document.id, title=document.title, text=document.text, file=file, digest=digest)


class WordIndex:
    """An index as it stood when this was made."""

    def __init__(self, index: Index) -> None:
        index.reload()
        self._loaded: dict[tuple[int, int], Document] = {}
        self._searcher: Searcher = index.searcher()
        self._finder = Finder(self._searcher, _schema())

    def __len__(self) -> int:
        return self._searcher.num_docs

    def get(self, name: str) -> Document | None:
        """The document of that id."""
        hits = self._searcher.search(Query.term_query(_schema(), "id", name, "basic"), 1, count=False).hits
        return self._document(hits[0][1]) if hits else None

    def search(self, terms: Terms, count: int) -> list[Found]:
        """The documents that fit best, best first, equals by id."""
        ranked = sorted(
            (-round(score, _PLACES), at.segment_ord, at.doc, at)
            for score, at in self._finder.best(terms, count)
        )
        # Within a segment documents lie in the order of their ids.
        placed = ranked if self._searcher.num_segments == 1 else self._by_id(ranked)
        return [Found(self._document(at), -score) for score, _, _, at in islice(placed, count)]

    def _by_id(self, ranked: Iterable[_Place]) -> Iterator[_Place]:
        """Equals by id across segments; hardly any document is loaded that is not asked for."""
        for _, equals in groupby(ranked, key=itemgetter(0)):
            segments = [list(segment) for _, segment in groupby(equals, key=itemgetter(1))]
            yield from heapq.merge(*segments, key=lambda place: self._document(place[3]).id)

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
