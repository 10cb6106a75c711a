"""Programs in plain words."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from agentflow.facts._facts import KIND
from agentflow.facts._programs import Comparison, Operator, Program, ProgramInput, ProgramStep
from agentflow.facts._values import DateValue, EntityValue, Value, show_value

_COMPARISONS: Final[Mapping[Comparison, tuple[str, str]]] = {
    Comparison.EQUAL: ("is", "is"),
    Comparison.LESS: ("is less than", "is before"),
    Comparison.MORE: ("is more than", "is after"),
    Comparison.WITHIN: ("is in", "is in"),
}
"""Words for a comparison with a number and with a date."""
_DATED: Final = re.compile(r"\b(year|date|day|decade|century)\b")


def describe_program(program: Program, names: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the steps of a program in plain words, one text each, numbered from 1.

    >>> program = (
    ...     ProgramStep(Operator.FOLLOW, (EntityValue("Brenn Light"),), "first keeper"),
    ...     ProgramStep(Operator.FOLLOW, (1,), "birthplace"),
    ... )
    >>> describe_program(program)
    ('(1) the first keeper of Brenn Light', '(2) the birthplace of (1)')

    :param names: names or descriptions to use for entities, and descriptions of closed sets by their ids.
    """
    known = names or {}
    return tuple(f"({number}) {_step(step, known)}" for number, step in enumerate(program, 1))


_SERIES: Final[Mapping[Operator, tuple[str, str]]] = {
    Operator.AND: ("what is in {}", "and in"),
    Operator.OR: ("{}", "or"),
    Operator.COUNT: ("the number of {}", "and"),
    Operator.SUM: ("the sum of {}", "and"),
    Operator.DIFFERENCE: ("the difference between {}", "and"),
    Operator.BEFORE: ("whether {}", "is before"),
    Operator.GREATER: ("whether {}", "is greater than"),
    Operator.EQUAL: ("whether {}", "is the same as"),
    Operator.LIST: ("the list of {}", "and"),
}
"""Words for operations without a relation, and between their inputs."""


def _step(step: ProgramStep, names: Mapping[str, str]) -> str:
    inputs = [_input(given, names) for given in step.inputs]
    time = f" in {show_value(DateValue(step.time))}" if step.time else ""
    match step.operator:
        case Operator.FOLLOW:
            return f"the {step.relation} of {_series(inputs, 'and')}{time}"
        case Operator.FIND if step.relation == KIND:
            return f"each {_series(inputs, 'or')}"
        case Operator.FIND:
            return f"what has {_series(inputs, 'or')} as its {step.relation}{time}"
        case Operator.MEMBERS:
            return f"all {names.get(step.name, step.name)}"
        case Operator.WHERE:
            return f"those of {_series(inputs[:1], 'and')} whose {step.relation}{time} {_condition(step, inputs)}"
        case Operator.GREATEST | Operator.LEAST:
            dated = _DATED.search(step.relation) is not None
            first = step.operator is Operator.LEAST
            rank = ("earliest" if first else "latest") if dated else ("smallest" if first else "greatest")
            return f"the one of {_series(inputs, 'and')} with the {rank} {step.relation}{time}"
        case Operator.LIST if step.relation:
            return f"the list of {_series(inputs, 'and')}, each with its {step.relation}{time}"
        case _:
            words, between = _SERIES[step.operator]
            return words.format(_series(inputs, between))


def _condition(step: ProgramStep, inputs: Sequence[str]) -> str:
    dated = any(isinstance(given, DateValue) for given in step.inputs)
    if step.comparison is Comparison.WITHIN and len(inputs) > 2:
        return f"is between {inputs[1]} and {inputs[2]}, both included"
    return f"{_COMPARISONS[step.comparison][dated]} {_series(inputs[1:], 'and')}"


def _input(given: ProgramInput, names: Mapping[str, str]) -> str:
    return f"({given})" if isinstance(given, int) else _named(given, names)


def _named(value: Value, names: Mapping[str, str]) -> str:
    shown = show_value(value)
    return names.get(shown, shown) if isinstance(value, EntityValue) else shown


def _series(inputs: Sequence[str], word: str) -> str:
    if len(inputs) < 3:
        return f" {word} ".join(inputs)
    return f"{', '.join(inputs[:-1])} {word} {inputs[-1]}"
