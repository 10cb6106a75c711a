"""Order of values, which dates of different precision and unknown units leave open."""

from collections.abc import Hashable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Final

from agentflow.facts._values import DateValue, ListValue, NumberValue, Value, values_agree
from agentflow.text import quantity_of

_EXACT: Final = Context(prec=60)


def compare(first: Value, second: Value) -> int | None:
    """Return -1, 0 or 1 if two numbers or dates are ordered, else `None`.

    Numbers need units of one kind. A year and a day of it have no order.

    >>> compare(DateValue(1834), DateValue(1841, 5, 12))
    -1
    >>> compare(DateValue(1841), DateValue(1841, 5, 12)) is None
    True
    """
    if isinstance(first, NumberValue) and isinstance(second, NumberValue):
        if first.unit == second.unit:
            return (first.amount > second.amount) - (first.amount < second.amount)
        *kind, factor = _unit(first.unit)
        *other_kind, other_factor = _unit(second.unit)
        if kind != other_kind:
            return None
        one, other = Fraction(first.amount) * factor, Fraction(second.amount) * other_factor
        return (one > other) - (one < other)
    if isinstance(first, DateValue) and isinstance(second, DateValue):
        if first == second:
            return 0
        if last_day(first) < first_day(second):
            return -1
        return 1 if first_day(first) > last_day(second) else None
    return None


def form_of(value: Value) -> Hashable:
    """Return the form in which equal numbers with different units of one kind are equal; other values as they are.

    >>> form_of(NumberValue(Decimal(5), "km")) == form_of(NumberValue(Decimal(5000), "metres"))
    True
    """
    if isinstance(value, NumberValue):
        kind, known, factor = _unit(value.unit)
        return kind, known, Fraction(value.amount) * factor
    return value


def equal(first: Value, second: Value) -> bool | None:
    """Return whether two values are equal, `None` if that is not determined: 1841 may be 12 May 1841."""
    if values_agree(first, second):
        return True
    if isinstance(first, NumberValue | DateValue) and isinstance(second, NumberValue | DateValue):
        order = compare(first, second)
        return None if order is None and type(first) is type(second) else order == 0
    return False


def fits(value: Value, bound: Value) -> bool:
    """Return whether a value is equal to another, is a day or month in it, or is a list with it.

    >>> fits(DateValue(1841, 5, 12), DateValue(1841)), fits(DateValue(1841), DateValue(1841, 5, 12))
    (True, False)
    """
    if isinstance(value, DateValue) and isinstance(bound, DateValue):
        return first_day(bound) <= first_day(value) and last_day(value) <= last_day(bound)
    if isinstance(value, ListValue) and not isinstance(bound, ListValue):
        return any(fits(item, bound) for item in value.items)
    return values_agree(value, bound)


def lies_within(value: Value, first: Value, last: Value) -> bool | None:
    """Return whether a value lies in a range, both ends included, `None` if that is not determined."""
    if isinstance(value, DateValue) and isinstance(first, DateValue) and isinstance(last, DateValue):
        if first_day(first) <= first_day(value) and last_day(value) <= last_day(last):
            return True
        outside = last_day(value) < first_day(first) or last_day(last) < first_day(value)
        return False if outside else None
    low, high = compare(first, value), compare(value, last)
    return None if low is None or high is None else low <= 0 and high <= 0


def total(values: Sequence[Value]) -> NumberValue | None:
    """Return the sum of at least two numbers with units of one kind, in the unit of the first.

    >>> total([NumberValue(Decimal(5), "km"), NumberValue(Decimal(300), "metres")])
    NumberValue(amount=Decimal('5.3'), unit='km')
    """
    numbers = _in_one_unit(values)
    return NumberValue(reduce(_EXACT.add, numbers), _unit_of(values[0])) if len(numbers) > 1 else None


def difference(first: Value, second: Value) -> NumberValue | None:
    """Return the difference of two numbers with units of one kind, or the number of years between two dates.

    Dates need the same precision, and their days must agree with their years: between December 1833 and January 1834
    the number of years is not determined.

    >>> difference(DateValue(1834), DateValue(1841))
    NumberValue(amount=Decimal('7'), unit='years')
    """
    if len(numbers := _in_one_unit([first, second])) == 2:
        return NumberValue(_EXACT.subtract(*numbers).copy_abs(), _unit_of(first))
    if isinstance(first, DateValue) and isinstance(second, DateValue):
        early, late = sorted((first, second), key=first_day)
        same_precision = (bool(early.month), bool(early.day)) == (bool(late.month), bool(late.day))
        if not same_precision or (early.month, early.day) > (late.month, late.day):
            return None
        # There is no year 0.
        years = late.year - early.year - (early.year < 0 < late.year)
        return NumberValue(Decimal(years), "years")
    return None


def first_day(date: DateValue) -> tuple[int, int, int]:
    """Return year, month and day of the first day of a year, month or day."""
    return date.year, date.month or 1, date.day or 1


def last_day(date: DateValue) -> tuple[int, int, int]:
    """Return year, month and day after which a year, month or day has ended."""
    return date.year, date.month or 12, date.day or 31


def _in_one_unit(values: Sequence[Value]) -> list[Decimal]:
    """Return amounts in the unit of the first number; none if that is impossible, or not exactly."""
    numbers = [value for value in values if isinstance(value, NumberValue)]
    if len(numbers) < len(values) or len({_unit(one.unit)[:2] for one in numbers}) != 1:
        return []
    factor = _unit(numbers[0].unit)[2]
    amounts: list[Decimal] = []
    for one in numbers:
        exact = Fraction(one.amount) * _unit(one.unit)[2] / factor
        amount = (
            one.amount if _unit(one.unit)[2] == factor else _EXACT.divide(exact.numerator, exact.denominator)
        )
        if Fraction(amount) != exact:
            return []
        amounts.append(amount)
    return amounts


def _unit_of(value: Value) -> str:
    return value.unit if isinstance(value, NumberValue) else ""


@lru_cache(1024)
def _unit(unit: str) -> tuple[str, bool, Fraction]:
    """Return the kind of a unit, whether it is a known one, and its size in the base unit of its kind."""
    found = quantity_of(Decimal(1), unit)
    return found.kind, found.known, found.factor
