"""Splitting of texts and queries into search terms."""

import unicodedata
from functools import cache
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


def cut(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the terms of a text in order, and the end of each in characters.

    Additional separators and words that are too long give empty terms. The result matches the analyzer's, but it is
    faster, because most words are cached.
    """
    words = text.translate(_separators).split(" ")
    return tuple(map(_term_of.__getitem__, words)), tuple(map(add, accumulate(map(len, words)), count()))


def _analyzer(*more: Filter) -> TextAnalyzer:
    builder = TextAnalyzerBuilder(Tokenizer.simple())
    for one in (Filter.remove_long(MAX_TERM), Filter.lowercase(), *more):
        builder = builder.filter(one)
    return builder.filter(Filter.ascii_fold()).filter(Filter.stemmer("english")).build()


def terms_of(query: str) -> Terms:
    """Return the terms of a query. Any text is a valid query; no character is an operator."""
    query = tidy(query)
    tokens = _query_analyzer().pre_tokenize(query).tokens or prose_analyzer().pre_tokenize(query).tokens
    words = [(token.text, token.position) for token in tokens]
    single = tuple(dict.fromkeys(word for word, _ in words))[:MAX_TERMS]
    pairs = dict.fromkeys(
        (one, other)
        for (one, place), (other, next_place) in pairwise(words)
        if next_place == place + 1 and one != other
    )
    return Terms(single, tuple(pairs)[: MAX_TERMS - 1])
