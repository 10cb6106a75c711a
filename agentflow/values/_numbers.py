"""Numbers with units and dates, as texts write them: found, read, shown and compared."""

import re
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from agentflow.text import (
    Quantity,
    find_quantities,
    plain_quantities,
    quantity_of,
    same_quantity,
    singular,
)

_LEAD: Final = re.compile(
    r"(?:(?:about|approximately|approx\.?|around|roughly|some|exactly|a total of|~|≈)\s*)?", re.IGNORECASE
)
_TAIL: Final = re.compile(
    r"\s*(?:tall|high|long|wide|deep|thick|across|old|away|in (?:length|height|width|depth|all|total)|above sea level)",
    re.IGNORECASE,
)
_SPACED: Final = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d.,]*\d)")
_DOTS: Final = re.compile(r"(?<=\d)\s?(?:…|\.{2,3})\s?(?=[\d$€£])")
"""Dots of a range: `34 … 36`."""
_DOTTED: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.]*\d)")
_DECIMAL_COMMA: Final = re.compile(r"(?<![\d.,])(\d+),(\d{1,2})(?![\d,.])")
_APOSTROPHES: Final = re.compile(r"(?<=\d)['’](?=\d{3}(?!\d))")
_SIGNS: Final = "$€£¥"
_PERCENT: Final = frozenset({"%", "\\%"})
_SCALES: Final = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))
_WORDS: Final = re.compile(r"(?: [^\W\d_]+){1,3}")
_MAX_DIGITS: Final = 60
"""Digits of the longest number that is exact."""
_COMPOUND: Final = re.compile(r"\d[ -]?[^\W\d_]+\.?(?:,? and |, | )\d", re.IGNORECASE)
_BETWEEN_UNITS: Final = re.compile(r"(?:,? and|,)? ", re.IGNORECASE)
_FEET_AND_INCHES: Final = re.compile(r"\b(?:ft|feet|foot)\b\.? (\d+(?:\.\d+)?) ?in\b\.?", re.IGNORECASE)
_DAY: Final = Fraction(86_400)
_YEAR: Final = _DAY * Fraction("365.2425")
_CALENDAR: Final = "calendardays"
"""Unit of durations in months and days, which equal none in months alone or days alone."""
_DIVISION: Final = Context(prec=_MAX_DIGITS)
_SHOWN: Final[Mapping[str, str]] = {
    "sqkm": "square kilometres", "sqm": "square metres", "sqmi": "square miles", "sqft": "square feet",
    "cbm": "cubic metres", "cbkm": "cubic kilometres", "nmi": "nautical miles",
}  # fmt: skip


def plain_numbers(text: str) -> str:
    """Return a text with numbers in digits, without separators of thousands, for `find_quantities`."""
    joined = _DOTS.sub(" to ", text)
    joined = _SPACED.sub(lambda match: match[0].replace(" ", ""), _APOSTROPHES.sub("", joined))
    joined = _DOTTED.sub(lambda match: match[0].replace(".", ""), joined)
    return plain_quantities(_DECIMAL_COMMA.sub(r"\1.\2", joined), numerals=True)


def join_units(plain: str, *, listed: bool = False) -> str:
    """Return a text from `plain_numbers` with each quantity in its smallest unit: `1 year and 9 months` as `21 months`.

    :param listed: commas and `and` separate quantities.
    """
    if not _COMPOUND.search(plain):
        return plain
    plain = _FEET_AND_INCHES.sub(r"ft \1 inches", plain)
    compounds: list[list[tuple[int, int, Quantity]]] = []
    for start, end, quantity in find_quantities(plain):
        last = compounds[-1][-1] if compounds else None
        if last and _continues(last[2], quantity, plain[last[1] : start], listed=listed):
            compounds[-1].append((start, end, quantity))
        else:
            compounds.append([(start, end, quantity)])
    for parts in reversed(compounds):
        if len(parts) > 1:
            total = _total([quantity for _, _, quantity in parts])
            plain = f"{plain[: parts[0][0]]}{total}{plain[parts[-1][1] :]}"
    return plain


def _continues(large: Quantity, small: Quantity, between: str, *, listed: bool) -> bool:
    """Return whether a quantity is the part of the one before it that is less than its unit: months after years."""
    if not (large.known and small.known and large.amount.is_finite() and small.amount.is_finite()):
        return False
    same_kind = large.kind == small.kind or (not listed and (large.kind, small.kind) == ("year", "time"))
    return (
        same_kind
        and (between == " " if listed else bool(_BETWEEN_UNITS.fullmatch(between)))
        and large.amount >= 0
        and large.amount == large.amount.to_integral_value()
        and 0 <= Fraction(small.amount) * _size(small) < _size(large)
    )


def _size(quantity: Quantity) -> Fraction:
    """Return the size of a unit, in seconds for those of time."""
    return quantity.factor * (_YEAR if quantity.kind == "year" else 1)


def _total(parts: Sequence[Quantity]) -> str:
    mixed = len({part.kind for part in parts}) > 1
    size, unit = (_DAY, _CALENDAR) if mixed else (_size(parts[-1]), parts[-1].unit)
    amount = sum((Fraction(part.amount) * _size(part) for part in parts), Fraction()) / size
    return f"{_DIVISION.divide(Decimal(amount.numerator), Decimal(amount.denominator)):f} {unit}"


@lru_cache(maxsize=8192)
def read_number(text: str, unit: str = "", *, compound: bool = False) -> tuple[Decimal, str] | None:
    """Return amount and unit of a text that is one number; `None` for others, ordinals, ranges and bounds.

    :param unit: unit of a number without one.
    :param compound: it may have several units, of which the smallest is returned.
    """
    plain = plain_numbers(text)
    plain = (join_units(plain) if compound else plain).strip(" .!")
    lead = _LEAD.match(plain)
    start = lead.end() if lead else 0
    match = next(find_quantities(plain[start:]), None)
    if match is None or match[0] > 0 or match[2].kind in {"ordinal", "ish"}:
        return None
    _, end, quantity = match
    rest = _TAIL.sub("", plain[start + end :], count=1)
    if rest and (quantity.known or not quantity.unit or not _WORDS.fullmatch(rest)):
        return None
    return stated_number(quantity, rest, unit)


def stated_number(quantity: Quantity, rest: str = "", unit: str = "") -> tuple[Decimal, str] | None:
    """Return amount and unit of a quantity; the unit that is asked for, if it is the same one or none is stated."""
    if not quantity.amount.is_finite() or abs(quantity.amount.adjusted()) > _MAX_DIGITS:
        return None
    stated = quantity.unit + rest
    if unit and (not stated or _same_unit(stated, unit)):
        return quantity.amount, unit
    return quantity.amount, "%" if stated in _PERCENT else stated


def same_number(number: tuple[Decimal, str], other: tuple[Decimal, str]) -> bool:
    """Return whether two numbers are equal, after an exact conversion of their units."""
    mine, theirs = quantity_of(*number), quantity_of(*other)
    if {mine.kind, theirs.kind} == {"percent", ""}:
        # 0.05 is 5 %, and 5 is not.
        mine, theirs = quantity_of(mine.size), quantity_of(theirs.size)
    if {mine.kind, theirs.kind} == {"gbp", "mass"} and "pound" in {
        singular(mine.unit),
        singular(theirs.unit),
    }:
        # Pounds are a currency, too.
        return mine.amount == theirs.amount
    return same_quantity(mine, theirs)


def show_number(amount: Decimal, unit: str = "") -> str:
    """Return a number with its unit: `2,300 inhabitants`, `1.2 million`, `5%`, `$40`."""
    shown = _show_amount(amount.copy_abs())
    sign = "-" if amount < 0 else ""
    if unit in _SIGNS:
        return f"{sign}{unit}{shown}"
    if unit in _PERCENT:
        return f"{sign}{shown}%"
    return f"{sign}{shown} {_inflected(unit, is_singular=shown == '1')}".rstrip()


def _show_amount(amount: Decimal) -> str:
    if abs(amount.adjusted()) > _MAX_DIGITS:
        return str(amount)
    whole = amount == amount.to_integral_value()
    for scale, name in _SCALES:
        if whole and amount >= scale and amount * 1000 % scale == 0:
            return f"{(amount / scale).normalize():f} {name}"
    return f"{amount:,.0f}" if whole and amount >= 1000 else f"{amount:f}"


def _inflected(unit: str, *, is_singular: bool) -> str:
    """Return a unit in the number of its amount, as far as that is regular."""
    shown = _SHOWN.get(unit, unit)
    if is_singular:
        single = singular(shown)
        return single if _is_known(single) or not _is_known(shown) else shown
    plural = {"foot": "feet", "inch": "inches"}.get(shown, f"{shown}s")
    return plural if len(shown) > 3 and _is_known(shown) and _is_known(plural) else shown


def _is_known(unit: str) -> bool:
    return quantity_of(Decimal(1), unit).known


def _same_unit(unit: str, other: str) -> bool:
    mine, theirs = quantity_of(Decimal(1), unit), quantity_of(Decimal(1), other)
    return (mine.kind, mine.factor) == (theirs.kind, theirs.factor)


MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
"""Names of the months."""
_MONTH_NUMBERS: Final = {
    name[:length].lower(): number for number, name in enumerate(MONTHS, 1) for length in (3, 4, len(name))
}
_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_NAME: Final = rf"(?P<name>(?:{'|'.join([*MONTHS, 'Sept', *(name[:3] for name in MONTHS)])})\b)\.?"
_WEEKDAY: Final = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\.?,? )?"
_DAY_OF_MONTH: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_ANY_YEAR: Final = (
    r"(?P<ad>AD |A\.D\. )?(?P<year>\d{1,4})(?: ?(?P<era>B\.? ?C\.?(?: ?E\b\.?)?|A\.? ?D\b\.?|C\.? ?E\b\.?))?"
)
_TIME: Final = r"(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?: ?Z| ?[+-]\d{2}:?\d{2})?)?"
_FORMS: Final = tuple(
    re.compile(rf"(?<![\w./:-])(?<!\d,){form}(?![\w%°]|[.,/:-]\d|['’]s\b)", re.IGNORECASE)
    for form in (
        rf"(?P<year>\d{{4}})(?P<mark>[-/])(?P<month>\d{{1,2}})(?P=mark)(?P<day>\d{{1,2}}){_TIME}",
        r"(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])",
        rf"{_WEEKDAY}{_DAY_OF_MONTH}[ -]?(?:day )?(?:of )?{_NAME},?[ -]?(?:of |in )?{_ANY_YEAR}",
        rf"{_WEEKDAY}{_NAME} ?(?:the )?{_DAY_OF_MONTH},? (?:of |in )?{_ANY_YEAR}",
        rf"{_NAME},? ?(?:of |in )?{_ANY_YEAR}",
        r"(?P<day>\d{1,2})\. ?(?P<month>\d{1,2})\. ?(?P<year>\d{4})",
        r"(?P<first>\d{1,2})(?P<mark>[/.-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4})",
        rf"(?:the )?(?:year )?{_ANY_YEAR}",
        r"(?P<year>\d{1,2},?\d{3}) (?P<era>B\.? ?C\.?(?: ?E\b\.?)?)",
    )
)
_SMALLEST_YEAR: Final = 100
"""A smaller number without an era is no year."""


class DateMention(NamedTuple):
    """Date that a text states."""

    start: int
    """Index of its first character."""
    end: int
    """Index after its last character."""
    year: int
    """Year; negative before the common era."""
    month: int
    """Month; 0 if not stated."""
    day: int
    """Day; 0 if not stated."""
    bare: bool
    """It is a number only, which may be something else than a year."""


def valid_date(year: int, month: int, day: int) -> bool:
    """Return whether a date exists, in the Gregorian or the Julian calendar."""
    if not year or not 0 <= month <= len(MONTHS) or day < 0 or (day and not month):
        return False
    leap = year % 4 == (1 if year < 0 else 0) if day == 29 and month == 2 else True
    return leap and (not month or day <= _DAYS[month - 1])


def find_dates(text: str) -> list[DateMention]:
    """Return the dates of a text with single spaces, in order and without overlaps; impossible ones are left out."""
    matches = sorted(
        (match.start(), -match.end(), form, match)
        for form, pattern in enumerate(_FORMS)
        for match in pattern.finditer(text)
    )
    mentions: list[DateMention] = []
    end = 0
    for start, _, _, match in matches:
        if start < end:
            continue
        # An impossible date hides the parts of it: 31 February 1841 does not state 1841.
        end = match.end()
        if (mention := _read(match)) is not None:
            mentions.append(mention)
    return mentions


def show_date(year: int, month: int, day: int) -> str:
    """Return a date in words: `12 May 1841`, `May 1841`, `44 BC`."""
    shown = f"{-year} BC" if year < 0 else f"AD {year}" if year < _SMALLEST_YEAR else str(year)
    return " ".join([*([str(day)] if day else []), *([MONTHS[month - 1]] if month else []), shown])


def _read(match: re.Match[str]) -> DateMention | None:
    parts = match.groupdict()
    year = int(parts["year"].replace(",", ""))
    era = (parts.get("era") or "").upper()
    if era.startswith("B"):
        year = -year
    marked = bool(era or parts.get("ad"))
    name = parts.get("name")
    month = _MONTH_NUMBERS[name.lower()] if name else int(parts.get("month") or 0)
    day = int(parts.get("day") or 0)
    if first := parts.get("first"):
        # The order of 5/6/1841 depends on the country.
        pair = sorted({(int(first), int(parts["second"])), (int(parts["second"]), int(first))})
        dates = [(one_day, other) for one_day, other in pair if valid_date(year, other, one_day)]
        if len(dates) != 1:
            return None
        day, month = dates[0]
    if not valid_date(year, month, day) or (-1 < year < _SMALLEST_YEAR and not marked):
        return None
    return DateMention(*match.span(), year, month, day, bare=not month and match[0].isdigit())
