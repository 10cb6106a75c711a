"""Numbers written as words."""

import re
from typing import Final

__all__ = ["digits_for_words"]

_SMALL: Final = {
    word: number
    for number, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
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


def digits_for_words(text: str) -> str:
    """The text with its numerals in digits: `forty-two days` are `42 days`."""
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
