"""Typed values: read from a text that states one, shown, and compared by type.

Training data and scores use this comparison::

    from agentflow.values import ValueKind, answer_agrees, parse_value

    built = parse_value("12 May 1841", ValueKind.DATE)
    assert built and answer_agrees(built, "It was built on May 12, 1841.")
    assert not answer_agrees(built, "13 May 1841 in Port Vannick")
"""

from agentflow.values._names import normalise_name
from agentflow.values._reading import answer_agrees, read_answer
from agentflow.values._untyped import infer_value, texts_agree
from agentflow.values._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    Value,
    ValueKind,
    kind_of,
    parse_value,
    show_value,
    values_agree,
)

__all__ = [
    "BoolValue",
    "DateValue",
    "EntityValue",
    "ListValue",
    "NumberValue",
    "ScalarValue",
    "TextValue",
    "Value",
    "ValueKind",
    "answer_agrees",
    "infer_value",
    "kind_of",
    "normalise_name",
    "parse_value",
    "read_answer",
    "show_value",
    "texts_agree",
    "values_agree",
]
