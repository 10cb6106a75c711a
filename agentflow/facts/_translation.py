"""Translations of questions back into programs, and comparison with the programs that the questions were made from."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Final, NamedTuple, Self
from weakref import WeakKeyDictionary

from agentflow.facts._evaluation import evaluate
from agentflow.facts._facts import KIND
from agentflow.facts._normal_forms import name_key, relation_key
from agentflow.facts._programs import Comparison, Operator, Program, ProgramInput, ProgramStep
from agentflow.facts._requests import Translation, TranslationStep
from agentflow.facts._store import FactStore
from agentflow.facts._support import facts_needed_by
from agentflow.facts._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    TextValue,
    Value,
    ValueKind,
    kind_of,
    parse_value,
    values_agree,
)

_NUMBERED: Final = re.compile(r"#\s*(\d{1,3})")
_DECADE: Final = re.compile(r"(?:the )?(\d{1,3}0)['’]?s", re.IGNORECASE)
_CENTURY: Final = re.compile(r"(?:the )?(\d{1,2})(?:st|nd|rd|th)[ -]century", re.IGNORECASE)
_RANGE: Final = re.compile(
    r"(?:from |between )?(.+?)(?: and | to |\s*[–—]\s*|(?<=\d)-(?=\d))(.+)", re.IGNORECASE
)
_TIMED: Final = re.compile(r"(.+?) (?:in|as of|at) (\d{4})")


def program_of(translation: Translation, store: FactStore) -> Program:
    """Return the program that a translation means: names, relations and sets of the store, typed numbers and dates.

    Names are found through aliases and normal forms, relations by their words in any order, a year at the end of a
    relation is its time, too, and a decade or century becomes a range. Anything unknown stays as it is written; then the
    program has no answer.

    See docs/facts.md for examples.
    """
    if (index := _INDEXES.get(store)) is None:
        index = _INDEXES[store] = _Index.of(store)
    reader = _Reader(store, index)
    return tuple(reader.step(step) for step in translation.steps)


def same_meaning(first: Program, second: Program, store: FactStore) -> bool:
    """Return whether two programs compute the same single answer from the same facts.

    The facts are those without which the answer is lost; the kinds of things are not compared, because a question may
    mention them or not. The order of a comparison and the things that are counted have to be the same, too.

    See docs/facts.md for examples.
    """
    answers = evaluate(first, store).answers, evaluate(second, store).answers
    if len(answers[0]) != 1 or len(answers[1]) != 1:
        return False
    if not values_agree(answers[0][0].value, answers[1][0].value):
        return False
    needed = [_statements(facts_needed_by(program, store), store) for program in (first, second)]
    return needed[0] == needed[1] and _point(first, store) == _point(second, store)


def _statements(facts: Iterable[str], store: FactStore) -> frozenset[tuple[str, str, Value]]:
    found = (store.by_id[fact] for fact in facts)
    return frozenset((fact.subject, fact.relation, fact.value) for fact in found if fact.relation != KIND)


def _point(program: Program, store: FactStore) -> object:
    """Return the values that the last step counts or compares: different ones can give the same number or truth."""
    last = program[-1]
    if last.operator not in {Operator.COUNT, Operator.BEFORE, Operator.GREATER, Operator.EQUAL}:
        return None
    inputs = [_values(program, given, store) for given in last.inputs]
    if last.operator is Operator.COUNT:
        return frozenset[Value]().union(*inputs)
    if last.operator is Operator.EQUAL:
        return frozenset(inputs)
    # Later than is before, the other way round.
    dated = all(isinstance(value, DateValue) for values in inputs for value in values)
    reverse = dated and last.operator is Operator.GREATER
    return dated, tuple(reversed(inputs) if reverse else inputs)


def _values(program: Program, given: ProgramInput, store: FactStore) -> frozenset[Value]:
    if not isinstance(given, int):
        return frozenset((given,))
    return frozenset(one.value for one in evaluate(program[:given], store).answers)


class _Index(NamedTuple):
    """Relations, names and sets of a store by their normal forms."""

    relations: dict[str, str]
    names: dict[str, str]
    sets: dict[str, str]

    @classmethod
    def of(cls, store: FactStore) -> Self:
        """Index a store."""
        found = cls({}, {}, {})
        for relation in store.relations:
            found.relations.setdefault(relation_key(relation), relation)
        for name in dict.fromkeys(_entities(store)):
            found.names.setdefault(name_key(name), name)
        for alias, name in store.aliases.items():
            found.names.setdefault(name_key(alias), name)
        for one in store.sets.values():
            found.sets.setdefault(name_key(one.description), one.id)
        return found


_INDEXES: Final[MutableMapping[FactStore, _Index]] = WeakKeyDictionary()
"""Indexes of the stores in use: many questions are translated over the same store."""


class _Reader:
    """Reads steps over a store."""

    def __init__(self, store: FactStore, index: _Index) -> None:
        self.store = store
        self.relations, self.names, self.sets = index

    def step(self, step: TranslationStep) -> ProgramStep:
        """Return a step with typed inputs."""
        relation, time = self._relation(step.relation)
        limit = parse_value(step.time, ValueKind.DATE)
        time = limit.year if isinstance(limit, DateValue) else time
        if step.operator is Operator.MEMBERS:
            said = " ".join(step.inputs)
            return ProgramStep(step.operator, name=self.sets.get(name_key(said), said))
        inputs: list[ProgramInput] = []
        for place, said in enumerate(step.inputs):
            bound = step.operator is Operator.FIND or (step.operator is Operator.WHERE and place > 0)
            inputs += self._inputs(said.strip(), relation if bound else "", step.comparison)
        comparison = step.comparison
        if step.operator is Operator.WHERE and len(inputs) == 3:
            comparison = Comparison.WITHIN
        return ProgramStep(step.operator, tuple(inputs), relation, comparison, time=time)

    def _relation(self, said: str) -> tuple[str, int]:
        """Return a relation of the store, and the year to which the text limits it."""
        plain = " ".join(said.lower().split())
        if not plain or self.store.having(plain):
            return plain, 0
        if (known := self.relations.get(relation_key(plain))) is not None:
            return known, 0
        timed = _TIMED.fullmatch(plain)
        if timed is None:
            return plain, 0
        return self._relation(timed[1])[0], int(timed[2])

    def _inputs(self, said: str, relation: str, comparison: Comparison) -> Iterator[ProgramInput]:
        if (number := _NUMBERED.fullmatch(said)) is not None:
            yield int(number[1])
            return
        kinds = [kind_of(fact.value) for fact in self.store.having(relation)] if relation else []
        wanted = [kind for kind, _ in Counter(kinds).most_common()]
        if ValueKind.DATE in wanted and (period := period_of(said)) is not None:
            yield from period
        elif comparison is Comparison.WITHIN and (parts := _RANGE.fullmatch(said)) is not None:
            unit = _unit([parse_value(parts[2], ValueKind.NUMBER)])
            yield from (self._constant(part, relation, wanted, unit) for part in parts.groups())
        else:
            yield self._constant(said, relation, wanted)

    def _constant(self, said: str, relation: str, wanted: Sequence[ValueKind], unit: str = "") -> Value:
        for kind in wanted:
            if kind is ValueKind.NUMBER:
                default = unit or _unit(fact.value for fact in self.store.having(relation))
                value = parse_value(said, kind, default)
            else:
                value = parse_value(said, kind)
            if isinstance(value, NumberValue | DateValue | BoolValue):
                return value
            if isinstance(value, TextValue):
                stated = (fact.value for fact in self.store.having(relation))
                return next((one for one in stated if _same_words(one, said)), value)
            if value is not None:
                break
        known = self.names.get(name_key(self.store.canonical(said)))
        if known is not None:
            return EntityValue(self.store.canonical(known))
        if not wanted:
            for kind in (ValueKind.DATE, ValueKind.NUMBER, ValueKind.BOOL):
                if (value := parse_value(said, kind)) is not None:
                    return value
        return EntityValue(said)


def period_of(said: str) -> tuple[DateValue, DateValue] | None:
    """Return the first and the last year of a decade or century.

    >>> period_of("the 1830s")
    (DateValue(year=1830, month=0, day=0), DateValue(year=1839, month=0, day=0))
    """
    if (decade := _DECADE.fullmatch(said)) is not None and int(decade[1]):
        return DateValue(int(decade[1])), DateValue(int(decade[1]) + 9)
    if (century := _CENTURY.fullmatch(said)) is not None and int(century[1]):
        last = int(century[1]) * 100
        return DateValue(last - 99), DateValue(last)
    return None


def _unit(values: Iterable[Value | None]) -> str:
    """Return the first unit of several numbers."""
    return next((value.unit for value in values if isinstance(value, NumberValue) and value.unit), "")


def _same_words(value: Value, said: str) -> bool:
    # A question has the plural of the kind of several things.
    return isinstance(value, TextValue) and relation_key(value.text) == relation_key(said)


def _entities(store: FactStore) -> Iterator[str]:
    for fact in store.facts:
        yield fact.subject
        items = fact.value.items if isinstance(fact.value, ListValue) else (fact.value,)
        yield from (item.name for item in items if isinstance(item, EntityValue))
    for one in store.sets.values():
        yield from one.members
