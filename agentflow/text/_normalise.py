"""Normal forms of a text, for comparing it with others."""

import re
import string
import unicodedata
from typing import Final

from agentflow.text._units import UNITS

UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana, Han
)
"""Character ranges of scripts without spaces between words."""
HANGUL: Final = "\uac00-\ud7af"
"""Character range of Korean: words have spaces between them, but endings are attached to them."""
ANY_UNSPACED: Final = re.compile(f"[{UNSPACED}{HANGUL}]")
"""Matches a character that may be a word, or the end of one, next to a letter."""
MARKS: Final = str.maketrans("‘’‚“”„«»‐‑‒–—−", '\'\'\'"""""------')
"""Maps quotation marks and dashes to their ASCII forms."""

_COMMAS: Final = re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3}(?!\d))")
_THIN_SPACES: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:[\u2009\u202f\u00a0]\d{3})+(?!\d)")
_UNIT_NAMES: Final = "|".join(sorted((name for name in UNITS if name.isalpha()), key=len, reverse=True))
_GLUED_UNIT: Final = re.compile(rf"(?<![^\W\d])(\d)(?=(?:{_UNIT_NAMES})\b)")
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return a text with one form of Unicode, case, quotation marks, dashes, spaces and numbers.

    >>> normalise("The “Gull”  made 1,500km")
    'the "gull" made 1500 km'
    """
    folded = unicodedata.normalize("NFKC", join_digit_groups(text)).casefold().translate(MARKS)
    folded = folded.replace("per cent", "percent")
    return _GLUED_UNIT.sub(r"\1 ", " ".join(folded.split()))


def normalise_squad(text: str) -> str:
    """Return a text as SQuAD compares it: lower case, no punctuation, no articles, single spaces.

    >>> normalise_squad("The Gull!")
    'gull'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def join_digit_groups(text: str) -> str:
    """Remove separators between groups of three digits: `1,500` and `1 500` (narrow space) become `1500`."""
    if not text.isascii():
        text = _THIN_SPACES.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    return _COMMAS.sub("", text)
