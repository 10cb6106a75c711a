"""Conditions that questions put on values: readable relations, sums that mean something, round bounds."""

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_FLOOR, Decimal
from itertools import pairwise
from typing import Final

from agentflow.facts._ordering import compare
from agentflow.facts._programs import Comparison
from agentflow.facts._values import DateValue, EntityValue, NumberValue, TextValue, Value, show_value
from agentflow.text import quantity_of

_READABLE: Final = re.compile(r"[^\W\d_][^\W\d_ '’()-]*(?:[ '’-]+[^\W\d_]+){0,5}")
_ADDITIVE: Final = frozenset({"area", "volume", "mass", "usd", "eur", "gbp", "jpy"})
"""Kinds of known units whose sums make sense for different things."""


def readable(relation: str) -> bool:
    """Return whether a relation fits into a sentence.

    >>> readable("year of foundation"), readable("col_17")
    (True, False)
    """
    return _READABLE.fullmatch(relation) is not None and len(relation) <= 40


def additive(value: Value) -> bool:
    """Return whether the sum of such values of different things means something: inhabitants, not temperatures."""
    if not isinstance(value, NumberValue) or not value.unit:
        return False
    found = quantity_of(value.amount, value.unit)
    return not found.known or found.kind in _ADDITIVE


def bound_below(value: Value, others: Iterable[Value]) -> Value | None:
    """Return a round bound that one number or year exceeds and all lower ones do not, if it is the greatest."""
    lower = [other for other in others if other != value]
    if not lower or any(compare(other, value) != -1 for other in lower):
        return None
    highest = max(lower, key=_rank)
    return _between(highest, value)


def conditions_on(values: Sequence[Value]) -> Iterator[tuple[Comparison, Value]]:
    """Return conditions that some of several values meet and others do not, with round bounds."""
    if all(isinstance(value, NumberValue | DateValue) for value in values):
        ranked = sorted(set(values), key=_rank)
        if any(compare(one, other) != -1 for one, other in pairwise(ranked)):
            return
        for place in sorted(range(1, len(ranked)), key=lambda place: (abs(2 * place - len(ranked)), place)):
            if (bound := _between(ranked[place - 1], ranked[place])) is not None:
                yield Comparison.MORE, bound
                yield Comparison.LESS, bound
        return
    for value in dict.fromkeys(values):
        if isinstance(value, EntityValue | TextValue) and 1 < values.count(value) < len(values):
            yield Comparison.EQUAL, value


def _rank(value: Value) -> tuple[object, ...]:
    match value:
        case NumberValue(amount):
            return (amount,)
        case DateValue(year, month, day):
            return (year, month, day)
        case _:
            return (show_value(value),)


def _between(low: Value, high: Value) -> Value | None:
    """Return the roundest number or year strictly between two, `None` if there is none."""
    if isinstance(low, DateValue) and isinstance(high, DateValue):
        for size in (100, 50, 10, 5, 1):
            year = high.year - 1 - (high.year - 1) % size
            if year > low.year and year > 0:
                return DateValue(year)
        return None
    if not isinstance(low, NumberValue) or not isinstance(high, NumberValue) or low.unit != high.unit:
        return None
    for exponent in range(high.amount.adjusted(), -7, -1):
        for factor in (5, 2, 1):
            size = Decimal(factor).scaleb(exponent)
            middle = (low.amount + high.amount) / 2
            bound = (middle / size).to_integral_value(ROUND_FLOOR) * size
            if low.amount < bound < high.amount:
                return NumberValue(bound.normalize() + 0, low.unit)
    return None
