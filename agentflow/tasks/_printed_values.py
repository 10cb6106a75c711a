"""Typed values as answers of tasks, and as programs print them: one number, name, date or truth, or a short list."""

import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import msgspec

from agentflow._decoding import DECODE_ERRORS
from agentflow.tasks._contract import TaskVerdict, VerifiableTask
from agentflow.tasks._data_programs import ProgramRun
from agentflow.values import (
    BoolValue,
    ListValue,
    NumberValue,
    Value,
    ValueKind,
    answer_agrees,
    parse_value,
    values_agree,
)

Json: TypeAlias = Any
"""A JSON value."""

MAX_DECIMALS: Final = 4
"""Maximum decimals of a number that is an answer."""
_MAX_ITEMS: Final = 20
_MAX_WORDS: Final = 12
_REPR: Final = re.compile(r"[\[\]{}<>]|^\w+\(|\bdtype\b")
"""Text of an object rather than a name."""


def value_of(output: str, *, ordered: bool = False) -> Value | None:
    """Return the value that a program printed, or `None` if it is none.

    >>> value_of("[3, 5]")
    ListValue(items=(NumberValue(amount=Decimal('3'), unit=''), NumberValue(amount=Decimal('5'), unit='')), ordered=False)
    >>> value_of("nan") is None
    True
    """
    text = output.strip()
    if not text or text.lower() in ("nan", "none", "null", "inf", "-inf", "[]"):
        return None
    try:
        decoded: Json = msgspec.json.decode(text.replace("'", '"') if text.startswith("[") else text)
    except DECODE_ERRORS:
        return _scalar({"True": True, "False": False}.get(text, text))
    match decoded:
        case [*items]:
            scalars = [_scalar(item) for item in items]
            whole = tuple(
                scalar for scalar in scalars if scalar is not None and not isinstance(scalar, ListValue)
            )
            complete = 0 < len(whole) == len(scalars) <= _MAX_ITEMS
            return ListValue(whole, ordered) if complete else None
        case {**_rest}:
            return None
        case _:
            return _scalar(decoded)


def _scalar(value: Json) -> Value | None:
    match value:
        case bool():
            return BoolValue(value)
        case int() | float():
            return _number(repr(value))
        case str() if value.strip() and not _REPR.search(value):
            date = parse_value(value, ValueKind.DATE) if re.search(r"\d{4}-\d\d", value) else None
            if date is not None:
                return date
            return parse_value(value, ValueKind.ENTITY) if len(value.split()) <= _MAX_WORDS else None
        case _:
            return None


def _number(text: str) -> NumberValue | None:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        return None
    return NumberValue(amount) if amount.is_finite() else None


def too_precise(value: Value) -> bool:
    """Tell whether a number has more decimals than an answer would state."""
    items = value.items if isinstance(value, ListValue) else (value,)
    exponents = [item.amount.as_tuple().exponent for item in items if isinstance(item, NumberValue)]
    return any(isinstance(exponent, int) and -exponent > MAX_DECIMALS for exponent in exponents)


def same_output(run: ProgramRun, other: ProgramRun, *, ordered: bool = False) -> bool:
    """Tell whether two runs printed the same value."""
    first, second = value_of(run.output, ordered=ordered), value_of(other.output, ordered=ordered)
    if first is None or second is None:
        return first is None and second is None and run.output == other.output
    return values_agree(first, second)


def answer_verdict(task: VerifiableTask, answer: str) -> TaskVerdict:
    """Compare an answer with the typed values that a task expects."""
    if not answer.strip():
        return TaskVerdict(passed=False, reasons=("there is no answer",))
    question = str(task.metadata["question"])
    failed = [
        check.says
        for check in task.verifier
        if not answer_agrees(msgspec.convert(check.expected, Value), answer, question=question)
    ]
    return TaskVerdict(passed=not failed, reasons=tuple(failed))
