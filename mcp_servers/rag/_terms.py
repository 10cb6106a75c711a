"""Splitting of texts and queries into search terms."""

import unicodedata
from functools import cache
from itertools import accumulate, count, pairwise
from operator import add
from typing import Final, NamedTuple

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

__all__ = ["LONGEST_TERM", "Terms", "cut", "prose_analyzer", "terms_of", "tidy", "tidy_line"]

LONGEST_TERM = 80
MOST_TERMS = 64
"""Distinct terms of a query that count; a longer query is cut there."""
_WORDS_KNOWN = 100_000
"""So many words are remembered."""
_SAY_LITTLE: Final[str] = """
a an and are as at be been but by can could did do does for from had has have he her his how i if in into is it
its many me much my no not of on or our she should so some such than that the their them then there these they
this to us was we were what when where which who whom whose why will with would you your
"""
"""Words that a query is not searched by, unless it has no others."""


class Terms(NamedTuple):
    """What a query is searched by."""

    single: tuple[str, ...]
    """Its distinct terms in order."""
    pairs: tuple[tuple[str, str], ...]
    """Terms that follow each other directly: documents that have them so come first."""


def tidy(text: str) -> str:
    """The text as it is indexed and shown: one form of each character, and none that no encoding has."""
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())


def tidy_line(text: str) -> str:
    """The same on one line."""
    return " ".join(tidy(text).split())


@cache
def prose_analyzer() -> TextAnalyzer:
    """Cuts a text into terms: lower case, without accents, stemmed as English is."""
    return _analyzer()


@cache
def _query_analyzer() -> TextAnalyzer:
    words: list[str] = [*_SAY_LITTLE.split()]
    return _analyzer(Filter.custom_stopword(words))


class _Separators(dict[int, int]):
    """For `str.translate`: a blank for each character that is no part of a word, as the tokenizer sees it."""

    def __missing__(self, character: int) -> int:
        in_word = bool(_tokenizer().analyze(chr(character)))
        replaced = self[character] = character if in_word else ord(" ")
        return replaced


_separators: Final = _Separators()


@cache
def _tokenizer() -> TextAnalyzer:
    return TextAnalyzerBuilder(Tokenizer.simple()).build()


class _TermOf(dict[str, str]):
    """The term of each word that was seen; nothing where it is too long for a term."""

    def __missing__(self, word: str) -> str:
        if len(self) >= _WORDS_KNOWN:
            self.clear()
        term = self[word] = "".join(prose_analyzer().analyze(word))
        return term


_term_of: Final = _TermOf()


def cut(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The terms of a text in order, and where each ends, in characters.

    Characters between words that no single blank is, and words too long for a term, are empty terms. The same as the
    analyzer's own cutting, only sooner done: most words of a text were in another one before.
    """
    words = text.translate(_separators).split(" ")
    return tuple(map(_term_of.__getitem__, words)), tuple(map(add, accumulate(map(len, words)), count()))


def _analyzer(*more: Filter) -> TextAnalyzer:
    builder = TextAnalyzerBuilder(Tokenizer.simple())
    for one in (Filter.remove_long(LONGEST_TERM), Filter.lowercase(), *more):
        builder = builder.filter(one)
    return builder.filter(Filter.ascii_fold()).filter(Filter.stemmer("english")).build()


def terms_of(query: str) -> Terms:
    """What to search by. Any text is a query: no character means anything but itself."""
    query = tidy(query)
    tokens = _query_analyzer().pre_tokenize(query).tokens or prose_analyzer().pre_tokenize(query).tokens
    words = [(token.text, token.position) for token in tokens]
    single = tuple(dict.fromkeys(word for word, _ in words))[:MOST_TERMS]
    pairs = dict.fromkeys(
        (one, other)
        for (one, place), (other, next_place) in pairwise(words)
        if next_place == place + 1 and one != other
    )
    return Terms(single, tuple(pairs)[: MOST_TERMS - 1])
