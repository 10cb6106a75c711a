"""Typed reading of a model's answer in prose, and its comparison with the expected value."""

import re
from functools import partial
from typing import Final

from agentflow.values._clauses import (
    asserted,
    has_alternatives,
    is_denied,
    is_uncertain,
    mask,
    plain_text,
    sentences,
)
from agentflow.values._date_reading import read_date_answer
from agentflow.values._list_reading import read_list_answer
from agentflow.values._names import NameReader
from agentflow.values._number_reading import read_number_answer
from agentflow.values._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    Value,
    bare_text,
    values_agree,
)

_MARK: Final = re.compile(
    r"\b(?:final answer|answer)\b\W{0,3}(?:(?:is|was)\b:?|:)\s?|(?:^|(?<=[.!?\n] )|(?<=\n))(?:therefore|thus|hence|so)\b,?\s",
    re.IGNORECASE,
)
_LEAD: Final = re.compile(
    r"(?:(?:well|yes|ok|okay|sure|indeed)[,.] )?"
    r"(?:(?:it|this|that|he|she|they|these|those)(?:'s| is| was| are| were) )?(?:called |named |known as )?",
    re.IGNORECASE,
)
_TRUE: Final = "yes|true|correct|right|yeah|yep|indeed|certainly|absolutely|definitely|affirmative|of course"
_FALSE: Final = (
    "no|false|incorrect|wrong|nope|never|negative|untrue|not (?:true|correct|right|really|at all|so|the case)"
)
_VERB: Final = "is|was|are|were|does|do|did|has|have|had|can|could|will|would"
_TRUTH: Final = re.compile(
    rf"(?:(?:it|that|this|the (?:statement|claim))(?:'s| is| was) )?(?:(?P<true>{_TRUE})|(?P<false>{_FALSE}))"
    r"(?=\W*$|[.,;:!-]|\s(?:it|he|she|they|this|that|these|those|there|the|we|i|both|neither|because|since|-)(?!\w))",
    re.IGNORECASE,
)
_SHORT_TRUTH: Final = re.compile(
    rf"(?:it|he|she|they|this|that|these|those|there|both|(?P<neither>neither))(?: of them)? (?:{_VERB})(?P<negated>n't| not)?\W*$",
    re.IGNORECASE,
)
_FINAL_TRUTH: Final = re.compile(r"\b(?:so|therefore|thus|hence)\b,? (?P<truth>yes|no)\W*$", re.IGNORECASE)
_OPPOSITE: Final = {
    True: re.compile(r"\bno\b(?=[.,;!]|\W*$)|\bfalse\b", re.IGNORECASE),
    False: re.compile(r"\byes\b|\btrue\b(?=\W*$)", re.IGNORECASE),
}
_OPENING: Final = " \n\"'({[*"
_MAX_WORDS: Final = 12
"""Words of the longest name that is read without knowing it."""


def read_answer(text: str, like: Value, *, question: str = "", surname: bool = False) -> Value | None:
    """Return the value that an answer states; `None` if it states none of that type, hedges, or gives alternatives.

    >>> from decimal import Decimal
    >>> read_answer("It was 34 m tall.", NumberValue(Decimal(30), "metres"))
    NumberValue(amount=Decimal('34'), unit='metres')
    >>> read_answer("No, it was not.", BoolValue(True))
    BoolValue(truth=False)

    :param like: the expected value: it gives the type, the unit, and the name to look for.
    :param question: the question. Its names and numbers are no answers.
    :param surname: the last word of a name is enough. Right only if no other candidate has it.
    """
    answer = _marked(plain_text(text))
    read = partial(_read_scalar, surname=surname)
    if isinstance(like, ListValue):
        return read_list_answer(answer, like, question, read)
    return read(answer, like, question)


def answer_agrees(expected: Value, answer: str, *, question: str = "", surname: bool = False) -> bool:
    """Return whether an answer in prose states the expected value and no other.

    >>> answer_agrees(DateValue(1841, 5, 12), "13 May 1841 in Port Vannick")
    False
    >>> answer_agrees(EntityValue("Guild of Glaziers"), "It was not the Guild of Glaziers.")
    False

    :param question: the question. Its names and numbers are no answers.
    :param surname: the last word of a name is enough. Right only if no other candidate has it.
    """
    read = read_answer(answer, expected, question=question, surname=surname)
    return read is not None and values_agree(expected, read)


def _marked(text: str) -> str:
    """Return the part after the last `answer:`, `the answer is`, or `therefore`."""
    for match in reversed(list(_MARK.finditer(text))):
        if rest := text[match.end() :].strip():
            return rest
    return text


def _read_scalar(answer: str, like: ScalarValue, question: str, *, surname: bool) -> ScalarValue | None:
    match like:
        case BoolValue():
            return None if is_uncertain(answer) else _read_truth(answer)
        case NumberValue():
            return read_number_answer(answer, like, question)
        case DateValue():
            return read_date_answer(answer, like, question)
        case EntityValue(name):
            read = _read_name(answer, name, question, surname=surname)
            return None if read is None else EntityValue(read)
        case TextValue(wanted):
            read = _read_name(answer, wanted, question, surname=False)
            return None if read is None else TextValue(read)


def _read_truth(answer: str) -> BoolValue | None:
    """Return the truth of an answer that begins or ends with yes or no, or consists of "It was not."."""
    first = answer[slice(*next(iter(sentences(answer)), (0, 0)))].lstrip(_OPENING)
    if match := _TRUTH.match(first):
        truth = match["true"] is not None
        rest = answer[match.end() :].strip(" ,.;:!-\n")
        short = _SHORT_TRUTH.match(rest)
        opposite = _OPPOSITE[truth].search(rest)
        contradicts = short and (not (short["negated"] or short["neither"])) is not truth
        return None if opposite or contradicts else BoolValue(truth)
    if short := _SHORT_TRUTH.match(first):
        return BoolValue(not (short["negated"] or short["neither"]))
    final = _FINAL_TRUTH.search(answer)
    return BoolValue(final["truth"].lower() == "yes") if final else None


def _read_name(answer: str, name: str, question: str, *, surname: bool) -> str | None:
    """Return the name if the answer states it, else the name that a short answer consists of."""
    # A question that offers the name as an alternative offers others, too.
    offered = NameReader(question).find(name) if question else []
    reader = NameReader(answer, "" if offered else question)
    name_spans = reader.find(name, surname=surname)
    masked = mask(answer, name_spans)
    if is_uncertain(masked) or is_denied(masked) or has_alternatives(masked):
        return None
    if name_spans:
        return name if reader.is_answer(name_spans, masked) else None
    spans = sentences(answer)
    first = answer[slice(*spans[0])] if spans else ""
    core = bare_text(first[lead.end() if (lead := _LEAD.match(first)) else 0 :])
    negated = not asserted(first)
    return core if core and not negated and core.count(" ") < _MAX_WORDS else None
