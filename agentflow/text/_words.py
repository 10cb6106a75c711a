"""Words of a text in any script, for comparing texts."""

import re
import unicodedata
from functools import lru_cache
from itertools import compress, islice, pairwise
from typing import Final

from agentflow.text._normalise import ANY_UNSPACED, HANGUL, UNSPACED, join_digit_groups, normalise

SHINGLE_LENGTH: Final = 5
"""Number of consecutive words in a shingle."""

_CACHED: Final = 1024
"""Number of texts whose words are cached: each step that grows from a path asks for that path's texts again."""
_LONG: Final = 6
"""Number of letters of a word that carries meaning by itself."""
_WHOLE_TOKEN: Final = re.compile(rf"\d+(?:[.,]\d+)*|[{UNSPACED}{HANGUL}]|[^\W\d_{UNSPACED}{HANGUL}]+")
_TOKEN: Final = re.compile(rf"[{UNSPACED}{HANGUL}]|[^\W{UNSPACED}{HANGUL}]+")

_ASCII = {code: chr(code).lower() if chr(code).isalnum() or chr(code) == "_" else " " for code in range(128)}

_HAS_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD = re.compile(r"\w+")
_RUN = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")

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
"""Stop words of a few languages. Short on purpose: a longer list hides words that matter."""


@lru_cache(maxsize=_CACHED // 16)
def words(text: str) -> tuple[str, ...]:
    """Return the words in order, in one case and Unicode form; scripts without spaces give pairs of characters."""
    return split_words(text)


def split_words(text: str) -> tuple[str, ...]:
    """Return `words`, without its cache: for pieces that are looked at once."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    if plain.isascii():
        return tuple(plain.translate(_ASCII).split())
    if _HAS_UNSPACED.search(plain) is None:
        return tuple(_WORD.findall(plain))
    split: list[str] = []
    for run in _RUN.findall(plain):
        if _HAS_UNSPACED.match(run) is None or len(run) == 1:
            split.append(run)
        else:
            split.extend(first + second for first, second in pairwise(run))
    return tuple(split)


@lru_cache(maxsize=_CACHED)
def word_set(text: str) -> frozenset[str]:
    """Return the distinct words of a text."""
    return frozenset(words(text))


@lru_cache(maxsize=_CACHED)
def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """Return all runs of `SHINGLE_LENGTH` words."""
    all_words = words(text)
    return frozenset(zip(*(islice(all_words, start, None) for start in range(SHINGLE_LENGTH)), strict=False))


def is_content_word(word: str) -> bool:
    """Return whether a word can indicate a topic: not a stop word, not a number, not very short.

    >>> is_content_word("lighthouse"), is_content_word("the")
    (True, False)
    """
    return (len(word) > 2 or not word.isascii()) and word not in _STOP_WORDS and not word.isnumeric()


def count_words(terms: frozenset[str]) -> float:
    """Count words; of a script without spaces, two pairs of characters count as one word.

    >>> count_words(frozenset({"two", "words"}))
    2
    """
    return sum(0.5 if _HAS_UNSPACED.match(word) else 1 for word in terms)


def add_plurals(terms: frozenset[str]) -> frozenset[str]:
    """Return the words with their regular English plurals and singulars.

    >>> sorted(add_plurals(frozenset({"ship"})))
    ['ship', 'ships']
    """
    plurals = {word + "s" for word in terms}
    return terms.union(plurals, (word.removesuffix("s") for word in terms if len(word) > 3))


def tokens(text: str) -> list[str]:
    """Return the words of the normalised text; each character of a script without spaces is a word.

    >>> tokens("The Gull sails")
    ['the', 'gull', 'sails']
    """
    return _TOKEN.findall(normalise(text))


def whole_tokens(text: str) -> list[str]:
    """Return words and whole numbers, so that 5 is not found in 5.2: `5.2 km` gives `5.2` and `km`.

    >>> whole_tokens("5.2 km")
    ['5.2', 'km']
    """
    return _WHOLE_TOKEN.findall(unicodedata.normalize("NFKC", join_digit_groups(text)).casefold())


def word_count(text: str) -> float:
    """Return a text's length in words; two characters of a script without spaces count as one word.

    >>> word_count("The Gull sails")
    3.0
    """
    all_tokens = tokens(text)
    return len(all_tokens) - sum(1 for word in all_tokens if ANY_UNSPACED.match(word)) / 2


def content_word_pairs(text: str) -> frozenset[tuple[str, str]]:
    """Return each long word with the word that follows it: a set for comparing what two texts say.

    A text without long words, or in a script without spaces, gives all pairs of words.

    >>> sorted(content_word_pairs("the lighthouse keeper"))
    [('lighthouse', 'keeper')]
    """
    # A tree has thousands of words, and splitting at spaces is by far the quickest way to find them.
    spaced = text.isascii() or not ANY_UNSPACED.search(text)
    split = unicodedata.normalize("NFKC", text).casefold().split() if spaced else tokens(text)
    long = map(_LONG.__le__, map(len, split))
    informative = frozenset(compress(pairwise(split), long)) if spaced else frozenset(pairwise(split))
    return informative or frozenset(pairwise(split)) or frozenset((word, "") for word in split)
