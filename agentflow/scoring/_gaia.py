"""GAIA's quasi exact match: numbers as numbers, lists by element, words without spaces and punctuation."""

import re
import string
from collections.abc import Sequence
from typing import Final

_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?", re.IGNORECASE)


def gaia_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the prediction equals a reference by GAIA's rules."""
    return float(any(_same(prediction, reference) for reference in references))


def _same(said: str, right: str) -> bool:
    if _number(right) is not None:
        return _number(said) == _number(right)
    parts = re.split(r"[,;]", right)
    if len(parts) == 1:
        return _words(said) == _words(right)
    mine = re.split(r"[,;]", said)
    return len(mine) == len(parts) and all(map(_element, mine, parts))


def _element(said: str, right: str) -> bool:
    if _number(right) is not None:
        return _number(said) == _number(right)
    # In a list, punctuation may separate elements.
    return re.sub(r"\s+", "", said).lower() == re.sub(r"\s+", "", right).lower()


def _number(text: str) -> float | None:
    plain = re.sub(r"[$%,]", "", text).strip()
    return float(plain) if _NUMBER.fullmatch(plain) else None


def _words(text: str) -> str:
    return re.sub(r"\s+", "", text).lower().translate(_PUNCTUATION)
