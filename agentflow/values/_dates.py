"""Dates as texts write them: found, read and shown."""

import re
from typing import Final, NamedTuple

MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
"""Names of the months."""
_NUMBERS: Final = {
    name[:length].lower(): number for number, name in enumerate(MONTHS, 1) for length in (3, 4, len(name))
}
_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_NAME: Final = rf"(?P<name>(?:{'|'.join([*MONTHS, 'Sept', *(name[:3] for name in MONTHS)])})\b)\.?"
_WEEKDAY: Final = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\.?,? )?"
_DAY: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR: Final = (
    r"(?P<ad>AD |A\.D\. )?(?P<year>\d{1,4})(?: ?(?P<era>B\.? ?C\.?(?: ?E\b\.?)?|A\.? ?D\b\.?|C\.? ?E\b\.?))?"
)
_TIME: Final = r"(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?: ?Z| ?[+-]\d{2}:?\d{2})?)?"
_FORMS: Final = tuple(
    re.compile(rf"(?<![\w./:-])(?<!\d,){form}(?![\w%°]|[.,/:-]\d|['’]s\b)", re.IGNORECASE)
    for form in (
        rf"(?P<year>\d{{4}})(?P<mark>[-/])(?P<month>\d{{1,2}})(?P=mark)(?P<day>\d{{1,2}}){_TIME}",
        r"(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])",
        rf"{_WEEKDAY}{_DAY}[ -]?(?:day )?(?:of )?{_NAME},?[ -]?(?:of |in )?{_YEAR}",
        rf"{_WEEKDAY}{_NAME} ?(?:the )?{_DAY},? (?:of |in )?{_YEAR}",
        rf"{_NAME},? ?(?:of |in )?{_YEAR}",
        r"(?P<day>\d{1,2})\. ?(?P<month>\d{1,2})\. ?(?P<year>\d{4})",
        r"(?P<first>\d{1,2})(?P<mark>[/.-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4})",
        rf"(?:the )?(?:year )?{_YEAR}",
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
    month = _NUMBERS[name.lower()] if name else int(parts.get("month") or 0)
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
