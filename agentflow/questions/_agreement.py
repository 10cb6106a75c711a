"""Answers of drafts: computed from their steps, and compared under types, units, precision and aliases."""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal, DivisionByZero, InvalidOperation
from typing import Any, Final

from agentflow.questions._drafts import Draft, DraftStep
from agentflow.text import is_content_word, quantity_of
from agentflow.values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    Value,
    ValueKind,
    answer_agrees,
    infer_value,
    normalise_name,
    parse_value,
    show_value,
    texts_agree,
)

FUNCTIONS: Final = (
    "days(s1, s2) months(s1, s2) years(s1, s2) sum(s1, ...) count(s1, ...) min(s1, ...) max(s1, ...) earliest(s1, ...) latest(s1, ...) "
    "order('name', s1, 'name', s2, ...) argmin(the same) argmax(the same) s1 - s2, s1 / s2, s1 < s2, where s1 is the value of step 1"
)
"""Functions of an expression, for prompts."""
MAX_LENGTH: Final = 200
_INEXACT: Final = re.compile(
    r"\b(?:more than|less than|fewer than|greater than|over|under|above|below|at least|at most|up to|about|around|roughly|nearly"
    r"|almost|approximately|approx|circa|ca|some|not quite|close to|no more than|no less than|or (?:more|less|so))\b\.?[\s$€£~]*$"
    r"|[~≈<>≥≤]\s*$",
    re.IGNORECASE,
)
_INEXACT_AFTER: Final = re.compile(r"^\s*(?:\+|or (?:more|less|so)\b|plus\b)", re.IGNORECASE)
_BEFORE: Final = 24
"""Characters before a value in which a word bounds it."""
_ISO_DATE: Final = re.compile(r"(?<![\w'\"-])\d{4}-\d{2}-\d{2}(?![\w'\"-])")
_VERSION: Final = re.compile(r"(.*?)v?(\d+(?:\.\d+)+)")
"""A name that ends with a version."""
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Decimal, Decimal], Decimal]]] = {
    ast.Add: Decimal.__add__,
    ast.Sub: Decimal.__sub__,
    ast.Mult: Decimal.__mul__,
    ast.Div: Decimal.__truediv__,
}
_LABELLED: Final = ("argmin", "argmax", "order")
"""Functions whose arguments are labels and values by turns."""
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class ComputationError(Exception):
    """An expression can't be evaluated: one line."""


def is_inexact(quote: str, value: str) -> bool:
    """Return whether a quote gives a value as a bound or roughly, everywhere that it gives it.

    >>> is_inexact("more than 57,700 packages", "57,700"), is_inexact("57,703 packages", "57,703")
    (True, False)
    """
    spans = [match.span() for match in re.finditer(re.escape(value), quote, re.IGNORECASE)] if value else []
    return bool(spans) and all(
        _INEXACT.search(quote[max(0, start - _BEFORE) : start]) or _INEXACT_AFTER.match(quote[end:])
        for start, end in spans
    )


def compute(steps: Sequence[DraftStep], *, full: bool = False) -> dict[int, Value]:
    """Return the values of all computed steps, by their numbers from 1.

    See docs/questions.md.

    :param full: only full months and years are asked for; a rest of days is left out.
    :raises ComputationError: one line, if one can't be computed.
    """
    results: dict[int, Value] = {}
    for number, step in enumerate(steps, 1):
        if step.computes:
            results[number] = _Evaluation(steps, results, number, full=full).value(step.computes)
    return results


class _Evaluation:
    """Evaluates the expression of one step."""

    def __init__(
        self, steps: Sequence[DraftStep], results: Mapping[int, Value], number: int, *, full: bool
    ) -> None:
        self._steps = steps
        self._results = results
        self._number = number
        self._full = full

    def value(self, expression: str) -> Value:
        """Return the value of an expression."""
        if len(expression) > MAX_LENGTH:
            raise ComputationError(f"the expression is longer than {MAX_LENGTH} characters")
        try:
            tree = ast.parse(_ISO_DATE.sub(r"'\g<0>'", expression.strip()), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ComputationError(f"{expression!r} is no expression") from None
        try:
            return self._evaluate(tree)
        except (DivisionByZero, InvalidOperation, OverflowError, ZeroDivisionError, ValueError):
            raise ComputationError(f"{expression!r} has no value") from None
        except RecursionError:
            raise ComputationError("the expression is nested too deeply") from None

    def _evaluate(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return NumberValue(Decimal(str(number)))
            case ast.Constant(value=str() as text):
                return self._literal(text)
            case ast.Name(id=name):
                return self._step(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = self._number_of(operand)
                return NumberValue(-number.amount, number.unit)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
                return self._arithmetic(self._number_of(left), sign, self._number_of(right))
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARISONS:
                return BoolValue(
                    _COMPARISONS[type(sign)](_key(self._evaluate(left)), _key(self._evaluate(right)))
                )
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                value_of = self._labelled if name in _LABELLED else self._evaluate
                values = [value_of(argument) for argument in arguments]
                if name == "order" and arguments and all(map(_is_label, arguments[::2])):
                    return _ordered(values)
                return self._call(name, values)
            case _:
                raise ComputationError(f"{ast.unparse(node)} is not allowed; use {FUNCTIONS}")

    def _labelled(self, node: ast.expr) -> Value:
        """Return the value of an argument that may be a label."""
        return (
            EntityValue(node.id) if isinstance(node, ast.Name) and _is_label(node) else self._evaluate(node)
        )

    def _step(self, name: str) -> Value:
        number = int(name[1:]) if re.fullmatch(r"s\d{1,3}", name) else self._named(name)
        if not 0 < number < self._number:
            raise ComputationError(f"{name} is not an earlier step")
        if number in self._results:
            return self._results[number]
        step = self._steps[number - 1]
        if not step.value:
            raise ComputationError(f"step {number} states no value")
        if is_inexact(step.quote, step.value):
            raise ComputationError(
                f"step {number} computes with {step.value}, which its quote bounds or rounds"
            )
        return _stated(step.value)

    def _named(self, name: str) -> int:
        """Return the number of the earlier step whose value is a name; 0: none."""
        earlier = enumerate(self._steps[: self._number - 1], 1)
        return next((number for number, step in earlier if step.value == name), 0)

    def _literal(self, text: str) -> Value:
        """Return the value of a text: a label, or a date that an earlier step has given."""
        value = _stated(text)
        earlier_values = [_stated(step.value) for step in self._steps[: self._number - 1] if step.value]
        if isinstance(value, DateValue) and value not in earlier_values:
            raise ComputationError(f"{text} is the value of no earlier step")
        return value

    def _number_of(self, node: ast.expr) -> NumberValue:
        value = self._evaluate(node)
        if not isinstance(value, NumberValue):
            raise ComputationError(f"{ast.unparse(node)} is no number")
        return value

    @staticmethod
    def _arithmetic(left: NumberValue, sign: ast.operator, right: NumberValue) -> NumberValue:
        same = left.unit.lower() == right.unit.lower()
        if isinstance(sign, ast.Add | ast.Sub):
            if left.unit and right.unit and not same:
                raise ComputationError(f"{left.unit} and {right.unit} can't be added or subtracted")
            unit = left.unit or right.unit
        elif isinstance(sign, ast.Div) and same:
            unit = ""
        else:
            unit = left.unit or right.unit if not (left.unit and right.unit) else ""
        return NumberValue(_OPERATORS[type(sign)](left.amount, right.amount), unit)

    def _call(self, name: str, values: Sequence[Value]) -> Value:
        if not values:
            raise ComputationError(f"{name}() has no arguments")
        match name:
            case "days" | "months" | "years" if len(values) == 2:
                return _duration(name, _date(values[0]), _date(values[1]), full=self._full)
            case "count":
                return NumberValue(Decimal(len({show_value(value) for value in values})))
            case "sum":
                numbers = [_amount(value) for value in values]
                return NumberValue(sum((number.amount for number in numbers), Decimal()), numbers[0].unit)
            case "min" | "earliest":
                return min(values, key=_key)
            case "max" | "latest":
                return max(values, key=_key)
            case "order":
                return ListValue(tuple(_scalar(value) for value in values), ordered=True)
            case "argmin" | "argmax" if len(values) % 2 == 0:
                return _arg(name, values)
            case _:
                raise ComputationError(f"{name} with {len(values)} arguments is unknown; use {FUNCTIONS}")


def _is_label(node: ast.expr) -> bool:
    """Return whether an argument names something, and is no step."""
    if isinstance(node, ast.Name):
        return not re.fullmatch(r"s\d{1,3}", node.id)
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and isinstance(_stated(node.value), EntityValue)
    )


def _ordered(values: Sequence[Value]) -> ListValue:
    """Return labels in the order of their values, which follow them by turns."""
    pairs = sorted(zip(values[::2], values[1::2], strict=True), key=lambda pair: _key(pair[1]))
    return ListValue(tuple(_scalar(label) for label, _ in pairs), ordered=True)


def _stated(text: str) -> Value:
    """Return the number, date or name that a text is."""
    values = (parse_value(text, kind) for kind in (ValueKind.NUMBER, ValueKind.DATE))
    return next((value for value in values if value is not None), EntityValue(" ".join(text.split())))


def _arg(name: str, values: Sequence[Value]) -> Value:
    pairs = list(zip(values[::2], values[1::2], strict=True))
    best = (min if name == "argmin" else max)(pairs, key=lambda pair: _key(pair[1]))
    if sum(_key(value) == _key(best[1]) for _, value in pairs) > 1:
        raise ComputationError(f"{name} has several results")
    return best[0]


def _duration(unit: str, begin: DateValue, end: DateValue, *, full: bool) -> NumberValue:
    """Return the time between two dates in whole units; both must be stated as finely as the unit, and leave no rest.

    :param full: leave a rest out, if both are stated to the day.
    :raises ComputationError: if they do not.
    """
    if _key(begin) > _key(end):
        begin, end = end, begin
    fine = {"days": (begin.day, end.day), "months": (begin.month, end.month), "years": (1, 1)}[unit]
    if not all(fine):
        raise ComputationError(
            f"{unit} can't be counted between dates that are not stated to the {unit[:-1]}"
        )
    if unit == "days":
        first, last = date(begin.year, begin.month, begin.day), date(end.year, end.month, end.day)
        return NumberValue(Decimal((last - first).days), "days")
    months = 12 * (end.year - begin.year) + end.month - begin.month
    if full and begin.day and end.day:
        months -= end.day < begin.day
        return NumberValue(Decimal(months if unit == "months" else months // 12), unit)
    if (begin.day and end.day and begin.day != end.day) or bool(begin.day) != bool(end.day):
        raise ComputationError(f"a rest of days is left between the dates; ask for days, or for whole {unit}")
    if unit == "months":
        return NumberValue(Decimal(months), "months")
    if bool(begin.month) != bool(end.month) or (begin.month and months % 12):
        raise ComputationError(
            "a rest of months is left between the dates; ask for months, or for years and months"
        )
    return NumberValue(Decimal(end.year - begin.year), "years")


def _date(value: Value) -> DateValue:
    if isinstance(value, NumberValue) and not value.unit and value.amount == int(value.amount):
        read = parse_value(str(int(value.amount)), ValueKind.DATE)
        value = value if read is None else read
    if not isinstance(value, DateValue):
        raise ComputationError(f"{show_value(value)} is no date")
    return value


def _amount(value: Value) -> NumberValue:
    if not isinstance(value, NumberValue):
        raise ComputationError(f"{show_value(value)} is no number")
    return value


def _scalar(value: Value) -> ScalarValue:
    if isinstance(value, ListValue):
        raise ComputationError("a list can't be in a list")
    return value


def _key(value: Value) -> tuple[Any, ...]:
    """Return a key by which values of one type are ordered."""
    match value:
        case NumberValue(amount):
            return ("number", amount)
        case DateValue(year, month, day):
            return ("date", year, month, day)
        case EntityValue(name) if match := _VERSION.fullmatch(name):
            return ("version", match[1].casefold(), *map(int, match[2].split(".")))
        case _:
            return ("text", show_value(value).casefold())


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
