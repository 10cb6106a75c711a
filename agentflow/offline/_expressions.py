"""Programs as nested expressions, from and to lists of steps."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from agentflow.facts import Comparison, Operator, TranslationStep

Input: TypeAlias = "Expression | str"
"""Input of an operation: another one, or a constant."""


class Expression(NamedTuple):
    """An operation with its inputs."""

    operator: Operator
    inputs: "tuple[Expression | str, ...]"
    relation: str = ""
    comparison: Comparison = Comparison.EQUAL


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
        made.append(Expression(step.operator, tuple(inputs), step.relation, step.comparison))
    return made[-1] if made else None


def flattened(expression: Expression) -> tuple[TranslationStep, ...]:
    """Return the steps of an expression; equal parts are one step."""
    steps: dict[TranslationStep, int] = {}

    def add(part: Expression | str) -> str:
        if isinstance(part, str):
            return part
        inputs = tuple(add(each) for each in part.inputs)
        step = TranslationStep(part.operator, inputs, part.relation, part.comparison)
        return f"#{steps.setdefault(step, len(steps) + 1)}"

    add(expression)
    return tuple(steps)
