"""Facts of a store that cannot all be true."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from agentflow.facts._facts import KIND, Fact
from agentflow.facts._values import BoolValue, DateValue, NumberValue, kind_of, values_agree

_LEAST: Final = 2
"""Number of other subjects with a single value from which a relation is taken to have only one."""
_SINGLE: Final = frozenset({"birthplace", "place of death", "capital", "father", "mother"})
"""Relations that have one value."""


def contradictions(facts: Iterable[Fact]) -> tuple[tuple[Fact, ...], ...]:
    """Return the groups of facts that cannot all be true: one subject, relation and time, different values.

    Numbers, dates and truths exclude others, except for a date that is only more precise. Names and texts do if the
    relation has one value: no observation states several, and at least two other subjects have one each. The kind of
    a thing is never in a group.

    >>> contradictions([])
    ()

    :param facts: facts with canonical names, of one store or several.
    """
    groups: dict[tuple[object, ...], list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.relation != KIND:
            groups[fact.relation, fact.subject, fact.time].append(fact)
    single = _single_valued(groups.values())
    return tuple(tuple(group) for group in groups.values() if _contradict(group, single))


def _single_valued(groups: Iterable[list[Fact]]) -> set[str]:
    """Return the relations that have one value, as far as the facts show."""
    single: dict[str, int] = defaultdict(int)
    several: set[str] = set()
    for group in groups:
        relation = group[0].relation
        nodes = [node for fact in group for node in {span.node for span in fact.spans}]
        if len(nodes) > len(set(nodes)):
            several.add(relation)
        single[relation] += len(group) == 1
    return {*_SINGLE, *(relation for relation, count in single.items() if count >= _LEAST)} - several


def _contradict(group: list[Fact], single: set[str]) -> bool:
    # Two days contradict each other, and neither contradicts their year: compare with the most precise one.
    first = max(group, key=_precision)
    if all(_compatible(first, other) for other in group):
        return False
    exact = isinstance(first.value, NumberValue | DateValue | BoolValue)
    same_kind = all(kind_of(fact.value) is kind_of(first.value) for fact in group)
    return same_kind and (exact or first.relation in single)


def _precision(fact: Fact) -> int:
    date = fact.value
    return bool(date.month) + bool(date.day) if isinstance(date, DateValue) else 0


def _compatible(one: Fact, other: Fact) -> bool:
    if isinstance(one.value, DateValue) and isinstance(other.value, DateValue):
        mine, theirs = one.value, other.value
        return (
            mine.year == theirs.year
            and (not mine.month or not theirs.month or mine.month == theirs.month)
            and (not mine.day or not theirs.day or mine.day == theirs.day)
        )
    return values_agree(one.value, other.value)
