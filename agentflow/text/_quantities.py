"""Numbers with units: parsed from text, and compared."""

import re
import unicodedata
from itertools import islice
from math import isclose
from typing import Final, NamedTuple

from agentflow.text._normalise import join_digit_groups
from agentflow.text._units import CURRENCIES, SCALES, UNITS

_MINUS: Final = str.maketrans("−–—‑", "----")
_SCALE: Final = "|".join(sorted(SCALES, key=len, reverse=True))
_NUMBER: Final = re.compile(
    r"(?P<currency>[$€£¥])?\s*(?<![\w.])"
    r"(?P<sign>(?<![\d)])-\s?)?(?P<currency2>[$€£¥])?"
    r"(?P<digits>\d+(?:\.\d+)?|\.\d+)(?:e(?P<exponent>[+-]?\d{1,3})(?!\w))?"
    r"(?:\s*(?:×|x|\*|\\times|\\cdot)\s*10\s*\^?\s*\{?(?P<power>[+-]?\d{1,3})\}?)?"
    r"(?:(?<!\.\d)\s*/\s*(?P<below>\d+)(?![\d/.]))?"
    rf"(?:\s*-?(?P<scale>{_SCALE})\b)?"
    r"(?:[\s-]*(?P<unit>%|\\%|°\s?[cf]\b|[$€£¥]|[^\W\d_]+(?:/[^\W\d_]+)?))?",
    re.IGNORECASE,
)
_DECADE: Final = re.compile(r"(?<=\b\d{3}0)['’]?s\b")
_GLUED_SCALE: Final = re.compile(r"\d[kKMB]$")
_SHORT_SCALES: Final = {"k": 1e3, "m": 1e6, "b": 1e9, "bn": 1e9, "mn": 1e6}
_NO_UNITS: Final = frozenset([
    "a", "an", "and", "as", "at", "but", "by", "for", "from", "in", "is", "it", "of", "on", "or", "than", "that",
    "the", "to", "was", "were", "with",
])  # fmt: skip
"""Words that may follow a number and are not what it counts."""
_ORDINALS: Final = frozenset({"st", "nd", "rd", "th"})
_STRICT: Final = frozenset({"percent", "ordinal"})
"""Kinds that a number without a unit does not equal."""
_ABOUT: Final = re.compile(r"(?:about|approximately|approx\.?|circa|around|~|≈)\s*", re.IGNORECASE)

_SMALL: Final = {word: number for number, word in enumerate([
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
])}  # fmt: skip
_TENS: Final = {
    word: number * 10
    for number, word in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2
    )
}
_POWERS: Final = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_WORD: Final = "|".join((*_SMALL, *_TENS, *_POWERS))
_NUMERAL: Final = re.compile(
    rf"\b(?:{'|'.join((*_SMALL, *_TENS))})(?:(?:[ -]|(?<=hundred) and |(?<=thousand) and )(?:{_WORD}))*\b",
    re.IGNORECASE,
)


class Quantity(NamedTuple):
    """Number with its unit."""

    value: float
    """The number, without its unit."""
    factor: float
    """Size of its unit in the base unit of its kind; 1 without a unit."""
    kind: str
    """`length`, `percent`, a currency, … for a known unit, else the word after the number; may be empty."""
    known: bool
    """`kind` is that of a known unit."""

    @property
    def may_be_year(self) -> bool:
        """Return whether it looks like a year."""
        return not self.known and 1000 <= self.value <= 2100 and self.value.is_integer()


def quantities(text: str, *, limit: int | None = None) -> list[Quantity]:
    """Return the quantities of a text in order, at most `limit`.

    >>> [found.value for found in quantities("From 3,500 to 1.2 million")]
    [3500.0, 1200000.0]
    """
    plain = _plain(text)
    if not any(map(str.isdigit, plain)):
        plain = _digits_for_words(plain)
    return [_quantity(found) for found in islice(_NUMBER.finditer(plain), limit)]


def _plain(text: str) -> str:
    plain = (
        unicodedata.normalize("NFKC", join_digit_groups(text))
        .translate(_MINUS)
        .replace("per cent", "percent")
    )
    # 1990s are years, not seconds.
    plain = _DECADE.sub("", " ".join(plain.split()))
    # NFKC writes ½ as 1⁄2, with a slash of its own.
    return plain.replace("\u2044", "/")


def _quantity(found: re.Match[str]) -> Quantity:
    value = float(found["digits"])
    below = float(found["below"] or 1)
    value = value / below if below else float("nan")
    value *= float(f"1e{int(found['exponent'] or 0) + int(found['power'] or 0)}")
    value *= SCALES.get((found["scale"] or "").lower(), 1.0)
    value = -value if found["sign"] else value
    symbol = found["currency"] or found["currency2"]
    written = (found["unit"] or "").replace(" ", "")
    if symbol:
        scaled = value * _SHORT_SCALES.get(written.lower(), 1.0)
        return Quantity(scaled, 1.0, CURRENCIES[symbol], known=True)
    # Case matters only where it distinguishes units, as in MB and Mb.
    if _GLUED_SCALE.search(found[0]):
        return Quantity(value * _SHORT_SCALES[written.lower()], 1.0, "", known=False)
    unit = UNITS.get(written) or UNITS.get(written.lower())
    if unit:
        return Quantity(value, unit.factor, unit.kind, known=True)
    if written.lower() in _ORDINALS and not found[0].endswith((" " + written, "-" + written)):
        return Quantity(value, 1.0, "ordinal", known=False)
    word = "" if written.lower() in _NO_UNITS else written.lower().removesuffix("s")
    return Quantity(value, 1.0, word, known=False)


def quantity(text: str) -> Quantity | None:
    """Return a text as one quantity, or `None` if it says something else or more.

    >>> quantity("about 3 million km").value
    3000000.0
    """
    stripped = _plain(text).strip(" .,;:!?")
    found = _NUMBER.fullmatch(_ABOUT.sub("", stripped, count=1) if _ABOUT.match(stripped) else stripped)
    return _quantity(found) if found else None


def same_quantity(one: Quantity, other: Quantity) -> bool:
    """Return whether two quantities are equal; a number without a unit equals any but percentages and ordinals.

    >>> same_quantity(quantities("5 km")[0], quantities("5,000 m")[0])
    True
    """
    if one.known and other.known:
        same_kind = one.kind == other.kind
        mine, theirs = one.value * one.factor, other.value * other.factor
    else:
        kinds = {one.kind, other.kind}
        same_kind = len(kinds if kinds & _STRICT else kinds - {""}) <= 1
        mine, theirs = one.value, other.value
    return same_kind and isclose(mine, theirs, rel_tol=1e-9)


def _digits_for_words(text: str) -> str:
    """Replace numerals by digits: `forty-two days` becomes `42 days`."""
    return _NUMERAL.sub(lambda found: str(_value(re.split(r"[ -]+", found[0].lower()))), text)


def _value(words: list[str]) -> int:
    total = part = 0
    for word in words:
        if word == "hundred":
            part = max(part, 1) * 100
        elif word in _POWERS:
            total, part = total + max(part, 1) * _POWERS[word], 0
        else:
            part += _SMALL.get(word, 0) + _TENS.get(word, 0)
    return total + part
