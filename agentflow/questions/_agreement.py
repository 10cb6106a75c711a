"""Agreement of answers under types, units, precision and aliases."""

import re
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from agentflow.questions._drafts import Draft
from agentflow.text import is_content_word, quantity_of
from agentflow.values import (
    EntityValue,
    ListValue,
    NumberValue,
    TextValue,
    Value,
    ValueKind,
    answer_agrees,
    infer_value,
    normalise_name,
    parse_value,
    texts_agree,
)

_NUMBER: Final = re.compile(r"\d[\d.,]*")
_ITEM_NUMBER: Final = re.compile(r"(?:^|(?<=[\s:;,]))\d{1,2}[.)](?=\s)")
_NAME: Final = re.compile(
    r"[A-Z][\w'’&-]*(?:[ \t]+(?:(?:of|the|de|van|von)[ \t]+)*(?:[A-Z]\.|[A-Z\d][\w'’&.-]*\w))*"
)
_BARE_NAME: Final = re.compile(r"(?:[Tt]he )?[A-Z\d][^\s,;:.!?]*(?: [^\s,;:!?]+){0,5}\.?")
"""An answer that consists of a name."""
_TITLES: Final = frozenset({"the", "mr", "mrs", "ms", "dr", "prof", "sir", "st"})
_ASKED_UNIT: Final = re.compile(
    r"\bhow many (?:full |whole |more )?(days|weeks|months|years)\b", re.IGNORECASE
)
_TURNS: Final = frozenset({"not", "no", "never", "nor", "without", "except", "before", "after", "until"})
"""Words that turn what stands beside them."""
_WORD: Final = re.compile(r"[^\W_]+(?:[._-][^\W_]+)*")
_BETWEEN_PARTS: Final = re.compile(r"[,;]\s|\band\b|\n", re.IGNORECASE)


class KnownNames:
    """Names in texts, by which a short form of a name is distinguished from another name."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._names = frozenset(
            frozenset(filter(_tells, normalise_name(match[0]).split()))
            for text in texts
            for match in _NAME.finditer(text)
        )

    def same(self, name: str, other: str) -> bool:
        """Return whether one name is the other or a short form of it that fits no different name in the texts.

        >>> names = KnownNames(["Debra Lynn married. Ian Murdock wrote it."])
        >>> names.same("Debra", "Debra Lynn"), names.same("Debra", "Ian Murdock")
        (True, False)
        """
        mine, theirs = (frozenset(normalise_name(text).split()) - _TITLES for text in (name, other))
        if not mine or not theirs:
            return False
        if mine == theirs:
            return True
        short, long = sorted((mine, theirs), key=len)
        if not short < long:
            return False
        return all(listed <= long or not short <= listed or long <= listed for listed in self._names)


def _tells(word: str) -> bool:
    """Return whether a word of a capitalised phrase can be part of a name: the first word of a sentence may not be."""
    return is_content_word(word) or any(map(str.isdigit, word))


def value_of(draft: Draft) -> Value:
    """Return the answer of a draft with its type; a text if it can't be read as that.

    See docs/questions.md.
    """
    value = parse_value(draft.answer, draft.answer_type, draft.unit)
    if isinstance(value, NumberValue | ListValue) or (
        value is not None and draft.answer_type is not ValueKind.LIST
    ):
        return value
    return infer_value(draft.answer) if draft.answer_type is ValueKind.LIST else TextValue(draft.answer)


def agrees(draft: Draft, answer: str, names: KnownNames) -> bool:
    """Return whether an answer states that of a draft, with its unit and precision, and no other.

    Quantities are compared as a whole: one year and nine months are 21 months, and not one year.

    See docs/questions.md.
    """
    answer = answer.strip()
    if not answer:
        return False
    if (in_order := _as_asked(draft, answer)) is not None:
        return in_order
    if _swapped(draft, answer) or _has_another_unit(draft):
        return False
    value = _measure(draft) or value_of(draft)
    match value:
        case EntityValue(name):
            if _BARE_NAME.fullmatch(answer):
                return names.same(name, answer)
            return answer_agrees(value, answer, question=draft.question) or _same_parts(draft, answer)
        case TextValue():
            same_numbers = {*_numbers(draft.answer, draft.question)} == {*_numbers(answer, draft.question)}
            return (
                same_numbers and (texts_agree(draft.answer, answer) or names.same(draft.answer, answer))
            ) or _same_parts(draft, answer)
        case ListValue(items, ordered):
            return (
                answer_agrees(value, answer, question=draft.question)
                or _same_items(items, answer, names, ordered=ordered)
                or _same_parts(draft, answer)
            )
        case _:
            return answer_agrees(value, answer, question=draft.question)


def _has_another_unit(draft: Draft) -> bool:
    """Return whether the answer is in days although the question asks for weeks, even if both are as long."""
    unit_match = _ASKED_UNIT.search(draft.question)
    if unit_match is None or not draft.unit:
        return False
    wanted, stated = (quantity_of(Decimal(1), unit) for unit in (unit_match[1], draft.unit))
    return wanted.known and stated.known and (wanted.kind, wanted.factor) != (stated.kind, stated.factor)


def _measure(draft: Draft) -> NumberValue | None:
    """Return an answer of any type that is a quantity in a known unit, which the question may name."""
    unit_match = _ASKED_UNIT.search(draft.question)
    unit = draft.unit or ("" if unit_match is None else unit_match[1])
    value = parse_value(draft.answer, ValueKind.NUMBER, unit) or infer_value(draft.answer)
    is_known = isinstance(value, NumberValue) and quantity_of(value.amount, value.unit).known
    return value if isinstance(value, NumberValue) and is_known else None


def _same_items(items: Iterable[object], answer: str, names: KnownNames, *, ordered: bool) -> bool:
    read = infer_value(answer)
    others = read.items if isinstance(read, ListValue) else ()
    mine = [item.name for item in items if isinstance(item, EntityValue)]
    theirs = [item.name for item in others if isinstance(item, EntityValue)]
    if not mine or len(mine) != len(theirs) or len(theirs) != len(others):
        return False
    if ordered:
        return all(map(names.same, mine, theirs))
    return all(any(names.same(name, other) for other in theirs) for name in mine)


def _swapped(draft: Draft, answer: str) -> bool:
    """Return whether an answer gives the numbers of another one in another order, to other things."""
    mine, theirs = _numbers(draft.answer, draft.question), _numbers(answer, draft.question)
    same_parts = Counter(_parts(draft.answer)) == Counter(_parts(answer))
    return mine != theirs and Counter(mine) == Counter(theirs) and not same_parts


def _as_asked(draft: Draft, answer: str) -> bool | None:
    """Return whether an answer gives bare values in the order in which the question names their labels; `None`: it doesn't say."""
    items, others = (
        [item.strip(" .") for item in _BETWEEN_PARTS.split(text)] for text in (draft.answer, answer)
    )
    labelled = [item.casefold().rpartition(":") for item in items if item]
    question = draft.question.casefold()
    positions = [question.find(label) if label else -1 for label, _, _ in labelled]
    if len({*positions}) < len(positions) or -1 in positions:
        return None
    expected_values = [value.strip() for _, (_, _, value) in sorted(zip(positions, labelled, strict=True))]
    stated_values = [other.casefold() for other in others if other]
    return expected_values == stated_values if sorted(expected_values) == sorted(stated_values) else None


def _same_parts(draft: Draft, answer: str) -> bool:
    """Return whether answers have the same parts, of which one may repeat words of the question: `15.4` and `row policies: 15.4`.

    Parts that repeat words stand in the same order.
    """
    mine, theirs = _parts(draft.answer), _parts(answer)
    words = frozenset(_WORD.findall(draft.question.lower()))
    turned, others = ({*_WORD.findall(text.lower())} & _TURNS - words for text in (draft.answer, answer))
    if not mine or len(mine) != len(theirs) or turned != others:
        return False

    def same(part: frozenset[str], other: frozenset[str]) -> bool:
        more = part ^ other
        return part == other or (
            (part < other or other < part) and more <= words and not any(map(_NUMBER.search, more))
        )

    if len(mine) > 1 and all(
        _bare_number(labelled, bare, words) for labelled, bare in zip(mine, theirs, strict=True)
    ):
        return True
    return all(map(same, mine, theirs)) or Counter(mine) == Counter(theirs)


def _bare_number(labelled: frozenset[str], bare: frozenset[str], question_words: frozenset[str]) -> bool:
    """Return whether a part is the number of another one, whose other words are those of the question."""
    mine, theirs = (
        [word for word in part if any(map(str.isdigit, word)) and word not in question_words]
        for part in (labelled, bare)
    )
    rest = (labelled | bare) - {*mine}
    return (
        len(bare) <= 2
        and len(mine) == 1
        and mine == theirs
        and all({word, f"{word}s", word.rstrip("s")} & question_words for word in rest)
    )


def _parts(text: str) -> list[frozenset[str]]:
    """Return the words of each item of a list."""
    items = (
        frozenset(word for word in _WORD.findall(item.lower()) if _tells(word))
        for item in _BETWEEN_PARTS.split(text)
    )
    return [item for item in items if item]


def _numbers(text: str, question: str) -> list[str]:
    """Return the numbers of a text, without those of the question and those that number its items."""
    numbers = (digits.replace(",", "").rstrip(".") for digits in _NUMBER.findall(_ITEM_NUMBER.sub(" ", text)))
    return [number for number in numbers if number not in question]
