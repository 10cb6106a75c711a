"""Words of any language: how texts and queries are cut into terms, the same way."""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from operator import add
from typing import Final, NamedTuple

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

__all__ = ["Term", "terms_in", "terms_of_query", "words_in"]

_UNSPACED: Final = (
    "\u2e80-\u2fdf\u3005\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Characters of scripts without blanks between words, and of Korean, whose words take endings."""
_MARKS: Final = "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0903\u093a-\u094f"
_WORD: Final = re.compile(f"[{_UNSPACED}]+|[^\\W_{_UNSPACED}](?:[^\\W_{_UNSPACED}]|[{_MARKS}])*")
_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
LONGEST = 80


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
