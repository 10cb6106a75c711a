"""What a text says, in words that can be compared: any script, any way to write it."""

import re
import unicodedata
from functools import lru_cache
from itertools import islice, pairwise

__all__ = ["SHINGLE", "how_many", "is_telling", "shingles", "with_plurals", "word_set", "words"]

SHINGLE = 5
"""Words in a row that make two texts alike."""

_CACHED = 1024
"""Texts whose words are kept: a path's texts are asked for again by every step that grows from it, in all trees at once."""

_ASCII = {code: chr(code).lower() if chr(code).isalnum() or chr(code) == "_" else " " for code in range(128)}

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana, Han
)
_HAS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_WORD = re.compile(r"\w+")
_RUN = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")

_FILLERS = """
a about above after again all also although always among an and another any are around as at be became
because been before being below between both but by can could did do does done down during each either end
even every few first for found from further get give given had has have he her here hers him his how however
i if in into is it its itself just known last later least less like long made make many may me might more
most much must my near never new next no nor not now of off often on once one only or other our out over own
part place same say see several she should since so some still such than that the their them then there
these they this those though three through time to today together too two under until up upon us use used
very was way we well were what when where whether which while who whom whose why will with within without
work would year years yet you your der die das und ist ein eine von zu im mit le la les un une et est de du
des en el los las y que por
"""
_STOP_WORDS = frozenset(_FILLERS.split())
"""Words that say nothing about a subject. Few on purpose: a longer list decides more than it should."""


@lru_cache(maxsize=_CACHED // 16)
def words(text: str) -> tuple[str, ...]:
    """Its words in order, in one case and one form; scripts without spaces give pairs of characters."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    if plain.isascii():
        return tuple(plain.translate(_ASCII).split())
    if _HAS_UNSPACED.search(plain) is None:
        return tuple(_WORD.findall(plain))
    found: list[str] = []
    for run in _RUN.findall(plain):
        if _HAS_UNSPACED.match(run) is None or len(run) == 1:
            found.append(run)
        else:
            found.extend(first + second for first, second in pairwise(run))
    return tuple(found)


@lru_cache(maxsize=_CACHED)
def word_set(text: str) -> frozenset[str]:
    """All words of a text."""
    return frozenset(words(text))


@lru_cache(maxsize=_CACHED)
def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """All its runs of `SHINGLE` words."""
    found = words(text)
    return frozenset(zip(*(islice(found, start, None) for start in range(SHINGLE)), strict=False))


def is_telling(word: str) -> bool:
    """Whether it can tell what a text is about: no stop word, no number, nothing very short."""
    return (len(word) > 2 or not word.isascii()) and word not in _STOP_WORDS and not word.isnumeric()


def how_many(found: frozenset[str]) -> float:
    """How many words these are; it takes about two pairs of characters to make a word."""
    return sum(0.5 if _HAS_UNSPACED.match(word) else 1 for word in found)


def with_plurals(found: frozenset[str]) -> frozenset[str]:
    """The words with their plurals and singulars, as far as an `s` makes them."""
    plurals = {word + "s" for word in found}
    return found.union(plurals, (word.removesuffix("s") for word in found if len(word) > 3))
