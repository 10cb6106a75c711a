"""Second implementation of programs, to test the first: slow, and without any of its code."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from agentflow.facts import (
    BoolValue,
    Comparison,
    DateValue,
    EntityValue,
    FactStore,
    ListValue,
    NumberValue,
    Operator,
    Program,
    ProgramStep,
    TextValue,
    Value,
)

Plain: TypeAlias = tuple[object, ...]
"""A value without its type: `("entity", "Ada Holm")`, `("number", amount, unit)`, `("date", year, month, day)`."""

_LENGTHS: Final = {"m": 1, "metre": 1, "metres": 1, "km": 1000, "kilometres": 1000}


class _OracleStatement(NamedTuple):
    subject: str
    relation: str
    value: Plain
    year: int | None


class _OracleKnown(NamedTuple):
    """All that is known about the result of a step."""

    bag: Sequence[tuple[Plain, object]]
    """Values, each with its origin: things of different origin count separately in sums."""
    all_known: bool
    """There are no other values."""
    presupposed: bool
    """A question can presuppose that there are no other values."""

    @property
    def values(self) -> list[Plain]:
        return list(dict.fromkeys(value for value, _ in self.bag))


class _OpenError(Exception):
    """The statements leave the answer open."""


def oracle_answers(program: Program, store: FactStore, without: Iterable[str] = ()) -> frozenset[Plain]:
    """Return the answers of a program, found by looking through all statements in every step.

    >>> from agentflow.facts import Operator, ProgramStep
    >>> from agentflow.testing import fact_world
    >>> world = fact_world(1)
    >>> program = (ProgramStep(Operator.FOLLOW, (EntityValue(world.seed_name),), "kind"),)
    >>> oracle_answers(program, world.store)
    frozenset({('text', 'lighthouse')})

    :param without: ids of facts that count as unknown.
    """
    hidden = set(without)
    statements = [
        _OracleStatement(
            fact.subject, fact.relation, plain_value(fact.value), fact.time.year if fact.time else None
        )
        for fact in store.facts
        if fact.id not in hidden
    ]
    results: list[_OracleKnown] = []
    try:
        for step in program:
            results.append(_Step(step, results, statements, store).result())
    except _OpenError:
        return frozenset()
    return frozenset(results[-1].values) if results else frozenset()


def oracle_hops(program: Program, store: FactStore) -> int:
    """Return the number of statements without which a program does not have its one answer.

    Every statement of the store is tried. Facts that differ in their time only are one statement.

    >>> from agentflow.facts import Operator, ProgramStep
    >>> from agentflow.testing import fact_world
    >>> world = fact_world(1)
    >>> oracle_hops((ProgramStep(Operator.FOLLOW, (EntityValue(world.seed_name),), "kind"),), world.store)
    1
    """
    answers = oracle_answers(program, store)
    if len(answers) != 1:
        return 0
    statements: dict[tuple[str, str, Plain], list[str]] = {}
    for fact in store.facts:
        key = (fact.subject, fact.relation, plain_value(fact.value))
        statements.setdefault(key, []).append(fact.id)
    return sum(oracle_answers(program, store, ids) != answers for ids in statements.values())


def plain_value(value: Value) -> Plain:
    """Return a value as a tuple: numbers as fractions of the base unit.

    >>> plain_value(DateValue(1834))
    ('date', 1834, 0, 0)
    """
    match value:
        case EntityValue(name):
            return ("entity", name)
        case NumberValue(amount, unit):
            if unit in _LENGTHS:
                return ("number", Fraction(amount) * _LENGTHS[unit], "length")
            return ("number", Fraction(amount), unit.removesuffix("s"))
        case DateValue(year, month, day):
            return ("date", year, month, day)
        case TextValue(text):
            return ("text", text)
        case BoolValue(truth):
            return ("bool", truth)
        case ListValue(items):
            return ("list", frozenset(plain_value(item) for item in items))


class _Step:
    """A step over raw statements."""

    def __init__(
        self,
        step: ProgramStep,
        results: list[_OracleKnown],
        statements: list[_OracleStatement],
        store: FactStore,
    ) -> None:
        self.step = step
        self.statements = statements
        self.store = store
        self.given: list[_OracleKnown] = []
        for one in step.inputs:
            if isinstance(one, int):
                if not 1 <= one <= len(results):
                    raise _OpenError
                self.given.append(_opened(results[one - 1]))
            else:
                items = one.items if isinstance(one, ListValue) else (one,)
                bag = [(self._canonical(item), None) for item in items]
                self.given.append(_OracleKnown(bag, True, True))

    def _canonical(self, value: Value) -> Plain:
        if isinstance(value, EntityValue):
            return ("entity", self.store.aliases.get(value.name, value.name))
        return plain_value(value)

    def result(self) -> _OracleKnown:
        operator = self.step.operator
        if operator is Operator.MEMBERS:
            if self.step.name not in self.store.sets:
                raise _OpenError
            members = self.store.sets[self.step.name].members
            return _OracleKnown([(("entity", name), None) for name in members], True, True)
        if not self.given:
            raise _OpenError
        if operator in {Operator.FOLLOW, Operator.FIND, Operator.WHERE, Operator.GREATEST, Operator.LEAST}:
            if not self.step.relation:
                raise _OpenError
            return self._related(operator)
        if operator in {Operator.AND, Operator.OR}:
            return self._combined()
        return self._computed(operator)

    def _related(self, operator: Operator) -> _OracleKnown:
        if operator is Operator.FOLLOW:
            return self._followed()
        if operator is Operator.FIND:
            wanted = self._all().values
            found = [
                (("entity", one.subject), None)
                for value in wanted
                for one in self._matching()
                if _states(one.value, value)
            ]
            return _only(found)
        return self._filtered() if operator is Operator.WHERE else self._extreme(operator)

    def _matching(self) -> Iterator[_OracleStatement]:
        for one in self.statements:
            if one.relation == self.step.relation and self.step.time in (0, one.year):
                yield one

    def _of(self, thing: Plain) -> list[Plain]:
        """Return the different values of the relation of a thing."""
        found = (one.value for one in self._matching() if ("entity", one.subject) == thing)
        return list(dict.fromkeys(found))

    def _all(self) -> _OracleKnown:
        """Return the union of the inputs."""
        if len(self.given) == 1:
            return self.given[0]
        return _OracleKnown(
            [(value, (place, origin)) for place, one in enumerate(self.given) for value, origin in one.bag],
            all(one.all_known for one in self.given),
            all(one.presupposed for one in self.given),
        )

    def _followed(self) -> _OracleKnown:
        things = self._all()
        names = things.values
        bag: list[tuple[Plain, object]] = [(value, name) for name in names for value in self._of(name)]
        each_one = bool(names) and all(len(self._of(name)) == 1 for name in names)
        return _OracleKnown(
            bag, each_one and things.all_known and len(names) > 1, each_one and things.presupposed
        )

    def _filtered(self) -> _OracleKnown:
        comparison = self.step.comparison
        if len(self.given) not in ((2, 3) if comparison is Comparison.WITHIN else (2,)):
            raise _OpenError
        things, bounds = self.given[0], [one.values for one in self.given[1:]]
        kept: list[tuple[Plain, object]] = []
        certain = all(len(bound) == 1 for bound in bounds)
        for thing in things.values:
            outcomes = [
                _some(_meets(value, comparison, chosen) for chosen in product(*bounds))
                for value in self._of(thing)
            ]
            certain = certain and len(set(outcomes)) == 1 and outcomes[0] is not None
            if any(outcomes):
                kept.append((thing, None))
        if certain and things.all_known:
            return _OracleKnown(kept, True, True)
        return _only(kept)

    def _extreme(self, operator: Operator) -> _OracleKnown:
        things = self._all()
        names = things.values
        values = {name: self._of(name) for name in names}
        if not things.presupposed or len(names) < 2 or any(len(found) != 1 for found in values.values()):
            raise _OpenError
        if any(found[0][0] not in ("number", "date") for found in values.values()):
            raise _OpenError
        sign = 1 if operator is Operator.GREATEST else -1
        best = [
            (name, None)
            for name in names
            if not any(_order(values[other][0], values[name][0]) == sign for other in names)
        ]
        return _only(best)

    def _combined(self) -> _OracleKnown:
        if self.step.operator is Operator.OR:
            return self._all()
        first, *others = self.given
        common: list[tuple[Plain, object]] = [
            (value, None) for value in first.values if all(value in other.values for other in others)
        ]
        if all(one.all_known for one in self.given):
            return _OracleKnown(common, True, True)
        return _only(common)

    def _computed(self, operator: Operator) -> _OracleKnown:
        if operator is Operator.LIST and self.step.relation:
            return self._paired()
        if operator in {Operator.COUNT, Operator.LIST}:
            given = self._all()
            if not given.all_known:
                raise _OpenError
            items = frozenset(given.values)
            if operator is Operator.COUNT:
                return _single(("number", Fraction(len(items)), ""))
            return _OracleKnown([(("list", items), None)] if items else [], True, True)
        if operator in {Operator.SUM, Operator.DIFFERENCE}:
            return self._calculated(operator)
        return self._compared(operator)

    def _paired(self) -> _OracleKnown:
        things = self._all()
        values = {name: self._of(name) for name in things.values}
        if not things.all_known and not (things.presupposed and len(values) == 1):
            raise _OpenError
        if any(name[0] != "entity" or len(found) != 1 for name, found in values.items()):
            raise _OpenError
        if any(found[0][0] in ("entity", "list") for found in values.values()):
            raise _OpenError
        items = frozenset([*values, *(found[0] for found in values.values())])
        return _OracleKnown([(("list", items), None)] if items else [], True, True)

    def _calculated(self, operator: Operator) -> _OracleKnown:
        if not all(one.presupposed for one in self.given):
            raise _OpenError
        values = [value for one in self.given for value, _ in one.bag]
        kinds = {(value[0], value[2] if value[0] == "number" else "") for value in values}
        if len(values) < 2 or len(kinds) != 1:
            raise _OpenError
        ((kind, unit),) = kinds
        if kind == "number":
            amounts = [amount for value in values if isinstance(amount := value[1], Fraction)]
            if operator is Operator.SUM:
                return _single(("number", sum(amounts, Fraction(0)), unit))
            if len(amounts) == 2:
                return _single(("number", abs(amounts[0] - amounts[1]), unit))
        if kind == "date" and operator is Operator.DIFFERENCE and len(values) == 2:
            return _single(("number", Fraction(_years(*sorted(_whole(value) for value in values))), "year"))
        raise _OpenError

    def _compared(self, operator: Operator) -> _OracleKnown:
        if len(self.given) != 2 or not all(one.values for one in self.given):
            raise _OpenError
        first, second = self.given
        if operator is Operator.EQUAL and (len(first.values) > 1 or len(second.values) > 1):
            if not (first.all_known and second.all_known):
                raise _OpenError
            return _single(("bool", set(first.values) == set(second.values)))
        truths = [_truth(operator, one, other) for one in first.values for other in second.values]
        if None in truths:
            raise _OpenError
        return _only([(("bool", truth), None) for truth in truths])


def _opened(known: _OracleKnown) -> _OracleKnown:
    """Return the items of stated lists in place of the lists."""
    if not any(value[0] == "list" for value, _ in known.bag):
        return known
    bag: list[tuple[Plain, object]] = []
    for value, origin in known.bag:
        bag += [(item, origin) for item in _list_items(value)]
    alone = len(known.bag) == 1
    return _OracleKnown(bag, alone, alone)


def _list_items(value: Plain) -> list[Plain]:
    if value[0] != "list" or not isinstance(value[1], frozenset):
        return [value]
    return [item for item in value[1] if isinstance(item, tuple)]  # pyright: ignore[reportUnknownVariableType]


def _single(value: Plain) -> _OracleKnown:
    return _OracleKnown([(value, None)], True, True)


def _only(bag: Sequence[tuple[Plain, object]]) -> _OracleKnown:
    """Return values that may not be all; a single one can be presupposed to be the only one."""
    return _OracleKnown(bag, False, len({value for value, _ in bag}) == 1)


def _some(outcomes: Iterable[bool | None]) -> bool | None:
    found = set(outcomes)
    if True in found:
        return True
    return False if found == {False} else None


def _days(date: Plain) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the first and the last day that a date can mean."""
    year, month, day = _whole(date)
    return (year, month or 1, day or 1), (year, month or 12, day or 31)


def _whole(date: Plain) -> tuple[int, int, int]:
    year, month, day = (part if isinstance(part, int) else 0 for part in date[1:4])
    return year, month, day


def _years(early: tuple[int, int, int], late: tuple[int, int, int]) -> int:
    precise = [sum(part != 0 for part in date) for date in (early, late)]
    if precise[0] != precise[1] or early[1:] > late[1:]:
        raise _OpenError
    # The year after 1 BC is 1.
    return late[0] - early[0] - (1 if early[0] < 0 < late[0] else 0)


def _order(one: Plain, other: Plain) -> int | None:
    if one[0] == other[0] == "number" and one[2] == other[2]:
        first, second = one[1], other[1]
        if isinstance(first, Fraction) and isinstance(second, Fraction):
            return 0 if first == second else 1 if first > second else -1
    if one[0] == other[0] == "date":
        if one == other:
            return 0
        (start, end), (other_start, other_end) = _days(one), _days(other)
        return -1 if end < other_start else 1 if start > other_end else None
    return None


def _states(value: Plain, wanted: Plain) -> bool:
    if value[0] == "list" and isinstance(value[1], frozenset):
        return wanted in value[1]
    if value[0] == wanted[0] == "date":
        (start, end), (first, last) = _days(value), _days(wanted)
        return first <= start and end <= last
    return value == wanted


def _meets(value: Plain, comparison: Comparison, bounds: tuple[Plain, ...]) -> bool | None:
    if comparison is Comparison.EQUAL:
        return _states(value, bounds[0])
    if comparison is Comparison.WITHIN:
        if value[0] == bounds[0][0] == bounds[-1][0] == "date":
            (start, end), first, last = _days(value), _days(bounds[0])[0], _days(bounds[-1])[1]
            return True if first <= start and end <= last else False if end < first or start > last else None
        low, high = _order(value, bounds[0]), _order(value, bounds[-1])
        return None if low is None or high is None else low >= 0 >= high
    order = _order(value, bounds[0])
    return None if order is None else order == (1 if comparison is Comparison.MORE else -1)


def _truth(operator: Operator, one: Plain, other: Plain) -> bool | None:
    order = _order(one, other)
    if operator is Operator.EQUAL:
        if one == other:
            return True
        return None if order is None and one[0] == other[0] and one[0] in ("number", "date") else False
    if order is None or (operator is Operator.BEFORE and one[0] != "date"):
        return None
    if order == 0 and one[0] == "date" and one[3] == 0:
        return None
    return order == (-1 if operator is Operator.BEFORE else 1)
