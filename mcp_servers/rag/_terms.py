"""Splitting of texts and queries into search terms; snippets: the sentences of a text that match a query best."""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import accumulate, count, pairwise
from operator import add
from typing import Final, NamedTuple

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

MAX_TERM = 80
MAX_TERMS = 64
"""Most distinct terms of a query; the rest is ignored."""
_MAX_CACHED_TERMS = 100_000
"""Size of the cache of terms."""
_STOP_WORDS: Final[str] = """
a an and are as at be been but by can could did do does for from had has have he her his how i if in into is it
its many me much my no not of on or our she should so some such than that the their them then there these they
this to us was we were what when where which who whom whose why will with would you your
"""
"""Stop words, ignored in a query that has other words."""
MAX_SNIPPET = 500
"""Maximum length of a snippet in characters; it ends with a sentence if possible."""

_MAX_CACHED_CHARS = 20_000
"""Longest text whose sentences are cached."""

_SENTENCE_END = re.compile(r"""[.!?。！？\n](?:(?<!\n)["'”’»)\]]*\s+(?=\S)|(?<=\n)\s*\n)""")

Span = tuple[int, int]


class Terms(NamedTuple):
    """Terms of a query."""

    single: tuple[str, ...]
    """Distinct terms in order."""
    pairs: tuple[tuple[str, str], ...]
    """Adjacent terms; documents that contain them adjacently score higher."""


def tidy(text: str) -> str:
    """Normalise a text for indexing and display: NFC, without surrogates."""
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())


def tidy_line(text: str) -> str:
    """Normalise a text to one line."""
    return " ".join(tidy(text).split())


@cache
def prose_analyzer() -> TextAnalyzer:
    """Return the analyzer of texts: lower case, no accents, English stems."""
    return _analyzer()


@cache
def _query_analyzer() -> TextAnalyzer:
    words: list[str] = [*_STOP_WORDS.split()]
    return _analyzer(Filter.custom_stopword(words))


class _Separators(dict[int, int]):
    """Table for `str.translate` that replaces each non-word character, as defined by the tokenizer, by a space."""

    def __missing__(self, character: int) -> int:
        in_word = bool(_tokenizer().analyze(chr(character)))
        replaced = self[character] = character if in_word else ord(" ")
        return replaced


_separators: Final = _Separators()


@cache
def _tokenizer() -> TextAnalyzer:
    return TextAnalyzerBuilder(Tokenizer.simple()).build()


class _TermOf(dict[str, str]):
    """Cache from words to terms; a word that is too long has an empty term."""

    def __missing__(self, word: str) -> str:
        if len(self) >= _MAX_CACHED_TERMS:
            self.clear()
        term = self[word] = "".join(prose_analyzer().analyze(word))
        return term


_term_of: Final = _TermOf()


def split_terms(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the terms of a text in order, and the end of each in characters.

    Additional separators and words that are too long give empty terms. The result matches the analyzer's, but it is
    faster, because most words are cached.
    """
    words = text.translate(_separators).split(" ")
    return tuple(map(_term_of.__getitem__, words)), tuple(map(add, accumulate(map(len, words)), count()))


def _analyzer(*more: Filter) -> TextAnalyzer:
    builder = TextAnalyzerBuilder(Tokenizer.simple())
    for token_filter in (Filter.remove_long(MAX_TERM), Filter.lowercase(), *more):
        builder = builder.filter(token_filter)
    return builder.filter(Filter.ascii_fold()).filter(Filter.stemmer("english")).build()


def terms_of(query: str) -> Terms:
    """Return the terms of a query. Any text is a valid query; no character is an operator."""
    query = tidy(query)
    tokens = _query_analyzer().pre_tokenize(query).tokens or prose_analyzer().pre_tokenize(query).tokens
    words = [(token.text, token.position) for token in tokens]
    single = tuple(dict.fromkeys(word for word, _ in words))[:MAX_TERMS]
    pairs = dict.fromkeys(
        (first, second)
        for (first, position), (second, next_position) in pairwise(words)
        if next_position == position + 1 and first != second
    )
    return Terms(single, tuple(pairs)[: MAX_TERMS - 1])


class Snippet(NamedTuple):
    """A part of a text."""

    start: int
    """Start in the text, in characters."""
    end: int
    """End in the text."""
    highlights: list[Span]
    """Positions of query words in it."""


class _SplitText(NamedTuple):
    """Terms and sentence windows of a text."""

    terms: tuple[str, ...]
    """Terms in order."""
    ends: tuple[int, ...]
    """End of each term."""
    spans: dict[str, list[Span]]
    """Cached positions of terms."""
    windows: list[Span]
    """Candidate snippets: runs of sentences, none within another."""


def snippet_of(text: str, terms: Iterable[str]) -> Snippet:
    """Return the run of sentences with the most of these terms; the first one of ties."""
    split = _cached_split(text) if len(text) <= _MAX_CACHED_CHARS else _split_text(text)
    windows = split.windows
    if not windows:
        return Snippet(0, 0, [])
    occurrences = [spans for term in terms if (spans := _spans(split, term))]
    start, end = windows[0] if len(windows) == 1 else _best(windows, occurrences)
    if end - start > MAX_SNIPPET:
        start, end = _cut(text, start, end, [first for spans in occurrences for first, _ in spans])
    return Snippet(
        start,
        end,
        sorted([span for spans in occurrences for span in spans if start <= span[0] and span[1] <= end]),
    )


def _split_text(text: str) -> _SplitText:
    return _SplitText(*split_terms(text), {}, _windows(_sentences(text)))


_cached_split = lru_cache(maxsize=2048)(_split_text)


def _spans(split: _SplitText, term: str) -> list[Span]:
    """Return the positions of a term."""
    spans = split.spans.get(term)
    if spans is None:
        spans, index = split.spans.setdefault(term, []), -1
        for _ in range(split.terms.count(term)):
            index = split.terms.index(term, index + 1)
            spans.append((split.ends[index - 1] + 1 if index else 0, split.ends[index]))
    return spans


def _sentences(text: str) -> list[Span]:
    shown = text.strip()
    if len(shown) <= MAX_SNIPPET:
        # The whole text fits.
        first = len(text) - len(text.lstrip())
        return [(first, first + len(shown))] if shown else []
    sentences: list[Span] = []
    begin = 0
    for gap_start, gap_end in (
        *(match.span() for match in _SENTENCE_END.finditer(text)),
        (len(text), len(text)),
    ):
        # Closing quotes belong to the sentence before them.
        end = gap_start + len(text[gap_start:gap_end].rstrip())
        piece = text[begin:end]
        if stripped := piece.strip():
            first = begin + piece.index(stripped)
            sentences.append((first, first + len(stripped)))
        begin = gap_end
    return sentences


def _windows(sentences: list[Span]) -> list[Span]:
    """Return maximal runs of sentences within the length limit; a longer sentence forms its own window."""
    windows: list[Span] = []
    last = 0
    for first, (start, end) in enumerate(sentences):
        last = max(last, first)
        while last + 1 < len(sentences) and sentences[last + 1][1] - start <= MAX_SNIPPET:
            last += 1
        window = (start, max(sentences[last][1], end))
        if not windows or window[1] > windows[-1][1]:
            windows.append(window)
    return windows


def _best(windows: list[Span], occurrences: list[list[Span]]) -> Span:
    """Return the window with the most distinct terms, then the most occurrences, then the first."""
    distinct, total = [0] * len(windows), [0] * len(windows)
    ends = [end for _, end in windows]
    for spans in occurrences:
        seen: set[int] = set()
        for start, end in spans:
            index = bisect_left(ends, end)
            while index < len(windows) and windows[index][0] <= start:
                total[index] += 1
                seen.add(index)
                index += 1
        for index in seen:
            distinct[index] += 1
    return windows[max(range(len(windows)), key=lambda index: (distinct[index], total[index], -index))]


def _cut(text: str, start: int, end: int, positions: list[int]) -> Span:
    """Cut a long sentence around its first match, between words if possible."""
    first_match = min((first_match for first_match in positions if start <= first_match < end), default=start)
    left = max(start, min(first_match - MAX_SNIPPET // 4, end - MAX_SNIPPET))
    right = min(left + MAX_SNIPPET, end)
    if left > start and (space := text.find(" ", left, first_match)) >= 0:
        left = space + 1
    if right < end and (space := text.rfind(" ", first_match, right)) > left:
        right = space
    return left, right
