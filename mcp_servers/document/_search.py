"""BM25 search for passages in one or several documents, in any language."""

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from operator import add
from typing import Final, NamedTuple

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

from mcp_servers.document._document import ParsedDocument

_UNSPACED: Final = (
    "\u2e80-\u2fdf\u3005\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces between words, and of Korean, whose words are inflected."""
_MARKS: Final = "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0903\u093a-\u094f"
_WORD: Final = re.compile(f"[{_UNSPACED}]+|[^\\W_{_UNSPACED}](?:[^\\W_{_UNSPACED}]|[{_MARKS}])*")
_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
MAX_WORD = 80
MAX_PASSAGE = 1_000
"""Maximum length of a passage in characters."""
MIN_PASSAGE = 400
"""Paragraphs are joined up to this length."""
_K1: Final = 1.2
_B: Final = 0.75
_GAP: Final = re.compile(r"\n\s*\n")
_BREAKS: Final = (re.compile(r"\n"), re.compile(r"[.!?。！？](?=\s|[^\x00-\x7f])"), re.compile(r"\s"))


class Term(NamedTuple):
    """A search term and its position."""

    text: str
    """Normalised text of the term."""
    start: int
    end: int


def terms_in(text: str) -> Iterator[Term]:
    """Yield the terms of a text: normalised words; for scripts without spaces, single characters and pairs."""
    for match in _WORD.finditer(text):
        start, end = match.span()
        if not _IS_UNSPACED.match(match[0]):
            yield Term(_normalised(match[0]), start, end)
            continue
        for position in range(start, end):
            yield Term(text[position], position, position + 1)
            if position + 1 < end:
                yield Term(text[position : position + 2], position, position + 2)


def words_in(text: str) -> Iterator[str]:
    """Yield the same terms without positions, which is faster."""
    for run in _WORD.findall(text):
        if not _IS_UNSPACED.match(run):
            yield _normalised(run)
        else:
            yield from run
            yield from map(add, run, run[1:])


def terms_of_query(text: str) -> tuple[str, ...]:
    """Return the distinct terms of a query. Any text is a valid query."""
    terms: dict[str, None] = {}
    for match in _WORD.finditer(text):
        run = match[0]
        if not _IS_UNSPACED.match(run):
            terms[_normalised(run)] = None
        elif len(run) == 1:
            terms[run] = None
        else:
            terms.update(dict.fromkeys(map(add, run, run[1:])))
    return tuple(terms)


@lru_cache(100_000)
def _normalised(word: str) -> str:
    """Normalise a word: no accents, lower case and, for ASCII words, stemmed as English."""
    parts = unicodedata.normalize("NFKD", word[:MAX_WORD].casefold())
    plain = "".join(part for part in parts if not unicodedata.combining(part))
    return ("".join(_analyzer().analyze(plain)) if plain.isascii() else "") or plain


@lru_cache(1)
def _analyzer() -> TextAnalyzer:
    return TextAnalyzerBuilder(Tokenizer.raw()).filter(Filter.stemmer("english")).build()


class DocumentPassage(NamedTuple):
    """A part of a document's text within one section and one page."""

    document: int
    """Index of the document."""
    start: int
    end: int


class ScoredPassage(NamedTuple):
    """A passage and its relevance."""

    passage: DocumentPassage
    score: float


class PassageIndex:
    """BM25 index of the passages of some documents. Building it takes time for large documents."""

    def __init__(self, documents: Sequence[ParsedDocument]) -> None:
        self.characters = sum(len(document.text) for document in documents)
        """Length of the indexed text."""
        self._passages = [
            passage
            for position, document in enumerate(documents)
            for passage in _passages(position, document)
        ]
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
    ) -> list[ScoredPassage]:
        """Return the best passages; ties are in the order of the documents and their texts."""
        scores: dict[int, float] = {}
        for term in dict.fromkeys(term for query in queries for term in terms_of_query(query)):
            self._score(term, scores)
        ranked = sorted(scores.items(), key=lambda item: (-round(item[1], 6), item[0]))
        hits = (ScoredPassage(self._passages[number], round(score, 4)) for number, score in ranked)
        return list(islice((hit for hit in hits if _overlaps(hit.passage, within)), count))

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
    """Return the positions of query words in a passage that starts at `start`; adjacent ones are joined."""
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


def _overlaps(passage: DocumentPassage, spans: Sequence[tuple[int, int]] | None) -> bool:
    return spans is None or any(start < passage.end and passage.start < end for start, end in spans)


def _passages(number: int, document: ParsedDocument) -> Iterator[DocumentPassage]:
    text = document.text
    borders = sorted({0, len(text), *document.content.pages, *(node.start for node in document.nodes)})
    for begin, end in pairwise(borders):
        for start, stop in _paragraphs(text, begin, end):
            piece = text[start:stop]
            stripped = piece.strip()
            if stripped:
                first = start + piece.index(stripped)
                yield DocumentPassage(number, first, first + len(stripped))


def _paragraphs(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield paragraphs, short ones joined."""
    gaps = [match.end() for match in _GAP.finditer(text, begin, end)]
    start = begin
    for gap, following in pairwise([*gaps, end, end]):
        if gap - start >= MIN_PASSAGE or gap == end or following - start > MAX_PASSAGE:
            yield from _split(text, start, gap)
            start = gap


def _split(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Split a long paragraph between lines, sentences or words."""
    while end - start > MAX_PASSAGE:
        piece = text[start : start + MAX_PASSAGE]
        stop = next(
            (position for pattern in _BREAKS if (position := _last(pattern, piece)) > MAX_PASSAGE // 3),
            MAX_PASSAGE,
        )
        yield start, start + stop
        start += stop
    yield start, end


def _last(pattern: re.Pattern[str], piece: str) -> int:
    return max((match.end() for match in pattern.finditer(piece)), default=0)
