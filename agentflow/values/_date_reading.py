"""Dates of an answer in prose: the one that is the answer, or all of them."""

import re
from decimal import Decimal
from typing import Final

from agentflow.text import quantity_of, singular
from agentflow.values._clauses import (
    MASK,
    asserted,
    has_alternatives,
    is_denied,
    is_uncertain,
    mask,
    sentences,
    within,
)
from agentflow.values._dates import DateMention, find_dates
from agentflow.values._names import CONNECTING
from agentflow.values._values import DateValue

_VAGUE_DATE: Final = re.compile(
    r"(?:\b(?:circa|ca|c|about|around|approximately|roughly|before|after|by|until|till|early|late|mid|middle of|spring|summer|autumn"
    r"|winter|fall|end of|beginning of|start of|prior to|than|between|nearly|decade of|century|some ?time in)\b\.?(?: in| of)?|~|≈|-)\s*(?:the |year )*$",
    re.IGNORECASE,
)
_NEAR: Final = 28
"""Characters before a date in which a word makes it vague."""
_NEXT_WORD: Final = re.compile(r" ?-?([^\W\d_]+)")
_MOST: Final = 64
"""Number of dates that are compared with each other."""
_IN: Final = re.compile(r"\b(?:in|since|from|of|year|until|till|by)\s$", re.IGNORECASE)
"""Words before a year, after which a plural is the next word of the sentence: "in 1841 ships …"."""
_EARLY, _FAR = 1000, 3000
"""Range of the numbers that are usually years."""
_BARE: Final = re.compile(rf"[\W_{MASK}]*")


def read_date_answer(answer: str, like: DateValue, question: str = "") -> DateValue | None:
    """Return the date that an answer states, if it is only one."""
    dates = read_dates(answer, like, question)
    return dates[0] if len(dates) == 1 else None


def read_dates(answer: str, like: DateValue, question: str = "") -> list[DateValue]:
    """Return the dates that an answer states; none if it hedges. A year with a day in it counts as that day only."""
    line = answer.replace("\n", " ; ")
    mentions = [date for date in find_dates(line) if not date.bare or _may_be_year(line, date, like)]
    masked = mask(line, [(mention.start, mention.end) for mention in mentions])
    if is_uncertain(masked) or is_denied(masked) or has_alternatives(masked):
        return []
    stated = asserted(masked)
    question_dates = {_date(date) for date in find_dates(" ".join(question.split()))}
    exact = [
        mention
        for mention in mentions
        if within((mention.start, mention.end), stated)
        and not _VAGUE_DATE.search(line, max(0, mention.start - _NEAR), mention.start)
    ]
    first = next(iter(sentences(masked)), (0, 0))
    if exact and _BARE.fullmatch(masked, *first):
        exact = [mention for mention in exact if mention.end <= first[1]]
    dates = list(dict.fromkeys(map(_date, exact)))
    dates = [date for date in dates if date not in question_dates] or dates
    return [
        date for date in dates if not any(date != other and _contains(date, other) for other in dates[:_MOST])
    ]


def _may_be_year(line: str, mention: DateMention, like: DateValue) -> bool:
    """Return whether a bare number is a year: no unit follows it, and it has as many digits as the expected one."""
    word = _NEXT_WORD.match(line, mention.end)
    measured = word is not None and (
        quantity_of(Decimal(1), word[1]).known
        or (
            singular(word[1]) != word[1]
            and word[1].lower() not in CONNECTING
            and not _IN.search(line, max(0, mention.start - _NEAR), mention.start)
        )
    )
    usual = _EARLY <= mention.year < _FAR or not _EARLY <= abs(like.year) < _FAR
    return not measured and usual


def _date(mention: DateMention) -> DateValue:
    return DateValue(mention.year, mention.month, mention.day)


def _contains(date: DateValue, other: DateValue) -> bool:
    """Return whether a date is a year or month that contains the other date."""
    return date.year == other.year and (not date.month or (date.month == other.month and not date.day))
