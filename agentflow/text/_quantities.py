"""Numbers with units: parsed from text, and compared."""

import re
import unicodedata
from collections.abc import Iterator
from decimal import Context, Decimal
from fractions import Fraction
from itertools import islice
from typing import Final, NamedTuple

from agentflow.text._normalise import SCALES, counted, join_digit_groups, kind_of_unit

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
_SHORT_SCALES: Final = {"k": 10**3, "m": 10**6, "b": 10**9, "bn": 10**9, "mn": 10**6}
_EXACT: Final = Context(prec=60)
_NEAR: Final = Decimal("1e-24")
"""Relative difference of equal quantities: of fractions only 60 digits are kept."""
_POWER: Final = re.compile(r"(?<![^\W\d_])(km|m|mi|ft)\^?([²³]|(?<=\^)[23])(?!\d)")
_LONG_UNITS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), unit)
    for pattern, unit in (
        (r"\bper cent\b", "percent"),
        (r"\b(?:square |sq\.? ?)(?:kilomet(?:re|er)s?|kms?)\b", "sqkm"),
        (r"\b(?:square |sq\.? ?)(?:met(?:re|er)s?|m)\b", "sqm"),
        (r"\b(?:square |sq\.? ?)(?:miles?|mi)\b", "sqmi"),
        (r"\b(?:square |sq\.? ?)(?:foot|feet|ft)\b", "sqft"),
        (r"\bcubic met(?:re|er)s?\b", "cbm"),
        (r"\bcubic kilomet(?:re|er)s?\b", "cbkm"),
        (r"\bnautical miles?\b", "nmi"),
        (r"\b(?:kilomet(?:re|er)s?|km) (?:per|an) hour\b", "km/h"),
        (r"\b(?:miles?) (?:per|an) hour\b", "mph"),
        (r"\b(?:met(?:re|er)s?|m) (?:per|a) second\b", "m/s"),
        (r"\b(?:U\.?S\.?|American) dollars?\b", "dollars"),
        (r"\bpounds? sterling\b", "gbp"),
    )
)
"""Units of several words, in the form of the table of units."""
_MAY_BE_LONG: Final = re.compile(
    r"\b(?:per|sq|square|cubic|nautical|dollars?|sterling|hour|second)\b", re.IGNORECASE
)
_ONE: Final = Fraction(1)
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
_A_SCALE: Final = re.compile(rf"\ba(?= (?:{_SCALE})\b)", re.IGNORECASE)
_AND_A_HALF: Final = re.compile(r"(?<![\w.])(\d+)( [^\W\d_]+)? and a half\b", re.IGNORECASE)


class Quantity(NamedTuple):
    """Number with its unit."""

    value: float
    """The number, without its unit."""
    factor: Fraction
    """Size of its unit in the base unit of its kind; 1 without a unit."""
    kind: str
    """`length`, `percent`, a currency, … for a known unit, else the word after the number in one form; may be empty."""
    known: bool
    """`kind` is that of a known unit."""
    amount: Decimal
    """The number, exactly; fractions to 60 digits."""
    unit: str
    """Its unit as the text writes it; empty without one."""

    @property
    def size(self) -> Decimal:
        """The number in the base unit of its kind."""
        return _EXACT.divide(_EXACT.multiply(self.amount, self.factor.numerator), self.factor.denominator)

    @property
    def may_be_year(self) -> bool:
        """Return whether it looks like a year."""
        return not self.known and 1000 <= self.value <= 2100 and self.value.is_integer()


def quantities(text: str, *, limit: int | None = None) -> list[Quantity]:
    """Return the quantities of a text in order, at most `limit`.

    >>> [found.value for found in quantities("From 3,500 to 1.2 million")]
    [3500.0, 1200000.0]
    """
    plain = plain_quantities(text)
    if not any(map(str.isdigit, plain)):
        plain = plain_quantities(plain, numerals=True)
    return [_quantity(match) for match in islice(_NUMBER.finditer(plain), limit)]


def plain_quantities(text: str, *, numerals: bool = False) -> str:
    """Return a text with one form of digits, signs, spaces and units, as `find_quantities` reads it.

    >>> plain_quantities("forty-two  square kilometres", numerals=True)
    '42 sqkm'

    :param numerals: also replace numbers in words by digits.
    """
    powers = text if text.isascii() and "^" not in text else _POWER.sub(_power, text)
    plain = unicodedata.normalize("NFKC", join_digit_groups(powers)).translate(_MINUS)
    for pattern, unit in _LONG_UNITS if _MAY_BE_LONG.search(plain) else ():
        plain = pattern.sub(unit, plain)
    # 1990s are years, not seconds.
    plain = _DECADE.sub("", " ".join(plain.split()))
    # NFKC writes ½ as 1⁄2, with a slash of its own.
    plain = plain.replace("\u2044", "/")
    return _AND_A_HALF.sub(r"\1.5\2", _digits_for_words(_A_SCALE.sub("one", plain))) if numerals else plain


def _power(match: re.Match[str]) -> str:
    return f"{'sq' if match[2] in '2²' else 'cb'}{match[1]}"


def find_quantities(plain: str) -> Iterator[tuple[int, int, Quantity]]:
    """Iterate over the quantities of a text from `plain_quantities`, each with its first index and the one after it.

    >>> [(start, end, found.unit) for start, end, found in find_quantities("over 34 km away")]
    [(5, 10, 'km')]
    """
    for match in _NUMBER.finditer(plain):
        other = (match["unit"] or "").lower() in _NO_UNITS
        start = match.end() - len(match[0].lstrip())
        yield start, match.start("unit") if other else match.end(), _quantity(match)


def quantity_of(amount: Decimal, unit: str = "") -> Quantity:
    """Return the quantity of a number and a unit.

    >>> quantity_of(Decimal(5), "km").size
    Decimal('5000')
    >>> quantity_of(Decimal(5), "million km").amount
    Decimal('5000000')
    """
    entry = kind_of_unit(unit)
    if entry is None and " " in unit and (scale := scale_of(unit))[0] > 1:
        return quantity_of(_EXACT.multiply(amount, scale[0]), scale[1])
    if entry is None and unit and not (unit.isalnum() and unit.isascii()):
        entry = kind_of_unit(plain_quantities(unit))
    factor, kind = (_ONE, counted(unit) if unit else "") if entry is None else (entry.factor, entry.kind)
    return Quantity(float(amount), factor, kind, entry is not None, amount, unit)


def scale_of(unit: str) -> tuple[int, str]:
    """Return the factor at the beginning of a unit, as headers of tables have it, and the rest.

    >>> scale_of("trillion US dollars"), scale_of("metres")
    ((1000000000000, 'US dollars'), (1, 'metres'))
    """
    first, _, rest = unit.partition(" ")
    scale = SCALES.get(first.lower(), 1) if rest else 1
    return (scale, rest.removeprefix("of ")) if scale > 1 else (1, unit)


def _quantity(match: re.Match[str]) -> Quantity:
    amount = _amount(match)
    symbol = match["currency"] or match["currency2"]
    written = (match["unit"] or "").replace(" ", "")
    short = _SHORT_SCALES.get(written.lower(), 1)
    if symbol:
        return quantity_of(_EXACT.multiply(amount, short), symbol)
    if _GLUED_SCALE.search(match[0]):
        return quantity_of(_EXACT.multiply(amount, short))
    if written.lower() in _ORDINALS and not match[0].endswith((" " + written, "-" + written)):
        return quantity_of(amount, "ordinal")
    return quantity_of(amount, "" if written.lower() in _NO_UNITS else written)


def _amount(match: re.Match[str]) -> Decimal:
    amount = _EXACT.plus(Decimal(match["digits"]))
    if match["below"]:
        below = Decimal(match["below"])
        amount = _EXACT.divide(amount, below) if below else Decimal("NaN")
    amount = _EXACT.scaleb(amount, int(match["exponent"] or 0) + int(match["power"] or 0))
    amount = _EXACT.multiply(amount, SCALES.get((match["scale"] or "").lower(), 1))
    return -amount if match["sign"] else amount


def quantity(text: str) -> Quantity | None:
    """Return a text as one quantity, or `None` if it says something else or more.

    >>> quantity("about 3 million km").value
    3000000.0
    """
    stripped = plain_quantities(text).strip(" .,;:!?")
    match = _NUMBER.fullmatch(_ABOUT.sub("", stripped, count=1) if _ABOUT.match(stripped) else stripped)
    return _quantity(match) if match else None


def same_quantity(first: Quantity, other: Quantity) -> bool:
    """Return whether two quantities are equal; a number without a unit equals any but percentages and ordinals.

    >>> same_quantity(quantities("5 km")[0], quantities("5,000 m")[0])
    True
    """
    if first.known and other.known:
        return first.kind == other.kind and _equal(first.size, other.size)
    kinds = {first.kind, other.kind}
    same_kind = len(kinds if kinds & _STRICT else kinds - {""}) <= 1
    return same_kind and _equal(first.amount, other.amount)


def _equal(amount: Decimal, other: Decimal) -> bool:
    if not (amount.is_finite() and other.is_finite()):
        return False
    return _EXACT.abs(_EXACT.subtract(amount, other)) <= _EXACT.multiply(_NEAR, max(abs(amount), abs(other)))


def _digits_for_words(text: str) -> str:
    """Replace numerals by digits: `forty-two days` becomes `42 days`."""
    return _NUMERAL.sub(lambda match: str(_value(re.split(r"[ -]+", match[0].lower()))), text)


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
