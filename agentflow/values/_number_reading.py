"""Numbers of an answer in prose: the one that is the answer."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from agentflow.text import Quantity, find_quantities, quantity_of, scale_of, singular
from agentflow.values._clauses import (
    MASK,
    Span,
    asserted,
    has_alternatives,
    is_denied,
    is_uncertain,
    mask,
    sentences,
    within,
)
from agentflow.values._dates import find_dates
from agentflow.values._names import CONNECTING
from agentflow.values._numbers import join_units, plain_numbers, same_number, stated_number
from agentflow.values._values import NumberValue

_PRONOUN: Final = re.compile(
    r"\bone\b(?= (?:of|that|which|who|with|in|is|was|has|had|and|or|built|by)\b(?! a half)|[,.;])|(?<=[a-z] )\bone\b(?=\W*$)",
    re.IGNORECASE,
)
"""The word `one` where it is no number."""
_BOUND: Final = re.compile(
    r"\b(?:(?:more|less|fewer|greater|higher|lower|larger|smaller|other|better|longer|shorter) than|over|under|above|below|at least|at most|up to|nearly|almost"
    r"|beyond|exceed(?:s|ed|ing)?|close to|minimum of|maximum of|between|within|approaching|not quite|just short of)\s*[$€£¥]?$|[<>≤≥±]\s*$",
    re.IGNORECASE,
)
"""Words before a number that is only a bound."""
_BOUND_AFTER: Final = re.compile(
    r"\+|\s?±|\s?(?:plus\b|and (?:up|more|above|over|counting)\b)", re.IGNORECASE
)
_TOTAL: Final = re.compile(r" of (?:the|these|those|all|its|their) ", re.IGNORECASE)
"""Words between a number and the total it is a part of: "3 of the 7"."""
_JOINED: Final = re.compile(r"\s*(?:-|to|and|until|through|,|/|×|x|by)\s*", re.IGNORECASE)
_NEXT_WORDS: Final = re.compile(r"(?:[ -][^\W\d_]+){1,4}")
_NEAR: Final = 28
"""Characters before a number in which a word makes it a bound."""


class NumberMention(NamedTuple):
    """Number of a text."""

    start: int
    end: int
    """Index after the number and its unit, if that is known."""
    quantity: Quantity
    nouns: frozenset[str]
    """The next words, in the singular: the thing that it counts is one of them."""
    vague: bool
    """It is a bound only, as in "more than 34"."""


def read_number_answer(answer: str, like: NumberValue, question: str = "") -> NumberValue | None:
    """Return the number that an answer states, if it is only one, with the expected unit if it states none."""
    values = read_numbers(answer, like, question)
    first = next(iter(values), None)
    if first is None or not all(
        same_number((first.amount, first.unit), (value.amount, value.unit)) for value in values
    ):
        return None
    return first


def read_numbers(
    answer: str, like: NumberValue, question: str = "", *, listed: bool = False
) -> list[NumberValue]:
    """Return the numbers that an answer states and that measure what the expected one does; none if it hedges.

    Numbers in the expected unit come before others of the same kind, then those without a unit.

    :param listed: several numbers are expected: `1 year and 9 months` are two.
    """
    scale, unit = scale_of(like.unit)
    if scale > 1:
        like = NumberValue(like.amount * scale, unit)
    line = answer.replace("\n", " ; ")
    for source in dict.fromkeys((_PRONOUN.sub("that", line), line)):
        plain = join_units(plain_numbers(source), listed=listed)
        if mentions := find_numbers(plain):
            kept = _answering(plain, mentions)
            return [] if kept is None else _select(kept, like, question)
    return []


def find_numbers(plain: str) -> list[NumberMention]:
    """Return the numbers of a text from `plain_numbers`, without dates and ordinals."""
    dates = [(date.start, date.end) for date in find_dates(plain) if not date.bare]
    mentions: list[NumberMention] = []
    for first, last, quantity in find_quantities(plain):
        if quantity.kind == "ordinal" or not quantity.amount.is_finite():
            continue
        start = last - len(plain[first:last].lstrip())
        written = plain[start:last].removesuffix("" if quantity.known else quantity.unit)
        end = start + len(written.rstrip(" -"))
        if _overlaps((start, end), dates) or (mentions and _TOTAL.fullmatch(plain, mentions[-1].end, start)):
            continue
        after = _NEXT_WORDS.match(plain, end)
        words = (after[0] if after else "").replace("-", " ").split()
        vague = bool(_BOUND.search(plain, max(0, start - _NEAR), start) or _BOUND_AFTER.match(plain, end))
        nouns = frozenset(quantity_of(quantity.amount, word).kind for word in words)
        mentions.append(NumberMention(start, end, quantity, nouns, vague))
    return _with_shared_units(plain, mentions)


def _fitting(mentions: Sequence[NumberMention], like: NumberValue) -> list[NumberMention]:
    """Return the numbers that measure the same thing as the expected one, as far as the text tells."""
    wanted = quantity_of(like.amount, like.unit)
    ranks = [_rank(mention, wanted, _noun(like)) for mention in mentions]
    best = min(ranks, default=0)
    return [mention for mention, rank in zip(mentions, ranks, strict=True) if rank == best]


def _rank(mention: NumberMention, wanted: Quantity, noun: str) -> int:
    """Return how well a number fits the expected one; 0 is best."""
    quantity = mention.quantity
    if wanted.known and quantity.known and wanted.kind == quantity.kind:
        return 0 if wanted.factor == quantity.factor else 1
    if noun and not wanted.known and noun in mention.nouns:
        return 0
    if _measures(quantity) and (noun or quantity.known):
        return 4
    return 2 if wanted.may_be_year or _measures(quantity) or not quantity.may_be_year else 3


def _noun(like: NumberValue) -> str:
    """Return the thing that the expected number counts, in one form."""
    return quantity_of(like.amount, like.unit.rpartition(" ")[2]).kind


def _answering(plain: str, mentions: list[NumberMention]) -> list[NumberMention] | None:
    """Return the numbers of the clauses that answer; `None` if the answer hedges."""
    masked = mask(plain, [(mention.start, mention.end) for mention in mentions])
    if is_uncertain(masked) or is_denied(masked) or has_alternatives(masked):
        return None
    stated = asserted(masked)
    if (equals := plain.rfind("=")) >= 0:
        mentions = [mention for mention in mentions if mention.start > equals] or mentions
    first = next(iter(sentences(masked)), (0, 0))
    alone = [mention for mention in mentions if within((mention.start, mention.end), [first])]
    if len(alone) == 1 and not masked[slice(*first)].replace(MASK, "").strip(" .;!~\"'"):
        # The sentences after a bare number explain it.
        mentions = alone
    return [mention for mention in mentions if within((mention.start, mention.end), stated)]


def _select(mentions: list[NumberMention], like: NumberValue, question: str) -> list[NumberValue]:
    question_amounts = {number.quantity.amount for number in find_numbers(plain_numbers(question))}
    others = [mention for mention in mentions if mention.quantity.amount not in question_amounts]
    chosen = _fitting(others or mentions, like)
    if any(each.vague for each in chosen):
        return []
    return [value for each in chosen if (value := _number_value(each, like)) is not None]


def _number_value(mention: NumberMention, like: NumberValue) -> NumberValue | None:
    """Return a number with its unit; with the expected unit if it states none."""
    quantity = mention.quantity
    if not quantity.known and (not _measures(quantity) or _noun(like) in mention.nouns):
        quantity = quantity_of(quantity.amount)
        wanted = quantity_of(like.amount, like.unit)
        if wanted.kind == "percent" and wanted.size == quantity.amount:
            return NumberValue(quantity.amount * 100, like.unit)
    stated = stated_number(quantity, unit=like.unit)
    return None if stated is None else NumberValue(*stated)


def _with_shared_units(plain: str, mentions: list[NumberMention]) -> list[NumberMention]:
    """Give the first number of "34 to 36 metres" its unit."""
    shared = list(mentions)
    for index in range(len(mentions) - 2, -1, -1):
        first, second = shared[index], shared[index + 1]
        gap = plain[first.end : second.start]
        listed = "," in gap and first.quantity.may_be_year
        if not first.quantity.known and not listed and len(gap) < 12 and _JOINED.fullmatch(gap):
            quantity = quantity_of(first.quantity.amount, second.quantity.unit)
            shared[index] = first._replace(quantity=quantity, nouns=second.nouns)
    return shared


def _measures(quantity: Quantity) -> bool:
    """Return whether a number has a unit or counts something: the word after it is a unit or a plural."""
    unit = quantity.unit
    return quantity.known or (singular(unit) != unit and unit.lower() not in CONNECTING)


def _overlaps(span: Span, others: Sequence[Span]) -> bool:
    index = bisect_right(others, span[0], key=itemgetter(0))
    return any(span[0] < end and start < span[1] for start, end in others[max(0, index - 1) : index + 1])
