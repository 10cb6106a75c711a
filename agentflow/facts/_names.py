"""Normal form of names."""

import re
import unicodedata
from typing import Final

_LETTERS: Final = str.maketrans({
    "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ß": "ss", "æ": "ae", "œ": "oe", "ı": "i", "&": " and ",
    "'": "", "’": "", "‘": "", "`": "", "´": "",
})  # fmt: skip
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
"""Accents of Latin, Greek and Cyrillic letters; marks of other scripts make another letter."""
_WORD: Final = re.compile(r"\w+[+#]*", re.UNICODE)
_TITLES: Final = frozenset(
    ["mr", "mrs", "ms", "miss", "dr", "prof", "professor", "sir", "dame", "rev", "reverend", "hon"]
)
_ARTICLES: Final = frozenset({"a", "an", "the"})


def normalise_name(name: str) -> str:
    """Return a name in one case, without accents, leading article, title, and punctuation.

    >>> normalise_name("Dr. Zoë M. Ørn") == normalise_name("zoe m orn")
    True
    """
    folded = _ACCENTS.sub("", unicodedata.normalize("NFKD", name)).casefold().translate(_LETTERS)
    words = _WORD.findall(folded.replace("_", " "))
    while len(words) > 1 and words[0] in _ARTICLES:
        del words[0]
    # A title before a surname alone belongs to the name: Dr Holm need not be Ada Holm.
    while len(words) > 2 and words[0] in _TITLES:
        del words[0]
    joined = [
        "saint" if word == "st" and place < len(words) - 1 else word for place, word in enumerate(words)
    ]
    return _initials(joined) or name.strip().casefold()


def _initials(words: list[str]) -> str:
    """Join single letters: `J. R. R. Tolkien` is `JRR Tolkien`."""
    parts: list[str] = []
    previous = False
    for word in words:
        single = len(word) == 1 and word.isalpha() and word.isascii()
        if single and previous:
            parts[-1] += word
        else:
            parts.append(word)
        previous = single
    return " ".join(parts)
