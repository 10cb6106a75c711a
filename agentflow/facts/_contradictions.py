"""Facts of a store that cannot all be true."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from agentflow.facts._facts import KIND, Fact
from agentflow.facts._values import (
    BoolValue,
    DateValue,
    NumberValue,
    Value,
    kind_of,
    values_agree,
)

_LEAST: Final = 2
"""Number of other subjects with a single value from which a relation is taken to have only one."""
SINGLE: Final = frozenset({"birthplace", "place of death", "capital", "father", "mother"})
"""Relations that have one value."""


class Claim(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A fact of a tree without its places, to be compared with those of other trees."""

    subject: str
    """Name of the subject."""
    relation: str
    """Relation."""
    value: Value
    """Value."""
    time: DateValue | None = None
    """Date to which it is limited."""
    several: bool = False
    """An observation gives a subject several values of the relation."""


def claims_of(facts: Iterable[Fact]) -> tuple[Claim, ...]:
    """Return the facts of a tree without their places.

    See docs/facts.md for an example.
    """
    own = tuple(facts)
    several = _several_valued(_grouped(own).values())
    return tuple(
        Claim(fact.subject, fact.relation, fact.value, fact.time, fact.relation in several) for fact in own
    )


def contradictions(facts: Iterable[Fact]) -> tuple[tuple[Fact, ...], ...]:
    """Return the groups of facts that cannot all be true: one subject, relation and time, different values.

    Numbers, dates and truths exclude others, except for a date that is only more precise. Names and texts do if the
    relation has one value: no observation states several, and at least two other subjects have one each. The kind of
    a thing is never in a group.

    >>> contradictions([])
    ()

    :param facts: facts with canonical names, of one store.
    """
    groups = _grouped(facts)
    several = _several_valued(groups.values())
    alone = Counter(relation for (relation, _, _), group in groups.items() if len(group) == 1)
    single = {relation for relation, count in alone.items() if is_single(relation, count)} | SINGLE
    return tuple(
        tuple(group)
        for (relation, _, _), group in groups.items()
        if values_conflict([fact.value for fact in group], single=relation in single - several)
    )


def is_single(relation: str, subjects: int) -> bool:
    """Return whether a relation is taken to have one value, from the number of subjects with a single one.

    >>> is_single("captain", 1), is_single("birthplace", 0)
    (False, True)
    """
    return relation in SINGLE or subjects >= _LEAST


def values_conflict(values: Collection[Value], *, single: bool) -> bool:
    """Return whether values of one subject, relation and time cannot all be true.

    >>> values_conflict([DateValue(1834), DateValue(1834, 5, 12)], single=True)
    False
    >>> values_conflict([BoolValue(True), BoolValue(False)], single=False)
    True

    :param single: names and texts exclude others, too: the relation has one value.
    """
    # Two days contradict each other, and neither contradicts their year: compare with the most precise one.
    first = max(values, key=_precision)
    if all(_compatible(first, other) for other in values):
        return False
    exact = isinstance(first, NumberValue | DateValue | BoolValue)
    same_kind = all(kind_of(value) is kind_of(first) for value in values)
    return same_kind and (exact or single)


def _grouped(facts: Iterable[Fact]) -> dict[tuple[str, str, DateValue | None], list[Fact]]:
    groups: dict[tuple[str, str, DateValue | None], list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.relation != KIND:
            groups[fact.relation, fact.subject, fact.time].append(fact)
    return groups


def _several_valued(groups: Iterable[list[Fact]]) -> set[str]:
    """Return the relations of which an observation gives a subject several values."""
    several: set[str] = set()
    for group in groups:
        nodes = [node for fact in group for node in {span.node for span in fact.spans}]
        if len(nodes) > len(set(nodes)):
            several.add(group[0].relation)
    return several


def _precision(date: Value) -> int:
    return bool(date.month) + bool(date.day) if isinstance(date, DateValue) else 0


def _compatible(mine: Value, theirs: Value) -> bool:
    if isinstance(mine, DateValue) and isinstance(theirs, DateValue):
        return (
            mine.year == theirs.year
            and (not mine.month or not theirs.month or mine.month == theirs.month)
            and (not mine.day or not theirs.day or mine.day == theirs.day)
        )
    return values_agree(mine, theirs)
