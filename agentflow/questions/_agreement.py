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
        """Collect the capitalised names of texts."""
        self._names = frozenset(
            frozenset(filter(_tells, normalise_name(found[0]).split()))
            for text in texts
            for found in _NAME.finditer(text)
        )

    def same(self, name: str, other: str) -> bool:
        """Return whether one name is the other or a short form of it that fits no different name in the texts.

        >>> names = KnownNames(["Debra Lynn married. Ian Murdock wrote it."])
        >>> names.same("Debra", "Debra Lynn"), names.same("Debra", "Ian Murdock")
        (True, False)
        """
        mine, theirs = (frozenset(normalise_name(each).split()) - _TITLES for each in (name, other))
        if not mine or not theirs:
            return False
        if mine == theirs:
            return True
        short, long = sorted((mine, theirs), key=len)
        if not short < long:
            return False
        return all(known <= long or not short <= known or long <= known for known in self._names)


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


def agrees(draft: Draft, said: str, names: KnownNames) -> bool:
    """Return whether an answer states that of a draft, with its unit and precision, and no other.

    Quantities are compared as a whole: one year and nine months are 21 months, and not one year.

    See docs/questions.md.
    """
    said = said.strip()
    if not said:
        return False
    if (in_order := _as_asked(draft, said)) is not None:
        return in_order
    if _swapped(draft, said) or _has_another_unit(draft):
        return False
    value = _measure(draft) or value_of(draft)
    match value:
        case EntityValue(name):
            if _BARE_NAME.fullmatch(said):
                return names.same(name, said)
            return answer_agrees(value, said, question=draft.question) or _same_parts(draft, said)
        case TextValue():
            same_numbers = {*_numbers(draft.answer, draft.question)} == {*_numbers(said, draft.question)}
            return (
                same_numbers and (texts_agree(draft.answer, said) or names.same(draft.answer, said))
            ) or _same_parts(draft, said)
        case ListValue(items, ordered):
            return (
                answer_agrees(value, said, question=draft.question)
                or _same_items(items, said, names, ordered=ordered)
                or _same_parts(draft, said)
            )
        case _:
            return answer_agrees(value, said, question=draft.question)


def _has_another_unit(draft: Draft) -> bool:
    """Return whether the answer is in days although the question asks for weeks, even if both are as long."""
    asked = _ASKED_UNIT.search(draft.question)
    if asked is None or not draft.unit:
        return False
    wanted, given = (quantity_of(Decimal(1), unit) for unit in (asked[1], draft.unit))
    return wanted.known and given.known and (wanted.kind, wanted.factor) != (given.kind, given.factor)


def _measure(draft: Draft) -> NumberValue | None:
    """Return an answer of any type that is a quantity in a known unit, which the question may name."""
    asked = _ASKED_UNIT.search(draft.question)
    unit = draft.unit or ("" if asked is None else asked[1])
    value = parse_value(draft.answer, ValueKind.NUMBER, unit) or infer_value(draft.answer)
    known = isinstance(value, NumberValue) and quantity_of(value.amount, value.unit).known
    return value if isinstance(value, NumberValue) and known else None


def _same_items(items: Iterable[object], said: str, names: KnownNames, *, ordered: bool) -> bool:
    read = infer_value(said)
    others = read.items if isinstance(read, ListValue) else ()
    mine = [item.name for item in items if isinstance(item, EntityValue)]
    theirs = [item.name for item in others if isinstance(item, EntityValue)]
    if not mine or len(mine) != len(theirs) or len(theirs) != len(others):
        return False
    if ordered:
        return all(map(names.same, mine, theirs))
    return all(any(names.same(one, other) for other in theirs) for one in mine)


def _swapped(draft: Draft, said: str) -> bool:
    """Return whether an answer gives the numbers of another one in another order, to other things."""
    mine, theirs = _numbers(draft.answer, draft.question), _numbers(said, draft.question)
    same_parts = Counter(_parts(draft.answer)) == Counter(_parts(said))
    return mine != theirs and Counter(mine) == Counter(theirs) and not same_parts


def _as_asked(draft: Draft, said: str) -> bool | None:
    """Return whether an answer gives bare values in the order in which the question names their labels; `None`: it doesn't say."""
    items, others = (
        [item.strip(" .") for item in _BETWEEN_PARTS.split(text)] for text in (draft.answer, said)
    )
    labelled = [item.casefold().rpartition(":") for item in items if item]
    question = draft.question.casefold()
    places = [question.find(label) if label else -1 for label, _, _ in labelled]
    if len({*places}) < len(places) or -1 in places:
        return None
    asked = [value.strip() for _, (_, _, value) in sorted(zip(places, labelled, strict=True))]
    given = [other.casefold() for other in others if other]
    return asked == given if sorted(asked) == sorted(given) else None


def _same_parts(draft: Draft, said: str) -> bool:
    """Return whether answers have the same parts, of which one may repeat words of the question: `15.4` and `row policies: 15.4`.

    Parts that repeat words stand in the same order.
    """
    mine, theirs = _parts(draft.answer), _parts(said)
    asked = frozenset(_WORD.findall(draft.question.lower()))
    turned, others = ({*_WORD.findall(text.lower())} & _TURNS - asked for text in (draft.answer, said))
    if not mine or len(mine) != len(theirs) or turned != others:
        return False

    def same(one: frozenset[str], other: frozenset[str]) -> bool:
        more = one ^ other
        return one == other or (
            (one < other or other < one) and more <= asked and not any(map(_NUMBER.search, more))
        )

    if len(mine) > 1 and all(
        _bare_number(one, other, asked) for one, other in zip(mine, theirs, strict=True)
    ):
        return True
    return all(map(same, mine, theirs)) or Counter(mine) == Counter(theirs)


def _bare_number(labelled: frozenset[str], bare: frozenset[str], asked: frozenset[str]) -> bool:
    """Return whether a part is the number of another one, whose other words are those of the question."""
    mine, theirs = (
        [word for word in part if any(map(str.isdigit, word)) and word not in asked]
        for part in (labelled, bare)
    )
    rest = (labelled | bare) - {*mine}
    return (
        len(bare) <= 2
        and len(mine) == 1
        and mine == theirs
        and all({word, f"{word}s", word.rstrip("s")} & asked for word in rest)
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
    numbers = (found.replace(",", "").rstrip(".") for found in _NUMBER.findall(_ITEM_NUMBER.sub(" ", text)))
    return [number for number in numbers if number not in question]
