"""Reading numbers with their units, and comparing them."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import islice
from math import isclose
from typing import Final, NamedTuple

from agentflow.scoring._numerals import digits_for_words
from agentflow.scoring._units import CURRENCIES, SCALES, UNITS

__all__ = ["Quantity", "numeric_match", "quantities"]

_MINUS: Final = str.maketrans("−–—‑", "----")
_GROUPS: Final = re.compile(r"(?<=\d)(?:,|[\u2009\u202f\u00a0]|\{,\}|\\,)(?=\d{3}(?!\d))")
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
_NO_UNITS: Final = frozenset(
    [
        "a",
        "an",
        "and",
        "as",
        "at",
        "but",
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
        "that",
        "the",
        "to",
        "was",
        "were",
        "with",
    ]
)
_MOST: Final = 64


class Quantity(NamedTuple):
    """A number with what it counts."""

    value: float
    """As it is written, without the unit."""
    factor: float
    """How much of the base unit of its kind its unit is; 1: it has none."""
    kind: str
    """`length`, `percent`, a currency, …; the word behind it where that is no unit we know; empty: none."""
    known: bool
    """`kind` is that of a unit."""

    @property
    def may_be_year(self) -> bool:
        """It is written as years are."""
        return not self.known and 1000 <= self.value <= 2100 and self.value.is_integer()


def numeric_match(
    prediction: str, references: Sequence[str], *, tolerance: float = 0.01, question: str = ""
) -> float:
    """1 if every number of a reference stands in the prediction, in the same order, and no other number might be meant.

    Further numbers do no harm if they can't be meant: the question gives them, they measure something else, or they
    are years where none is asked for.

    :param tolerance: how far a number may be off, as a share of it; years must be right.
    :param question: what was asked. Where it asks for a percentage, a plain number is one.
    """
    percent = bool(re.search(r"%|percent", question, re.IGNORECASE))
    given = quantities(question)
    said = quantities(_result(prediction))
    return float(
        any(_matches(said, quantities(each), given, tolerance, percent=percent) for each in references)
    )


def quantities(text: str) -> list[Quantity]:
    """All numbers of a text, in order."""
    plain = _GROUPS.sub("", unicodedata.normalize("NFKC", text).translate(_MINUS)).replace(
        "per cent", "percent"
    )
    # 1990s are years, not seconds.
    plain = _DECADE.sub("", " ".join(plain.split()))
    # NFKC writes ½ as 1⁄2, with a slash of its own.
    plain = plain.replace("\u2044", "/")
    if not any(map(str.isdigit, plain)):
        plain = digits_for_words(plain)
    return [_quantity(found) for found in islice(_NUMBER.finditer(plain), _MOST)]


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
    # MB is not Mb: case counts where it tells units apart, else it does not.
    if _GLUED_SCALE.search(found[0]):
        return Quantity(value * _SHORT_SCALES[written.lower()], 1.0, "", known=False)
    unit = UNITS.get(written) or UNITS.get(written.lower())
    if unit:
        return Quantity(value, unit.factor, unit.kind, known=True)
    word = "" if written.lower() in _NO_UNITS else written.lower().removesuffix("s")
    return Quantity(value, 1.0, word, known=False)


def _result(text: str) -> str:
    """What a computation comes to."""
    _, _, result = text.rpartition("=")
    return result if any(map(str.isdigit, result)) else text


def _matches(
    said: list[Quantity], right: list[Quantity], given: list[Quantity], tolerance: float, *, percent: bool
) -> bool:
    """All of `right` are among `said` in order, and what else is said can't be meant."""
    if not right:
        return False
    # How many of `right` can be found in what was read so far.
    reached = {0}
    for quantity in said:
        further = {
            done + 1
            for done in reached
            if done < len(right) and _same(quantity, right[done], tolerance, percent=percent)
        }
        reached = further | (reached if _harmless(quantity, right, given) else set[int]())
        if not reached:
            return False
    return len(right) in reached


def _harmless(quantity: Quantity, right: list[Quantity], given: list[Quantity]) -> bool:
    if any(quantity.value == each.value for each in given):
        return True
    if quantity.may_be_year and not any(each.may_be_year and not each.kind for each in right):
        return True
    return all(each.known and quantity.kind and quantity.kind != each.kind for each in right)


def _same(said: Quantity, right: Quantity, tolerance: float, *, percent: bool) -> bool:
    if said.known and right.known and said.kind != right.kind:
        return False
    if said.may_be_year and right.may_be_year and not right.kind:
        return said.value == right.value
    if said.known and right.known and said.kind == right.kind:
        pairs = [(said.value * said.factor, right.value * right.factor)]
    elif "percent" in {said.kind, right.kind}:
        # A share may be written as a percentage, and a percentage that was asked for without its sign.
        pairs = [(said.value * said.factor, right.value * right.factor)]
        pairs += [(said.value, right.value)] * percent
    else:
        # The unit that one of them leaves out is the other's.
        pairs = [(said.value, right.value)]
    nothing = 1e-6 if tolerance else 0.0
    return any(isclose(mine, theirs, rel_tol=tolerance, abs_tol=nothing) for mine, theirs in pairs)
