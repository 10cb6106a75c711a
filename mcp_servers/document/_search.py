"""BM25 search for passages in one or several documents, in any language."""

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import add
from typing import Final, NamedTuple

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

from mcp_servers.document._document import Document

__all__ = ["Finder", "Found", "Passage", "Term", "highlights", "terms_in", "terms_of_query", "words_in"]

_UNSPACED: Final = (
    "\u2e80-\u2fdf\u3005\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Characters of scripts without blanks between words, and of Korean, whose words take endings."""
_MARKS: Final = "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0903\u093a-\u094f"
_WORD: Final = re.compile(f"[{_UNSPACED}]+|[^\\W_{_UNSPACED}](?:[^\\W_{_UNSPACED}]|[{_MARKS}])*")
_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
LONGEST = 80
LONG = 1_000
"""A passage has no more characters."""
ENOUGH = 400
"""Paragraphs are joined until they have so many."""
_K1: Final = 1.2
_B: Final = 0.75
_GAP: Final = re.compile(r"\n\s*\n")
_PLACES_TO_CUT: Final = (re.compile(r"\n"), re.compile(r"[.!?。！？](?=\s|[^\x00-\x7f])"), re.compile(r"\s"))


class Term(NamedTuple):
    """A term where it stands."""

    text: str
    """What it is found by."""
    start: int
    """Where it begins."""
    end: int
    """Where it ends."""


def terms_in(text: str) -> Iterator[Term]:
    """The terms of a text: words in their plain form; of scripts without blanks each character, and each two."""
    for found in _WORD.finditer(text):
        start, end = found.span()
        if not _IS_UNSPACED.match(found[0]):
            yield Term(_plain(found[0]), start, end)
            continue
        for place in range(start, end):
            yield Term(text[place], place, place + 1)
            if place + 1 < end:
                yield Term(text[place : place + 2], place, place + 2)


def words_in(text: str) -> Iterator[str]:
    """The same terms without their places, sooner had."""
    for run in _WORD.findall(text):
        if not _IS_UNSPACED.match(run):
            yield _plain(run)
        else:
            yield from run
            yield from map(add, run, run[1:])


def terms_of_query(text: str) -> tuple[str, ...]:
    """The distinct terms to look for. Any text is a query."""
    terms: dict[str, None] = {}
    for found in _WORD.finditer(text):
        run = found[0]
        if not _IS_UNSPACED.match(run):
            terms[_plain(run)] = None
        elif len(run) == 1:
            terms[run] = None
        else:
            terms.update(dict.fromkeys(map(add, run, run[1:])))
    return tuple(terms)


@lru_cache(100_000)
def _plain(word: str) -> str:
    """A word without accents, case and (if it is English) ending."""
    parts = unicodedata.normalize("NFKD", word[:LONGEST].casefold())
    plain = "".join(part for part in parts if not unicodedata.combining(part))
    return _stemmed(plain) if plain.isascii() else plain


def _stemmed(word: str) -> str:
    return "".join(_analyzer().analyze(word)) or word


@lru_cache(1)
def _analyzer() -> TextAnalyzer:
    return TextAnalyzerBuilder(Tokenizer.raw()).filter(Filter.stemmer("english")).build()


class Passage(NamedTuple):
    """A part of a document's text that lies in one section and on one page."""

    document: int
    """Which of the documents, by its place among them."""
    start: int
    """Where it begins in the text."""
    end: int
    """Where it ends."""


class Found(NamedTuple):
    """A passage that was found."""

    passage: Passage
    """The passage."""
    score: float
    """How well it fits."""


class Finder:
    """Finds passages of these documents. Making one takes a moment for large documents."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.characters = sum(len(document.text) for document in documents)
        """How much text it covers."""
        self._passages = [passage for place, one in enumerate(documents) for passage in _passages(place, one)]
        self._postings: dict[str, array[int]] = {}
        lengths = array("I")
        for number, passage in enumerate(self._passages):
            document = documents[passage.document]
            counts = Counter(words_in(document.text[passage.start : passage.end]))
            counts.update(set(words_in(document.node_at(passage.start).title)))
            lengths.append(max(counts.total(), 1))
            for term, count in counts.items():
                self._postings.setdefault(term, array("I")).extend((number, count))
        mean = sum(lengths) / max(len(lengths), 1)
        self._damping = array("d", (_K1 * (1 - _B + _B * length / mean) for length in lengths))

    def search(
        self, queries: Iterable[str], count: int, within: Sequence[tuple[int, int]] | None = None
    ) -> list[Found]:
        """The passages that fit best; equals in the order of the documents and their texts."""
        scores: dict[int, float] = {}
        for term in dict.fromkeys(term for query in queries for term in terms_of_query(query)):
            self._score(term, scores)
        ranked = sorted(scores.items(), key=lambda one: (-round(one[1], 6), one[0]))
        found = (Found(self._passages[number], round(score, 4)) for number, score in ranked)
        wanted = (one for one in found if within is None or _lies_in(one.passage, within))
        return [one for one, _ in zip(wanted, range(count), strict=False)]

    def _score(self, term: str, scores: dict[int, float]) -> None:
        postings = self._postings.get(term)
        if postings is None:
            return
        documents = len(postings) // 2
        rarity = math.log(1 + (len(self._passages) - documents + 0.5) / (documents + 0.5))
        most, damping = rarity * (_K1 + 1), self._damping
        for number, often in zip(postings[::2], postings[1::2], strict=True):
            scores[number] = scores.get(number, 0.0) + most * often / (often + damping[number])


def highlights(text: str, queries: Iterable[str], start: int) -> list[tuple[int, int]]:
    """Where words of the queries stand in a passage that begins at `start`; those that touch are one."""
    wanted = {term for query in queries for term in terms_of_query(query)}
    spans: list[tuple[int, int]] = []
    for term in terms_in(text):
        if term.text not in wanted:
            continue
        begin, end = start + term.start, start + term.end
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def _lies_in(passage: Passage, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start < passage.end and passage.start < end for start, end in spans)


def _passages(number: int, document: Document) -> Iterator[Passage]:
    text = document.text
    borders = sorted({0, len(text), *document.draft.pages, *(node.start for node in document.nodes)})
    for begin, end in pairwise(borders):
        for start, stop in _joined(text, begin, end):
            piece = text[start:stop]
            stripped = piece.strip()
            if stripped:
                first = start + piece.index(stripped)
                yield Passage(number, first, first + len(stripped))


def _joined(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Paragraphs, small ones together."""
    gaps = [found.end() for found in _GAP.finditer(text, begin, end)]
    start = begin
    for gap, following in pairwise([*gaps, end, end]):
        if gap - start >= ENOUGH or gap == end or following - start > LONG:
            yield from _cut(text, start, gap)
            start = gap


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A long paragraph in parts: between lines, sentences or words."""
    while end - start > LONG:
        piece = text[start : start + LONG]
        stop = next((place for cut in _PLACES_TO_CUT if (place := _last(cut, piece)) > LONG // 3), LONG)
        yield start, start + stop
        start += stop
    yield start, end


def _last(pattern: re.Pattern[str], piece: str) -> int:
    ends = [found.end() for found in pattern.finditer(piece)]
    return ends[-1] if ends else 0
