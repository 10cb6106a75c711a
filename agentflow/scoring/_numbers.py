"""Metric that compares the numbers of a prediction with those of a reference."""

import re
from collections.abc import Sequence
from math import isclose
from typing import Final

from agentflow.text import Quantity, quantities

_MOST: Final = 64
"""Number of quantities that are read from one text."""


def numeric_match(
    prediction: str, references: Sequence[str], *, tolerance: float = 0.01, question: str = ""
) -> float:
    """Return 1 if the prediction has every number of a reference, in order, and no other number that could be the answer.

    Other numbers are ignored if the question gives them, if they measure something else, or if they are years and no
    year is asked for.

    :param tolerance: relative tolerance of a number; years must be equal.
    :param question: the question. If it asks for a percentage, a plain number counts as one.
    """
    percent = bool(re.search(r"%|percent", question, re.IGNORECASE))
    given = quantities(question, limit=_MOST)
    predicted = quantities(_result(prediction), limit=_MOST)
    expected = (quantities(reference, limit=_MOST) for reference in references)
    return float(any(_matches(predicted, each, given, tolerance, percent=percent) for each in expected))


def _result(text: str) -> str:
    """Return the part after the last `=`, if it has a number."""
    _, _, result = text.rpartition("=")
    return result if any(map(str.isdigit, result)) else text


def _matches(
    predicted: list[Quantity],
    expected: list[Quantity],
    given: list[Quantity],
    tolerance: float,
    *,
    percent: bool,
) -> bool:
    """Return whether `expected` is a subsequence of `predicted` and the rest is ignorable."""
    if not expected:
        return False
    # Numbers of `expected` that may have been matched so far.
    matched = {0}
    for quantity in predicted:
        further = {
            done + 1
            for done in matched
            if done < len(expected) and _same(quantity, expected[done], tolerance, percent=percent)
        }
        matched = further | (matched if _ignorable(quantity, expected, given) else set[int]())
        if not matched:
            return False
    return len(expected) in matched


def _ignorable(quantity: Quantity, expected: list[Quantity], given: list[Quantity]) -> bool:
    if any(quantity.value == each.value for each in given):
        return True
    if quantity.may_be_year and not any(each.may_be_year and not each.kind for each in expected):
        return True
    return all(each.known and quantity.kind and quantity.kind != each.kind for each in expected)


def _same(predicted: Quantity, expected: Quantity, tolerance: float, *, percent: bool) -> bool:
    if predicted.known and expected.known and predicted.kind != expected.kind:
        return False
    if predicted.may_be_year and expected.may_be_year and not expected.kind:
        return predicted.value == expected.value
    if predicted.known and expected.known and predicted.kind == expected.kind:
        pairs = [(predicted.value * predicted.factor, expected.value * expected.factor)]
    elif "percent" in {predicted.kind, expected.kind}:
        # A fraction may be written as a percentage, and a requested percentage without its sign.
        pairs = [(predicted.value * predicted.factor, expected.value * expected.factor)]
        pairs += [(predicted.value, expected.value)] * percent
    else:
        # A missing unit is the other number's.
        pairs = [(predicted.value, expected.value)]
    nothing = 1e-6 if tolerance else 0.0
    return any(isclose(mine, theirs, rel_tol=tolerance, abs_tol=nothing) for mine, theirs in pairs)
