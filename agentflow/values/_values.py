"""Typed values: read from a text that states one, shown, and compared."""

import re
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

from msgspec import Struct

from agentflow.text import tokens
from agentflow.values._names import normalise_name
from agentflow.values._numbers import find_dates, read_number, same_number, show_date, show_number, valid_date

_QUOTES: Final = "\"'“”‘’«»`*_"
_SEPARATED: Final = re.compile(r"[,;]|\b(?:and|or|then)\b|&", re.IGNORECASE)
_COMMA: Final = re.compile(r",(?!\d{3}(?!\d))(?:\s*(?:and|&)\b)?|\s+(?:and|&)\s+", re.IGNORECASE)
_SEMICOLON: Final = re.compile(r";(?:\s*and\b)?", re.IGNORECASE)
_THEN: Final = re.compile(r",?\s+(?:and\s+)?then\s+", re.IGNORECASE)
_MARKED: Final = re.compile(r"(?:^|(?<=\s))(?:\(?\d{1,2}[.)]|[-*•])\s+")
_AND_LAST: Final = re.compile(r",? (?:and|&)$", re.IGNORECASE)
_DATE_LEAD: Final = re.compile(r"(?:(?:on|in)\s+)?(?:the\s+)?", re.IGNORECASE)
_TRUTHS: Final = {"yes": True, "true": True, "no": False, "false": False}
_MAX_TEXT: Final = 1000
"""Characters of the longest text of a single value."""


class ValueKind(StrEnum):
    """Type of a value."""

    ENTITY = "entity"
    """Name of a person, place, organisation, thing."""
    NUMBER = "number"
    """Number, which may have a unit."""
    DATE = "date"
    """Year, month or day."""
    TEXT = "text"
    """Other words."""
    BOOL = "bool"
    """Yes or no."""
    LIST = "list"
    """Several values of the other types."""


class EntityValue(Struct, frozen=True, tag="entity", tag_field="kind"):
    """Name of a person, place, organisation or thing."""

    name: str
    """Name as a text states it."""


class NumberValue(Struct, frozen=True, tag="number", tag_field="kind"):
    """Number with its unit."""

    amount: Decimal
    """The number, exactly."""
    unit: str = ""
    """Its unit, or the thing it counts, as a text states it; empty without one."""

    def __post_init__(self) -> None:
        """Refuse an amount that is no number."""
        if not self.amount.is_finite():
            raise ValueError(f"a number must be finite, not {self.amount}")


class DateValue(Struct, frozen=True, tag="date", tag_field="kind"):
    """Date as precise as it is known."""

    year: int
    """Year; negative before the common era: -44 is 44 BC."""
    month: int = 0
    """Month from 1; 0 if it is not stated."""
    day: int = 0
    """Day of the month; 0 if it is not stated."""

    def __post_init__(self) -> None:
        """Refuse a date that does not exist."""
        if not valid_date(self.year, self.month, self.day):
            raise ValueError(f"no such date: year {self.year}, month {self.month}, day {self.day}")


class TextValue(Struct, frozen=True, tag="text", tag_field="kind"):
    """Words that are no name, number or date."""

    text: str
    """The words."""


class BoolValue(Struct, frozen=True, tag="bool", tag_field="kind"):
    """Answer to a yes-no question."""

    truth: bool
    """`True` for yes."""


ScalarValue: TypeAlias = EntityValue | NumberValue | DateValue | TextValue | BoolValue
"""A single value."""


class ListValue(Struct, frozen=True, tag="list", tag_field="kind"):
    """Several values."""

    items: tuple[ScalarValue, ...]
    """The values. Items of several kinds form records: each begins with an item of the first item's kind."""
    ordered: bool = False
    """Their order matters."""


Value: TypeAlias = ScalarValue | ListValue
"""A value of any type."""


def kind_of(value: Value) -> ValueKind:
    """Return the type of a value.

    >>> kind_of(BoolValue(True)).value
    'bool'
    """
    match value:
        case EntityValue():
            return ValueKind.ENTITY
        case NumberValue():
            return ValueKind.NUMBER
        case DateValue():
            return ValueKind.DATE
        case TextValue():
            return ValueKind.TEXT
        case BoolValue():
            return ValueKind.BOOL
        case ListValue():
            return ValueKind.LIST


def parse_value(text: str, kind: ValueKind, unit: str = "") -> Value | None:
    """Return the value that a text states, or `None` if it states no value of that type, several, or a vague one.

    >>> parse_value("1.2 million inhabitants", ValueKind.NUMBER)
    NumberValue(amount=Decimal('1200000.0'), unit='inhabitants')
    >>> parse_value("the 1830s", ValueKind.DATE) is None
    True

    :param unit: unit of a number without one. A number in the same unit, written otherwise, has this one, too.
    """
    line = " ".join(text.split())
    match kind:
        case ValueKind.LIST:
            return _parse_list(line)
        case ValueKind.TEXT:
            return TextValue(line) if line else None
        case _ if len(line) > _MAX_TEXT:
            return None
        case ValueKind.ENTITY:
            name = bare_text(line)
            return EntityValue(name) if any(map(str.isalnum, name)) else None
        case ValueKind.NUMBER:
            number = read_number(bare_text(line), unit)
            return None if number is None else NumberValue(*number)
        case ValueKind.DATE:
            return _parse_date(bare_text(line))
        case ValueKind.BOOL:
            truth = _TRUTHS.get(bare_text(line).lower().rstrip(".!"))
            return None if truth is None else BoolValue(truth)


def show_value(value: Value) -> str:
    """Return a value as a short text that `parse_value` reads.

    >>> show_value(DateValue(1841, 5, 12)), show_value(NumberValue(Decimal(2300), "inhabitants"))
    ('12 May 1841', '2,300 inhabitants')
    """
    match value:
        case EntityValue(name):
            return name
        case NumberValue(amount, unit):
            return show_number(amount, unit)
        case DateValue(year, month, day):
            return show_date(year, month, day)
        case TextValue(text):
            return text
        case BoolValue(truth):
            return "yes" if truth else "no"
        case ListValue(items, ordered):
            shown = [[show_value(item) for item in record] for record in records_of(items)]
            return _show_list([_show_record(*record) for record in shown], ordered=ordered)


def _show_record(name: str, *values: str) -> str:
    return f"{name} ({', '.join(values)})" if values else name


def values_agree(first: Value, second: Value) -> bool:
    """Return whether two values are the same, by type.

    Numbers and dates are compared exactly, numbers after an exact conversion of units; a year does not agree with a day
    in it. Names agree in any case, with or without accents, article and title; lists in any order unless one is ordered.

    >>> values_agree(NumberValue(Decimal(5), "km"), NumberValue(Decimal(5000), "metres"))
    True
    >>> values_agree(DateValue(1841), DateValue(1841, 5, 12))
    False
    """
    if first == second:
        return True
    match first, second:
        case EntityValue(name), EntityValue(other):
            return normalise_name(name) == normalise_name(other)
        case NumberValue(amount, unit), NumberValue(other_amount, other_unit):
            return same_number((amount, unit), (other_amount, other_unit))
        case TextValue(text), TextValue(other):
            return _same_words(text, other)
        case EntityValue(text), TextValue(other):
            return _same_words(text, other)
        case TextValue(text), EntityValue(other):
            return _same_words(text, other)
        case ListValue(items, ordered), ListValue(others, others_ordered):
            return _same_lists(items, others, ordered=ordered or others_ordered)
        case _:
            return False


def bare_text(text: str) -> str:
    """Return a text without enclosing quotation marks, emphasis and a final full stop.

    >>> bare_text("**Brenn Light**.")
    'Brenn Light'
    """
    bare = text.strip().strip(_QUOTES).strip()
    if bare.endswith(".") and not re.search(r"(?:\b\w|\b(?:Inc|Ltd|Co|Corp|Jr|Sr|St|Mt|etc))\.$", bare):
        bare = bare[:-1].rstrip().strip(_QUOTES)
    return bare


def split_list(text: str) -> list[str]:
    """Return the items of an enumeration, without marks and quotation marks.

    >>> split_list("1. Norway, 2. Peru and 3. Chad")
    ['Norway', 'Peru', 'Chad']
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) == 1:
        if len(_MARKED.findall(text)) > 1:
            lines = _MARKED.split(text)
        else:
            lines = next(
                (pattern.split(text) for pattern in (_SEMICOLON, _THEN, _COMMA) if pattern.search(text)),
                lines,
            )
    items = (
        bare_text(_AND_LAST.sub("", _MARKED.sub("", line.strip()).strip()).strip(",;")) for line in lines
    )
    return [item for item in items if item]


def _parse_date(text: str) -> DateValue | None:
    dates = find_dates(text)
    if (
        len(dates) != 1
        or not _DATE_LEAD.fullmatch(text[: dates[0].start])
        or text[dates[0].end :].strip(" .")
    ):
        return None
    return DateValue(dates[0].year, dates[0].month, dates[0].day)


def _parse_list(text: str) -> ListValue | None:
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    items = [bare_text(text)] if quoted else split_list(text)
    if not items or (len(items) == 1 and not items[0]):
        return None
    for kind in (ValueKind.NUMBER, ValueKind.DATE, ValueKind.ENTITY):
        values = [parse_value(item, kind) for item in items]
        scalars = tuple(value for value in values if value is not None and not isinstance(value, ListValue))
        if len(scalars) == len(items):
            return ListValue(scalars, ordered=len(items) > 1 and bool(_THEN.search(text)))
    return None


def _show_list(shown: Sequence[str], *, ordered: bool) -> str:
    if len(shown) == 1:
        return f'"{shown[0]}"' if _SEPARATED.search(shown[0]) else shown[0]
    if ordered:
        return ", then ".join(shown)
    if any(_SEPARATED.search(re.sub(r"(?<=\d),(?=\d{3})", "", item)) for item in shown):
        return "; ".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""


def _same_words(text: str, other: str) -> bool:
    mine, theirs = _tokens(text), _tokens(other)
    return mine == theirs and (bool(mine) or text.strip() == other.strip())


@lru_cache(maxsize=4096)
def _tokens(text: str) -> tuple[str, ...]:
    return tuple(tokens(text))


def _same_lists(items: Sequence[ScalarValue], others: Sequence[ScalarValue], *, ordered: bool) -> bool:
    mine, theirs = records_of(items), records_of(others)
    if ordered:
        return len(mine) == len(theirs) and all(map(_same_records, mine, theirs))
    # A set: an item that is repeated counts once.
    return all(any(_same_records(record, other) for other in theirs) for record in mine) and all(
        any(_same_records(record, other) for other in mine) for record in theirs
    )


def records_of(items: Sequence[ScalarValue]) -> list[list[ScalarValue]]:
    """Return items of one kind each as a record; items of several kinds by the kind that begins a record."""
    if len({type(item) for item in items}) == 1:
        return [[item] for item in items]
    records: list[list[ScalarValue]] = []
    for item in items:
        if type(item) is type(items[0]):
            records.append([item])
        else:
            records[-1].append(item)
    return records


def _same_records(record: Sequence[ScalarValue], other: Sequence[ScalarValue]) -> bool:
    return len(record) == len(other) and all(map(values_agree, record, other))
