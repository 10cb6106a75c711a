"""Programs: how the answer to a question is computed from facts."""

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from agentflow.facts._values import Value


class Operator(StrEnum):
    """Operation of a program step. The set is closed."""

    FOLLOW = "follow"
    """Values of a relation of each subject in the input."""
    FIND = "find"
    """Subjects whose relation has a value of the input."""
    MEMBERS = "members"
    """Members of the closed set with the id `name`."""
    WHERE = "where"
    """Subjects of the first input whose relation compares as `comparison` with the second input."""
    AND = "and"
    """Values in all inputs."""
    OR = "or"
    """Values in any input."""
    GREATEST = "greatest"
    """Subjects of the input with the greatest, or the latest, value of the relation."""
    LEAST = "least"
    """Subjects of the input with the least, or the earliest, value of the relation."""
    COUNT = "count"
    """Number of values in the input."""
    SUM = "sum"
    """Sum of the numbers in the inputs."""
    DIFFERENCE = "difference"
    """The greater minus the smaller of two numbers, or the years between two dates."""
    BEFORE = "before"
    """True if the first date is earlier than the second."""
    GREATER = "greater"
    """True if the first number is greater, or the first date later, than the second."""
    EQUAL = "equal"
    """True if both inputs have the same values."""
    LIST = "list"
    """All values of the input as one list; with a relation, each followed by its value of the relation."""


class Comparison(StrEnum):
    """Comparison of a value with a bound."""

    EQUAL = "equal"
    """The same."""
    LESS = "less"
    """Smaller, or earlier."""
    MORE = "more"
    """Greater, or later."""
    WITHIN = "within"
    """Within a range: from the second input to the third, both included; with one bound, within its year or month."""


ProgramInput: TypeAlias = int | Value
"""Number of an earlier step, from 1, or a constant."""


class ProgramStep(Struct, frozen=True, omit_defaults=True):
    """A step of a program."""

    operator: Operator
    """Operation."""
    inputs: tuple[ProgramInput, ...] = ()
    """Inputs, in order."""
    relation: str = ""
    """Relation, of `follow`, `find`, `where`, `greatest`, `least` and `list`."""
    comparison: Comparison = Comparison.EQUAL
    """Comparison, of `where`."""
    name: str = ""
    """Id of a closed set, of `members`."""
    time: int = 0
    """Year to which the facts are limited; 0: any."""


Program: TypeAlias = tuple[ProgramStep, ...]
"""Steps in order; the last one gives the answer. A step refers to earlier ones by number."""
