"""Answers as plain texts, without a type: their values are inferred and compared like typed ones."""

import re
from collections import Counter
from typing import Final

from agentflow.text import tokens
from agentflow.values._names import CONNECTING
from agentflow.values._numbers import read_number
from agentflow.values._reading import answer_agrees
from agentflow.values._values import (
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    Value,
    ValueKind,
    bare_text,
    parse_value,
    split_list,
)

_AGREEMENT: Final = 0.8
"""F1 of words from which two long texts agree."""
_LONG: Final = 8
"""Words of a text in which single other words may not matter."""
_SENTENCE: Final = re.compile(
    r"\b(?:is|was|are|were|has|had|have|did|does|do|can|could|will|would|been|it|they|he|she|which|because)\b|[.!?]\s",
    re.IGNORECASE,
)
_LEAD: Final = re.compile(
    r"^[^\n:]*\b(?:is|was|are|were|as follows)\b:\s*|^[^\n:]{0,200}:\s+(?=1[.)]\s)", re.IGNORECASE
)
_REMARK: Final = re.compile(r"\(([^()]*)\)\s*\.?$")
_MEASURED: Final = re.compile(r"([^()\d]{2,80}?),?(?: at| with| in|:| -)? \(?([^()a-zA-Z]*\d[^()]*)\)?")
_MATTERS: Final = re.compile(r"\d|\b[A-Z]")
_NEGATION: Final = re.compile(r"\b(?:not|no|never|nor|neither|none|without|except)\b|n't\b", re.IGNORECASE)
_MAX_WORDS: Final = 8
_MAX_COMPOUND: Final = 100
"""Characters of the longest quantity in several units."""


def infer_value(text: str) -> Value:
    """Return the value of a short answer whose type is not given: yes or no, number, date, list, name, or text.

    A number that may be a year is a number, and a quantity in several units is one in the smallest.

    >>> infer_value("12 May 1841")
    DateValue(year=1841, month=5, day=12)
    >>> infer_value("1 year and 9 months")
    NumberValue(amount=Decimal('21'), unit='months')
    >>> infer_value("It was built by the guild.")
    TextValue(text='It was built by the guild.')
    """
    line = " ".join(text.split())
    for kind in (ValueKind.BOOL, ValueKind.NUMBER, ValueKind.DATE):
        if (value := parse_value(line, kind)) is not None:
            return value
    if len(line) <= _MAX_COMPOUND and (number := read_number(bare_text(line), compound=True)) is not None:
        return NumberValue(*number)
    listed = _LEAD.sub("", line, count=1)
    items = split_list(listed)
    values = [value for item in items for value in _record(item)] if all(map(_is_name, items)) else []
    if len(values) > 1:
        return ListValue(tuple(values), ordered=", then " in listed)
    name = parse_value(line, ValueKind.ENTITY)
    return name if name is not None and _is_name(line) else TextValue(line)


def texts_agree(answer: str, other: str) -> bool:
    """Return whether two answers without a type state the same value: by the type of either, else by their words.

    >>> texts_agree("about 5 km", "5 kilometres"), texts_agree("no", "No, it was not.")
    (True, True)
    >>> texts_agree("12 May 1841 in Port Vannick", "13 May 1841 in Port Vannick")
    False
    """
    mine, theirs = tokens(answer), tokens(other)
    if not mine or not theirs:
        return False
    if mine == theirs:
        return True
    values = infer_value(answer), infer_value(other)
    for value, answer_text in zip(values, (other, answer), strict=True):
        if not isinstance(value, TextValue) and answer_agrees(value, answer_text):
            return True
    if not all(isinstance(value, TextValue) for value in values) or min(len(mine), len(theirs)) < _LONG:
        return False
    common = sum((Counter(mine) & Counter(theirs)).values())
    return _essentials(answer) == _essentials(other) and 2 * common / (len(mine) + len(theirs)) >= _AGREEMENT


def _is_name(text: str) -> bool:
    """Return whether a text may be a name: short, and no sentence."""
    plain = _REMARK.sub("", text)
    return len(plain.split()) <= _MAX_WORDS and not _SENTENCE.search(plain)


def _record(item: str) -> list[ScalarValue]:
    """Return an item of a list, with the number or date after it: `China (5.0 %)`, `China at 5.0 %`."""
    if (value := _measure(item)) is not None:
        return [value]
    parts = _MEASURED.fullmatch(item)
    measure = _measure(parts[2]) if parts else None
    return (
        [EntityValue(parts[1]), measure]
        if parts and measure
        else [EntityValue(_REMARK.sub("", item).strip())]
    )


def _measure(text: str) -> ScalarValue | None:
    """Return a number or date."""
    values = (parse_value(text, kind) for kind in (ValueKind.NUMBER, ValueKind.DATE))
    return next((value for value in values if value is not None and not isinstance(value, ListValue)), None)


def _essentials(text: str) -> Counter[str]:
    """Return the words of a text that change an answer."""
    tokens_by_word = ((word, " ".join(tokens(word))) for word in text.split())
    return Counter(
        token
        for word, token in tokens_by_word
        if _NEGATION.search(word) or (_MATTERS.search(word) and token not in CONNECTING)
    )
