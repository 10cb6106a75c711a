"""Skeletons: questions before they have words."""

from enum import StrEnum

from msgspec import Struct

from agentflow.facts._programs import Program
from agentflow.facts._values import Value


class QuestionKind(StrEnum):
    """Kind of a question. The set is closed."""

    BRIDGE = "bridge"
    """A chain of relations over hidden entities."""
    COMPARISON = "comparison"
    """Choice of the greatest, latest, … of several named or described things."""
    INTERSECTION = "intersection"
    """The one thing that meets several conditions."""
    AGGREGATE = "aggregate"
    """Sum or extreme over a closed set."""
    COUNT = "count"
    """Number of members of a closed set that meet a condition."""
    TEMPORAL = "temporal"
    """Order of events, or the time between them."""
    ARITHMETIC = "arithmetic"
    """A number computed from several facts."""
    YES_NO = "yes_no"
    """A statement that is true or false."""
    LIST = "list"
    """All members of a closed set that meet a condition."""


class Description(Struct, frozen=True):
    """Words for a constant of a program that is not named, and the program that they state."""

    constant: Value
    """The constant."""
    words: str
    """Words, such as `the 1830s` or `the lighthouse`."""
    program: Program
    """Computes the values that the words allow."""


class Skeleton(Struct, frozen=True, kw_only=True):
    """A question before it has words: its program, its answer, and the facts that it rests on."""

    id: str
    """Digest of kind, program and level."""
    kind: QuestionKind
    """Kind."""
    program: Program
    """Computes the answer. With a level above 0 it contains the programs of descriptions."""
    level: int = 0
    """Obfuscation: 0 names the constants, 1 describes bridges, 2 generalises constants, 3 leaves out a clue."""
    descriptions: tuple[Description, ...] = ()
    """Constants that are described instead of named."""
    given: tuple[str, ...]
    """Entities that the question may name."""
    hidden: tuple[str, ...]
    """Entities that it must not name: the answer and everything on the way to it."""
    facts: tuple[str, ...]
    """Ids of the facts that the answer rests on, in the order of the program; each is needed."""
    answer: Value
    """The answer, computed by the program."""
