"""Candidates for questions: programs over the facts of a store, before anything is checked."""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import combinations, islice, zip_longest
from typing import Final, NamedTuple

from agentflow.facts._conditions import additive, bound_below, conditions_on, readable
from agentflow.facts._facts import KIND, ClosedSet, Fact
from agentflow.facts._ordering import compare
from agentflow.facts._programs import Comparison, Operator, Program, ProgramInput, ProgramStep
from agentflow.facts._skeletons import QuestionKind
from agentflow.facts._store import FactStore
from agentflow.facts._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    Value,
)

MAX_MEMBERS: Final = 12
"""Most members of a closed set that a question is asked about."""
MAX_LISTED: Final = 6
"""Most items of a list that is asked for."""
MAX_WAYS: Final = 6
"""Most descriptions of an entity that are tried."""
MAX_SHARING: Final = 60
"""Most things with a value that is a condition; a more frequent one says little."""
MAX_SIBLINGS: Final = 100
"""Most things of the kinds of those near the seed that are compared with them."""
_SINGLE_SHARE: Final = Decimal("0.8")
"""Share of subjects with one value above which a relation counts as functional."""


_HUB: Final = 12
"""Most neighbours of a thing that is described by another one: `the country whose capital is …` is better named."""
_RANK: Final = re.compile(r"\b(?:\w{2,}est|best|most|least)\b")
"""Ranks: `the country whose largest bell is …` is no natural description."""
_LIFE: Final = frozenset({"year of birth", "date of birth", "year of death", "date of death"})
"""Events that are not compared with those of places that people are related to."""


class Candidate(NamedTuple):
    """A question that may be asked."""

    kind: QuestionKind
    program: Program
    hidden: tuple[str, ...] = ()
    """Entities on the way to the answer."""
    wanted: bool | None = None
    """Answer of a yes-no question that keeps the answers balanced."""


class Edge(NamedTuple):
    """The one value of a relation of a subject."""

    fact: Fact
    time: int

    @property
    def step(self) -> ProgramStep:
        """The step from the subject, which is its constant."""
        return self.follow(EntityValue(self.fact.subject))

    def follow(self, subject: ProgramInput) -> ProgramStep:
        """Return the step from a result to the value."""
        return ProgramStep(Operator.FOLLOW, (subject,), self.fact.relation, time=self.time)


def functional_relations(store: FactStore) -> frozenset[str]:
    """Return the relations that have one value at a time, apart from contradictions.

    Four of five subjects have a single value; of numbers and dates half of the subjects are enough.
    """
    values: dict[tuple[str, str, object], set[Value]] = {}
    for fact in store.facts:
        values.setdefault((fact.relation, fact.subject, fact.time), set()).add(fact.value)
    subjects: dict[str, list[bool]] = {}
    measured: dict[str, bool] = {}
    for (relation, _, _), found in values.items():
        subjects.setdefault(relation, []).append(len(found) == 1)
        exact = all(isinstance(value, NumberValue | DateValue) for value in found)
        measured[relation] = measured.get(relation, True) and exact
    return frozenset(
        relation
        for relation, single in subjects.items()
        if sum(single) >= _SINGLE_SHARE * len(single)
        or (measured[relation] and 2 * sum(single) + 1 >= len(single))
    )


def joined(*programs: Program) -> tuple[list[ProgramStep], list[int]]:
    """Return the steps of several programs in one, and the numbers of their results."""
    steps: list[ProgramStep] = []
    ends: list[int] = []
    for program in programs:
        start = len(steps)
        for step in program:
            inputs = tuple(one + start if isinstance(one, int) else one for one in step.inputs)
            steps.append(
                ProgramStep(step.operator, inputs, step.relation, step.comparison, step.name, step.time)
            )
        ends.append(len(steps))
    return steps, ends


class Candidates:
    """Candidates of each kind over a store, those near the seed first."""

    def __init__(self, store: FactStore, distances: Mapping[str, int], *, records: bool = False) -> None:
        self.store = store
        self.records = records
        self.distances = distances
        self.functional = functional_relations(store)
        self.kinds: dict[str, Value] = {}
        for fact in store.having(KIND):
            self.kinds.setdefault(fact.subject, fact.value)
        subjects = list(dict.fromkeys(fact.subject for fact in store.facts))
        near = sorted((one for one in subjects if one in distances), key=lambda one: distances[one])
        kinds = {self.kinds[one] for one in near if one in self.kinds}
        others = (one for one in subjects if one not in distances and self.kinds.get(one) in kinds)
        self.subjects = [*near, *islice(others, MAX_SIBLINGS)]
        self.edges: dict[str, list[Edge]] = {one: list(self._edges(one)) for one in self.subjects}
        self.near: dict[str, set[Value]] = {}
        """Values that one fact connects with an entity."""
        for fact in store.facts:
            self.near.setdefault(fact.subject, set()).add(fact.value)
            if isinstance(fact.value, EntityValue):
                self.near.setdefault(fact.value.name, set()).add(EntityValue(fact.subject))
        self.ways: dict[str, list[tuple[str, Program]]] = {}
        """Descriptions of entities by one fact: the entity that they start from, and a program."""
        for subject in self.subjects:
            for edge in self.edges[subject]:
                if isinstance(edge.fact.value, EntityValue) and edge.fact.value.name != subject:
                    self.ways.setdefault(edge.fact.value.name, []).append((subject, (edge.step,)))
        for subject in self.subjects:
            self.ways.setdefault(subject, []).extend(self._backward(subject))
        self.groups = self._groups()

    def of(self, kind: QuestionKind) -> Iterator[Candidate]:
        """Return the candidates of a kind, different entities and relations in turns."""
        match kind:
            case QuestionKind.BRIDGE:
                return _in_turns(self._bridges(name) for name in self._entities())
            case QuestionKind.COMPARISON:
                return _in_turns(self._comparisons(group) for group in self.groups if not group.dated)
            case QuestionKind.TEMPORAL:
                same = [self._temporal(group) for group in self.groups if group.dated]
                return _in_turns([*map(self._linked_events, self.subjects), *same])
            case QuestionKind.ARITHMETIC:
                return _in_turns(self._arithmetic(group) for group in self.groups if not group.dated)
            case QuestionKind.YES_NO:
                return _in_turns([*map(self._yes_no, self.groups), *self._equalities()])
            case QuestionKind.INTERSECTION:
                return _in_turns(self._intersections(name) for name in self.subjects)
            case QuestionKind.AGGREGATE:
                return _in_turns(map(self._aggregates, self._sets()))
            case QuestionKind.COUNT:
                return _in_turns(self._filtered(one, Operator.COUNT) for one in self._sets())
            case QuestionKind.LIST:
                return _in_turns(self._filtered(one, Operator.LIST) for one in self._sets())

    def _entities(self) -> list[str]:
        return [name for name in self.subjects if name in self.ways]

    def _edges(self, subject: str) -> Iterator[Edge]:
        grouped: dict[tuple[str, int], list[Fact]] = {}
        for fact in self.store.about(subject):
            grouped.setdefault((fact.relation, fact.time.year if fact.time else 0), []).append(fact)
        for (relation, time), facts in grouped.items():
            # Without a date the question would have to mean any of them.
            every = facts if time else self.store.of(subject, relation)
            single = len({fact.value for fact in every}) == 1
            if single and relation != KIND and relation in self.functional and readable(relation):
                yield Edge(facts[0], time)

    def _backward(self, subject: str) -> Iterator[tuple[str, Program]]:
        if len(self.near.get(subject, ())) > _HUB:
            return
        for edge in self.edges[subject]:
            value = edge.fact.value
            if isinstance(value, EntityValue) and not _RANK.search(edge.fact.relation):
                others = {fact.subject for fact in self.store.stating(edge.fact.relation, value)}
                if others == {subject} and value.name != subject:
                    step = ProgramStep(Operator.FIND, (value,), edge.fact.relation, time=edge.time)
                    yield value.name, (step,)

    def _groups(self) -> list["_Group"]:
        found: dict[tuple[Value | None, str, int, bool], list[Edge]] = {}
        for subject in self.subjects:
            for edge in self.edges[subject]:
                if isinstance(edge.fact.value, NumberValue | DateValue):
                    dated = isinstance(edge.fact.value, DateValue)
                    key = (self.kinds.get(subject), edge.fact.relation, edge.time, dated)
                    found.setdefault(key, []).append(edge)
        return [
            _Group(relation, time, dated, edges[:8])
            for (_, relation, time, dated), edges in found.items()
            if len(edges) > 1
        ]

    def _sets(self) -> list[ClosedSet]:
        near = [
            one
            for one in self.store.sets.values()
            if 2 <= len(one.members) <= MAX_MEMBERS and any(name in self.distances for name in one.members)
        ]
        return sorted(near, key=lambda one: min(self.distances.get(name, 9) for name in one.members))

    def _bridges(self, name: str) -> Iterator[Candidate]:
        for start, way in self.ways[name][:MAX_WAYS]:
            for edge in self.edges[name]:
                if not self._hidden_from(edge.fact.value, start):
                    continue
                program = (*way, edge.follow(len(way)))
                yield Candidate(QuestionKind.BRIDGE, program, (name,))
                if not isinstance(edge.fact.value, EntityValue):
                    continue
                middle = edge.fact.value.name
                for last in self.edges.get(middle, ()):
                    value = last.fact.value
                    if self._hidden_from(value, start) and self._hidden_from(value, name):
                        longer = (*program, last.follow(len(program)))
                        yield Candidate(QuestionKind.BRIDGE, longer, (name, middle))

    def _hidden_from(self, value: Value, start: str) -> bool:
        """Return whether no single fact leads from an entity to a value."""
        return value not in self.near.get(start, set()) and value != EntityValue(start)

    def _pairs(self, group: "_Group") -> Iterator[tuple[Edge, Edge]]:
        # Those at the front first: by the sum of their places.
        size = len(group.edges)
        for places in range(1, 2 * size - 2):
            for first in range(max(0, places - size + 1), (places + 1) // 2):
                one, other = group.edges[first], group.edges[places - first]
                if compare(one.fact.value, other.fact.value) in {-1, 1}:
                    yield one, other

    def _described(self, one: Edge, other: Edge) -> Iterator[tuple[Program, Program]]:
        """Return descriptions of two subjects by the same relation of two others: the keepers of two lighthouses."""
        for start, way in self.ways.get(one.fact.subject, [])[:MAX_WAYS]:
            for second_start, second_way in self.ways.get(other.fact.subject, [])[:MAX_WAYS]:
                named = {start, second_start, one.fact.subject, other.fact.subject}
                same = (way[0].operator, way[0].relation) == (second_way[0].operator, second_way[0].relation)
                if same and len(named) == 4:
                    yield way, second_way
                    return

    def _comparisons(self, group: "_Group") -> Iterator[Candidate]:
        yield from self._superlatives(group, QuestionKind.COMPARISON)

    def _superlatives(self, group: "_Group", kind: QuestionKind) -> Iterator[Candidate]:
        for number, (one, other) in enumerate(self._pairs(group)):
            operator = Operator.LEAST if number % 2 else Operator.GREATEST
            hidden = (one.fact.subject, other.fact.subject)
            for way, second in self._described(one, other):
                steps, ends = joined(way, second)
                steps.append(ProgramStep(operator, tuple(ends), group.relation, time=group.time))
                yield Candidate(kind, tuple(steps), hidden)
            names = (EntityValue(one.fact.subject), EntityValue(other.fact.subject))
            yield Candidate(kind, (ProgramStep(operator, names, group.relation, time=group.time),))
        for trio in islice(combinations(group.edges, 3), 2):
            names = tuple(EntityValue(edge.fact.subject) for edge in trio)
            step = ProgramStep(Operator.GREATEST, names, group.relation, time=group.time)
            yield Candidate(kind, (step,))

    def _temporal(self, group: "_Group") -> Iterator[Candidate]:
        ranks = self._superlatives(group, QuestionKind.TEMPORAL)
        spans = self._calculations(group, Operator.DIFFERENCE, QuestionKind.TEMPORAL)
        yield from _in_turns([spans, ranks])

    def _linked_events(self, name: str) -> Iterator[Candidate]:
        """Return the years between events of a thing and of another that it is related to: a ship and its captain."""
        dated = [
            edge
            for edge in self.edges[name]
            if isinstance(edge.fact.value, DateValue) and edge.fact.relation not in _LIFE
        ]
        for link in self.edges[name] if dated else ():
            if not isinstance(link.fact.value, EntityValue):
                continue
            other = link.fact.value.name
            for last in self.edges.get(other, ()):
                own = next((edge for edge in dated if edge.fact.relation != last.fact.relation), None)
                if own is not None and compare(own.fact.value, last.fact.value) in {-1, 1}:
                    between = ProgramStep(Operator.DIFFERENCE, (1, 3))
                    program = (own.step, link.step, last.follow(2), between)
                    yield Candidate(QuestionKind.TEMPORAL, program, (other,))

    def _arithmetic(self, group: "_Group") -> Iterator[Candidate]:
        operator = Operator.SUM if additive(group.edges[0].fact.value) else Operator.DIFFERENCE
        yield from self._calculations(group, operator, QuestionKind.ARITHMETIC)

    def _calculations(self, group: "_Group", operator: Operator, kind: QuestionKind) -> Iterator[Candidate]:
        for one, other in self._pairs(group):
            for first, second, hidden in self._both(one, other):
                steps, ends = joined(first, second)
                steps.append(ProgramStep(operator, tuple(ends)))
                yield Candidate(kind, tuple(steps), hidden)

    def _both(self, one: Edge, other: Edge) -> Iterator[tuple[Program, Program, tuple[str, ...]]]:
        """Return programs for two values: of subjects that are described, and of named ones."""
        for way, second in self._described(one, other):
            first_value, second_value = (*way, one.follow(len(way))), (*second, other.follow(len(second)))
            yield first_value, second_value, (one.fact.subject, other.fact.subject)
        yield (one.step,), (other.step,), ()

    def _yes_no(self, group: "_Group") -> Iterator[Candidate]:
        operator = Operator.BEFORE if group.dated else Operator.GREATER
        for number, (one, other) in enumerate(self._pairs(group)):
            wanted = number % 2 == 0
            for first, second, hidden in self._both(one, other):
                holds = compare(one.fact.value, other.fact.value) == (-1 if group.dated else 1)
                pair = (first, second) if holds == wanted else (second, first)
                steps, ends = joined(*pair)
                steps.append(ProgramStep(operator, tuple(ends)))
                yield Candidate(QuestionKind.YES_NO, tuple(steps), hidden, wanted)

    def _equalities(self) -> Iterator[Iterator[Candidate]]:
        found: dict[tuple[Value | None, str, int], list[Edge]] = {}
        for subject in self.subjects:
            for edge in self.edges[subject]:
                if isinstance(edge.fact.value, EntityValue):
                    found.setdefault((self.kinds.get(subject), edge.fact.relation, edge.time), []).append(
                        edge
                    )
        for edges in found.values():
            pairs = list(islice(combinations(edges[:8], 2), 12))
            alike = [pair for pair in pairs if pair[0].fact.value == pair[1].fact.value]
            unlike = [pair for pair in pairs if pair[0].fact.value != pair[1].fact.value]
            # A value that no two share would make every answer a no.
            if alike and unlike:
                yield (
                    self._equality(one, other)
                    for pair in zip(alike, unlike, strict=False)
                    for one, other in pair
                )

    def _equality(self, one: Edge, other: Edge) -> Candidate:
        program = (one.step, other.step, ProgramStep(Operator.EQUAL, (1, 2)))
        return Candidate(QuestionKind.YES_NO, program, (), one.fact.value == other.fact.value)

    def _intersections(self, name: str) -> Iterator[Candidate]:
        known = {edge.fact.id for edge in self.edges[name]}
        conditions = [
            (
                fact.relation,
                fact.value,
                fact.time.year if fact.time else 0,
                self.store.stating(fact.relation, fact.value),
            )
            for fact in self.store.about(name)
            if not isinstance(fact.value, ListValue | BoolValue)
            and readable(fact.relation)
            and (fact.id in known or fact.relation not in self.functional or fact.relation == KIND)
        ]
        shared = [
            one
            for one in conditions
            if len(one[3]) <= MAX_SHARING and len({fact.subject for fact in one[3]}) > 1
        ]
        for first, second in islice(combinations(shared, 2), 12):
            both = {fact.subject for fact in first[3]} & {fact.subject for fact in second[3]}
            if both == {name} and first[0] != second[0]:
                found = [
                    ProgramStep(Operator.FIND, (one[1],), one[0], time=one[2]) for one in (first, second)
                ]
                yield Candidate(QuestionKind.INTERSECTION, (*found, ProgramStep(Operator.AND, (1, 2))))
        for relation, value, time, facts in shared:
            if relation == KIND:
                continue  # a tree rarely knows all things of a kind, so a bound would not be met by one alone
            find = ProgramStep(Operator.FIND, (value,), relation, time=time)
            edges = [self.edges.get(fact.subject, []) for fact in facts]
            for edge in self.edges.get(name, ()):
                values = [
                    other.fact.value
                    for one in edges
                    for other in one
                    if other.fact.relation == edge.fact.relation and other.time == edge.time
                ]
                if (bound := bound_below(edge.fact.value, values)) is not None:
                    where = ProgramStep(
                        Operator.WHERE, (1, bound), edge.fact.relation, Comparison.MORE, time=edge.time
                    )
                    yield Candidate(QuestionKind.INTERSECTION, (find, where))
                    yield from self._described_condition(name, find, where)

    def _described_condition(self, name: str, find: ProgramStep, where: ProgramStep) -> Iterator[Candidate]:
        """Return conditions with a thing that is described: built at the shipyard that was founded in 1455."""
        value = find.inputs[0]
        if not isinstance(value, EntityValue):
            return
        for start, way in self.ways.get(value.name, [])[:MAX_WAYS]:
            if start != name and way[-1].relation != find.relation:
                steps = (
                    *way,
                    ProgramStep(Operator.FIND, (len(way),), find.relation, time=find.time),
                    ProgramStep(
                        Operator.WHERE,
                        (len(way) + 1, *where.inputs[1:]),
                        where.relation,
                        where.comparison,
                        time=where.time,
                    ),
                )
                yield Candidate(QuestionKind.INTERSECTION, steps, (value.name,))

    def _columns(self, one: ClosedSet) -> Iterator[list[Edge]]:
        """Return the relations that every member of a set has, each with its values."""
        rows = [
            {(edge.fact.relation, edge.time): edge for edge in self.edges.get(name, ())}
            for name in one.members
        ]
        for key in rows[0]:
            if all(key in row for row in rows):
                yield [row[key] for row in rows]

    def _aggregates(self, one: ClosedSet) -> Iterator[Candidate]:
        members = ProgramStep(Operator.MEMBERS, name=one.id)
        for number, column in enumerate(self._columns(one)):
            edge = column[0]
            if not all(isinstance(each.fact.value, type(edge.fact.value)) for each in column):
                continue
            if additive(edge.fact.value):
                yield Candidate(
                    QuestionKind.AGGREGATE, (members, edge.follow(1), ProgramStep(Operator.SUM, (2,)))
                )
            if len(column) < 3 or not isinstance(edge.fact.value, NumberValue | DateValue):
                continue
            for operator in (Operator.GREATEST, Operator.LEAST)[:: -1 if number % 2 else 1]:
                best = ProgramStep(operator, (1,), edge.fact.relation, time=edge.time)
                if self.records:
                    value = ProgramStep(Operator.LIST, (2,), edge.fact.relation, time=edge.time)
                    yield Candidate(QuestionKind.AGGREGATE, (members, best, value), tuple(one.members))
                yield Candidate(QuestionKind.AGGREGATE, (members, best))
                for last in self._columns(one):
                    if last[0].fact.relation != edge.fact.relation:
                        step = last[0].follow(2)
                        hidden = tuple(one.members)
                        yield Candidate(QuestionKind.AGGREGATE, (members, best, step), hidden)

    def _filtered(self, one: ClosedSet, operator: Operator) -> Iterator[Candidate]:
        members = ProgramStep(Operator.MEMBERS, name=one.id)
        kind = QuestionKind.COUNT if operator is Operator.COUNT else QuestionKind.LIST
        for column in self._columns(one):
            edge = column[0]
            if self.records and kind is QuestionKind.LIST:
                values = ProgramStep(Operator.LIST, (1,), edge.fact.relation, time=edge.time)
                yield Candidate(kind, (members, values), tuple(one.members))
            for comparison, bound in conditions_on([each.fact.value for each in column]):
                where = ProgramStep(
                    Operator.WHERE, (1, bound), edge.fact.relation, comparison, time=edge.time
                )
                yield Candidate(kind, (members, where, ProgramStep(operator, (2,))))


class _Group(NamedTuple):
    """Numbers or dates of one relation of things of one kind."""

    relation: str
    time: int
    dated: bool
    edges: list[Edge]


def _in_turns(streams: Iterable[Iterator[Candidate]]) -> Iterator[Candidate]:
    """Return the first candidates of all streams, then the second ones, and so on."""
    for row in zip_longest(*streams):
        yield from (one for one in row if one is not None)
