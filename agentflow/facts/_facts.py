"""Facts that observations state, and the sets that they list completely."""

from msgspec import Struct

from agentflow.facts._values import DateValue, Value
from agentflow.trajectory import Region

KIND = "kind"
"""Relation whose value is the class of the subject as a noun, such as `lighthouse`."""


class FactSpan(Struct, frozen=True, omit_defaults=True):
    """Place at which an observation states something: a span of its text, or a region of one of its images."""

    node: str
    """Id of the node with the observation."""
    start: int
    """Start in the observation's text; 0 for an image."""
    end: int
    """End in the observation's text; 0 for an image."""
    image: str = ""
    """Hash of the image; empty for text."""
    region: Region | None = None
    """Region of the image."""
    value_start: int = 0
    """Start of the value in the observation's text; 0 if the span states it as a whole, as of a truth value."""
    value_end: int = 0
    """End of the value in the observation's text."""


class Fact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A statement: the relation of a subject has a value.

    The relation is a noun phrase that fits into "the … of SUBJECT": `birthplace`, `year of foundation`, `captain`.
    """

    id: str
    """Digest of subject, relation, value and time."""
    subject: str
    """Canonical name of the subject."""
    relation: str
    """Relation, in lower case."""
    value: Value
    """Value; the name of an entity is canonical."""
    time: DateValue | None = None
    """Date to which the statement is limited, if it says so."""
    spans: tuple[FactSpan, ...]
    """Places that state it, in path order of their nodes; at least one."""


class ClosedSet(Struct, frozen=True, kw_only=True):
    """A set of subjects that an observation lists completely: a whole table, a query's result, an exhaustive enumeration."""

    id: str
    """Digest of description and members."""
    description: str
    """Members as a plural noun phrase: `islands of the Varrow Isles`."""
    members: tuple[str, ...]
    """Canonical names, in the order of the list."""
    spans: tuple[FactSpan, ...]
    """Places that list it."""
