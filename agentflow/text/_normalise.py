"""Normal forms of a text, for comparing it with others, and the search for phrases and quotes in it."""

import re
import string
import unicodedata
from functools import lru_cache
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
_RUNS: Final = re.compile(r"\s+|[!-~\x00-\x08\x0e-\x1b\x7f]+|[^\s\x00-\x7f]+")
"""Matches a run of spaces, of other ASCII characters, or of the rest."""
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
        text = _THIN_SPACES.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    return _COMMAS.sub("", text)


def contains_phrase(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase as whole words: 5 is not in 50, 5.2 or 1,500, nor "no" in "note".

    >>> contains_phrase("It is 1,500 km away", "1500km")
    True
    """
    needle = normalise(phrase).strip(" .,;:!?\"'。，！？")
    return _find(normalise(text), needle) >= 0


def find_quote(text: str, quote: str) -> tuple[int, int] | None:
    """Return the span of a quote in a text, ignoring differences in spaces, quotation marks, dashes and Unicode forms.

    >>> find_quote("She said  “yes”.", 'said "yes"')
    (4, 15)
    """
    exact = quote.strip()
    start = _find(text, exact)
    if start >= 0:
        return start, start + len(exact)
    haystack, origins = _reduced(text)
    needle = _reduced(quote)[0].strip()
    start = _find(haystack, needle)
    return None if start < 0 else (origins[start], origins[start + len(needle) - 1] + 1)


@lru_cache(maxsize=4)  # Quotes are mostly looked up in one text, one after the other.
def _reduced(text: str) -> tuple[str, list[int]]:
    """Return the text with single spaces and decomposed characters, and each character's original index."""
    parts: list[str] = []
    origins: list[int] = []
    for run in _RUNS.finditer(text):
        start, end = run.span()
        if run[0].isspace():
            # A model reads "<|end|>" as "< |end|>", see `escape_special_tokens`, and quotes it so.
            if parts and parts[-1][-1] not in " <[]":
                parts.append(" ")
                origins.append(start)
        elif run[0].isascii():
            parts.append(run[0])
            origins.extend(range(start, end))
        else:
            for index in range(start, end):
                simple = unicodedata.normalize("NFKD", text[index]).translate(MARKS)
                parts.append(simple)
                origins.extend([index] * len(simple))
    return "".join(parts), origins


def _find(text: str, words: str) -> int:
    """Return the first index where the phrase begins and ends at word boundaries, or -1."""
    start = text.find(words) if words else -1
    while start >= 0:
        end = start + len(words)
        if not (_joined(text, start - 1, start) or _joined(text, end - 1, end)):
            return start
        start = text.find(words, start + 1)
    return -1


def _joined(text: str, left: int, right: int) -> bool:
    """Return whether the characters at these indexes belong to one word or number."""
    if left < 0 or right >= len(text):
        return False
    before, after = text[left], text[right]
    # An accent belongs to what stands before it.
    if unicodedata.combining(after) or (_is_word(before) and _is_word(after)):
        return True
    if before.isdigit() and after in ".," and right + 1 < len(text) and text[right + 1].isdigit():
        return True
    if after.isdigit() and before in ".," and left > 0 and text[left - 1].isdigit():
        return True
    return after.isdigit() and before == "-" and (left == 0 or text[left - 1] in " (=:")


def _is_word(character: str) -> bool:
    return (character.isalnum() or character == "_") and not ANY_UNSPACED.match(character)
