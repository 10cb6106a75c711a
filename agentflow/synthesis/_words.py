"""Reading text as checks and selection need it: words, numbers, and where one text stands in another."""

import re
import unicodedata
from collections import Counter
from itertools import compress, pairwise
from typing import Final, NamedTuple

__all__ = [
    "Quantity",
    "agrees",
    "find_quote",
    "holds",
    "length_in_words",
    "plain",
    "quantities",
    "quantity",
    "same_quantity",
    "tokens",
    "word_pairs",
]

_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN: Final = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_ANY_CJK: Final = re.compile(f"[{_CJK}]")
_MARKS: Final = str.maketrans("‘’‚“”„«»‐‑‒–—−", '\'\'\'"""""------')
_UNITS: Final[dict[str, str]] = {
    name: unit
    for unit, names in {
        "%": "% percent",
        "km": "km kilometre kilometres kilometer kilometers",
        "m": "m metre metres meter meters",
        "cm": "cm centimetre centimetres centimeter centimeters",
        "mm": "mm millimetre millimetres millimeter millimeters",
        "kg": "kg kilogram kilograms kilogramme kilogrammes",
        "g": "g gram grams gramme grammes",
        "l": "l litre litres liter liters",
        "s": "s sec second seconds",
        "min": "min minute minutes",
        "h": "h hour hours",
        "ms": "ms millisecond milliseconds",
        "mi": "mi mile miles",
        "ft": "ft foot feet",
        "lb": "lb lbs pound pounds",
        "kw": "kw kilowatt kilowatts",
        "mw": "mw megawatt megawatts",
        "kb": "kb kilobyte kilobytes",
        "mb": "mb megabyte megabytes",
        "gb": "gb gigabyte gigabytes",
        "usd": "usd $ dollar dollars",
        "eur": "eur € euro euros",
    }.items()
    for name in names.split()
}
_LONG: Final = 6
"""Letters of a word that says something by itself."""
_NO_UNITS: Final = frozenset(
    {
        "a",
        "an",
        "and",
        "as",
        "at",
        "by",
        "for",
        "from",
        "in",
        "is",
        "it",
        "of",
        "on",
        "or",
        "than",
        "the",
        "to",
        "was",
    }
)
_SCALES: Final = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "bn": 1e9}
_UNIT_WORDS: Final = "|".join(
    sorted((re.escape(name) for name in _UNITS if name.isalpha()), key=len, reverse=True)
)
_GLUED: Final = re.compile(rf"(?<![^\W\d])(\d)(?=(?:{_UNIT_WORDS})\b)")
_THOUSANDS: Final = re.compile(r"(?<=\d)[,\u2009\u202f](?=\d{3}(?:\D|$))")
_NUMBER: Final = re.compile(
    r"(?P<before>[$€])?(?<![\w.])(?P<digits>-?\d+(?:\.\d+)?)(?!\w|\.\d)"
    r"(?:\s*(?P<scale>thousand|million|billion|trillion|bn)\b)?(?:\s*(?P<unit>%|€|[^\W\d_]+))?"
)


class Quantity(NamedTuple):
    """A number with its unit."""

    value: float
    """The number."""
    unit: str
    """Its unit's short name, or the word that stands behind it; empty: none."""


def plain(text: str) -> str:
    """The text in one form for all ways to write it: Unicode, case, kinds of quotes and dashes, spaces, numbers."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_MARKS)
    folded = folded.replace("per cent", "percent")
    return _GLUED.sub(r"\1 ", _THOUSANDS.sub("", " ".join(folded.split())))


def tokens(text: str) -> list[str]:
    """The words of a text; each character of a script without spaces is a word."""
    return _TOKEN.findall(plain(text))


def word_pairs(text: str) -> frozenset[tuple[str, str]]:
    """What a text says, as a set that can be compared: its long words, each with the word that follows it.

    Of a text without long words, and of a script without spaces, it is all pairs.
    """
    # A tree has thousands of words, and splitting at spaces is by far the quickest way to find them.
    spaced = text.isascii() or not _ANY_CJK.search(text)
    words = unicodedata.normalize("NFKC", text).casefold().split() if spaced else tokens(text)
    long = map(_LONG.__le__, map(len, words))
    telling = frozenset(compress(pairwise(words), long)) if spaced else frozenset(pairwise(words))
    return telling or frozenset(pairwise(words)) or frozenset((word, "") for word in words)


def length_in_words(text: str) -> float:
    """How long a text is to a reader: two characters of a script without spaces count as a word."""
    words = tokens(text)
    dense = sum(1 for word in words if _ANY_CJK.match(word))
    return len(words) - dense / 2


def holds(text: str, words: str) -> bool:
    """These words stand in that text, as whole words: 5 does not stand in 50, 5.2 or 1,500, nor no in note."""
    needle = plain(words).strip(" .,;:!?\"'。，！？")
    return _find(plain(text), needle) >= 0


def find_quote(text: str, quote: str) -> tuple[int, int] | None:
    """Where those words stand in that text, whatever the spaces, quotes, dashes and Unicode forms they are written in."""
    exact = quote.strip()
    start = _find(text, exact)
    if start >= 0:
        return start, start + len(exact)
    haystack, origins = _reduced(text)
    needle = _reduced(quote)[0].strip()
    start = _find(haystack, needle)
    return None if start < 0 else (origins[start], origins[start + len(needle) - 1] + 1)


def quantities(text: str) -> list[Quantity]:
    """All numbers of a text, with what they count."""
    return [_quantity(found) for found in _NUMBER.finditer(plain(text))]


def quantity(text: str) -> Quantity | None:
    """The text as one number with a unit; `None`: it says something else, or more."""
    said = plain(text).strip(" .,;:!?")
    found = _NUMBER.fullmatch(said.removeprefix("about ").removeprefix("approximately ").removeprefix("~"))
    return _quantity(found) if found else None


def same_quantity(one: Quantity, other: Quantity) -> bool:
    """They are the same number of the same thing; a number that has no unit may be of anything but percent."""
    close = abs(one.value - other.value) <= 1e-9 * max(abs(one.value), abs(other.value))
    units = {one.unit, other.unit}
    return close and len(units if "%" in units else units - {""}) <= 1


def agrees(answer: str, other: str) -> bool:
    """Both say the same: in the same words, as the same number, or with nearly the same words."""
    mine, theirs = tokens(answer), tokens(other)
    if not mine or not theirs:
        return False
    if mine == theirs:
        return True
    number, another = quantity(answer), quantity(other)
    if number is not None and another is not None:
        return same_quantity(number, another)
    common = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * common / (len(mine) + len(theirs)) >= 0.8


def _quantity(found: re.Match[str]) -> Quantity:
    unit = found["before"] or found["unit"] or ""
    if unit not in _UNITS:
        unit = "" if unit in _NO_UNITS else unit.removesuffix("s")
    return Quantity(float(found["digits"]) * _SCALES.get(found["scale"] or "", 1.0), _UNITS.get(unit, unit))


def _reduced(text: str) -> tuple[str, list[int]]:
    """The text with every run of spaces as one and its characters taken apart, and where each came from."""
    characters: list[str] = []
    origins: list[int] = []
    for index, character in enumerate(text):
        if character.isspace():
            if characters and characters[-1] != " ":
                characters.append(" ")
                origins.append(index)
            continue
        simple = (
            character if character.isascii() else unicodedata.normalize("NFKD", character).translate(_MARKS)
        )
        characters.extend(simple)
        origins.extend([index] * len(simple))
    return "".join(characters), origins


def _find(text: str, words: str) -> int:
    """Where these words stand first in that text, with no word or number going on at either end; -1: nowhere."""
    start = text.find(words) if words else -1
    while start >= 0:
        end = start + len(words)
        if not (_joined(text, start - 1, start) or _joined(text, end - 1, end)):
            return start
        start = text.find(words, start + 1)
    return -1


def _joined(text: str, left: int, right: int) -> bool:
    """These neighbours belong to one word or number."""
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
    return (character.isalnum() or character == "_") and not _ANY_CJK.match(character)
