"""Programs as nested expressions, from and to lists of steps."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from agentflow.facts import KIND, Comparison, Operator, TranslationStep

Input: TypeAlias = "Expression | str"
"""Input of an operation: another one, or a constant."""


class Expression(NamedTuple):
    """An operation with its inputs."""

    operator: Operator
    inputs: "tuple[Expression | str, ...]"
    relation: str = ""
    comparison: Comparison = Comparison.EQUAL
    time: str = ""
    """Year to which the relation is limited; empty: any."""


def nested(steps: Sequence[TranslationStep]) -> Expression | None:
    """Return the last step with all that it refers to; `None` for steps that refer to no earlier one."""
    made: list[Expression] = []
    for step in steps:
        inputs: list[Expression | str] = []
        for text in step.inputs:
            if text.startswith("#") and text[1:].isdecimal():
                number = int(text[1:])
                if not 1 <= number <= len(made):
                    return None
                inputs.append(made[number - 1])
            else:
                inputs.append(text)
        made.append(Expression(step.operator, tuple(inputs), step.relation, step.comparison, step.time))
    return made[-1] if made else None


def flattened(expression: Expression) -> tuple[TranslationStep, ...]:
    """Return the steps of an expression; equal parts are one step."""
    steps: dict[TranslationStep, int] = {}

    def add(part: Expression | str) -> str:
        if isinstance(part, str):
            return part
        inputs = tuple(add(each) for each in part.inputs)
        step = TranslationStep(part.operator, inputs, part.relation, part.comparison, part.time)
        return f"#{steps.setdefault(step, len(steps) + 1)}"

    add(expression)
    return tuple(steps)


def limited_to(expression: Expression, year: str) -> Expression:
    """Return an expression whose outermost relations are limited to a year: `in 1900, how many inhabitants …`."""
    if expression.relation:
        return expression if expression.relation == KIND else expression._replace(time=year)
    inputs = (limited_to(part, year) if isinstance(part, Expression) else part for part in expression.inputs)
    return expression._replace(inputs=tuple(inputs))
