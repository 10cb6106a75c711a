"""Evaluation of programs: all answers that the facts of a store allow."""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from itertools import product
from typing import Final

from msgspec import Struct

from agentflow.facts._facts import Fact
from agentflow.facts._ordering import compare, difference, equal, fits, form_of, lies_within, total
from agentflow.facts._programs import Comparison, Operator, Program, ProgramInput, ProgramStep
from agentflow.facts._store import FactStore
from agentflow.facts._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    Value,
    show_value,
)

MAX_STEPS: Final = 32
"""Most steps of a program."""
MAX_WORK: Final = 300_000
"""Most facts and values that an evaluation looks at."""
MAX_TIES: Final = 100
"""Most values that may share the greatest or the least rank."""


class DerivedAnswer(Struct, frozen=True):
    """An answer that a program computes."""

    value: Value
    """The answer."""
    facts: tuple[str, ...]
    """Ids of the facts of one derivation, in the order of the program."""


class ProgramAnswers(Struct, frozen=True):
    """All answers that a program computes, or the reason for having none."""

    answers: tuple[DerivedAnswer, ...]
    """Different answers, in the order of the facts."""
    reason: str = ""
    """Reason for having none, such as `step 2: Tern Rock has no height`."""


def evaluate(program: Program, store: FactStore, without: Collection[str] = frozenset()) -> ProgramAnswers:
    """Compute all answers of a program from the facts of a store.

    The result of a step is a set of values. Sums, counts, lists and superlatives need a set that is known to be
    complete: named things, the members of a closed set, or what each of those has exactly one of. A malformed
    program, or one whose answer the facts leave open, has no answers and a reason.

    See docs/facts.md for examples.

    :param without: ids of facts that count as unknown.
    """
    if not 0 < len(program) <= MAX_STEPS:
        return ProgramAnswers((), f"a program has 1 to {MAX_STEPS} steps, this one has {len(program)}")
    run = _Run(store, without)
    try:
        for step in program:
            run.results.append(run.step(step))
        found = run.results[-1].values().items()
        answers = tuple(DerivedAnswer(value, run.facts_of(support)) for value, support in found)
    except _Undetermined as reason:
        return ProgramAnswers((), f"step {min(len(run.results) + 1, len(program))}: {reason}")
    return ProgramAnswers(answers, "" if answers else f"step {len(program)}: nothing fits")


def answer_of(program: Program, store: FactStore, without: Collection[str] = frozenset()) -> Value | None:
    """Return the answer of a program if the facts of a store allow exactly one.

    See docs/facts.md for examples.

    :param without: ids of facts that count as unknown.
    """
    answers = evaluate(program, store, without).answers
    return answers[0].value if len(answers) == 1 else None


class _Undetermined(Exception):
    """The facts leave the result of a step open, or the step is malformed."""


class _Scope(IntEnum):
    """Knowledge about a set besides the values in it."""

    OPEN = 0
    """It may have other members."""
    DEFINITE = 1
    """Questions presuppose that it has no other members, as in `the captain of the Gull`."""
    CLOSED = 2
    """It has no other members."""


@dataclass(frozen=True, eq=False, slots=True)
class _Support:
    """Facts of a derivation and the derivations that it continues, which are shared between values."""

    facts: tuple[str, ...] = ()
    earlier: tuple["_Support", ...] = ()


_NONE: Final = _Support()


@dataclass(frozen=True, slots=True)
class _Result:
    """Result of a step: a value per fact that gives it, so that a sum counts equal numbers of two things twice."""

    rows: Sequence[tuple[Value, _Support]]
    scope: _Scope
    basis: _Support = _NONE
    """Facts that decided which values belong to it."""

    def values(self) -> dict[Value, _Support]:
        """Return the different values, each with its first derivation."""
        return dict(self.rows) if len(self.rows) == 1 else dict(self.forms().values())

    def forms(self) -> dict[Hashable, tuple[Value, _Support]]:
        """Return the different values and their first derivations by their forms."""
        forms: dict[Hashable, tuple[Value, _Support]] = {}
        for row in self.rows:
            forms.setdefault(form_of(row[0]), row)
        return forms


class _Run:
    """Evaluation of one program."""

    def __init__(self, store: FactStore, without: Collection[str]) -> None:
        self.store = store
        self.without = without
        self.results: list[_Result] = []
        self.work = 0

    def facts_of(self, support: _Support) -> tuple[str, ...]:
        """Return the facts of a derivation, earlier ones first."""
        facts: dict[str, None] = {}
        seen: set[_Support] = set()
        open_ends = [(support, False)]
        while open_ends:
            one, expanded = open_ends.pop()
            if expanded:
                facts.update(dict.fromkeys(one.facts))
            elif one not in seen:
                seen.add(one)
                self._spend(1 + len(one.facts))
                open_ends.append((one, True))
                open_ends.extend((other, False) for other in reversed(one.earlier))
        return tuple(facts)

    def step(self, step: ProgramStep) -> _Result:
        """Return the result of a step from those of earlier ones."""
        match step.operator:
            case Operator.MEMBERS:
                return self._members(step)
            case Operator.FOLLOW:
                return self._follow(self._input(step), step)
            case Operator.FIND:
                return self._find(self._input(step), step)
            case Operator.WHERE:
                return self._where(step)
            case Operator.AND:
                return self._and(self._inputs(step))
            case Operator.OR:
                return self._input(step)
            case Operator.GREATEST | Operator.LEAST:
                return self._superlative(step)
            case Operator.COUNT | Operator.LIST:
                return self._collect(step)
            case Operator.SUM | Operator.DIFFERENCE:
                return self._calculate(step)
            case Operator.BEFORE | Operator.GREATER | Operator.EQUAL:
                return self._compare(step)

    def _spend(self, amount: int) -> None:
        self.work += amount
        if self.work > MAX_WORK:
            raise _Undetermined("too many values")

    def _resolve(self, given: ProgramInput) -> _Result:
        if not isinstance(given, int):
            return _Result([(self._canonical(item), _NONE) for item in _items(given)], _Scope.CLOSED)
        if not 0 < given <= len(self.results):
            raise _Undetermined(f"there is no earlier step {given}")
        result = self.results[given - 1]
        # A list that a fact states is a set of values to the next step.
        if any(isinstance(value, ListValue) for value, _ in result.rows):
            rows = [(item, support) for value, support in result.rows for item in _items(value)]
            scope = _Scope.CLOSED if len(result.rows) == 1 else _Scope.OPEN
            result = _Result(rows, scope, result.basis)
        self._spend(len(result.rows))
        return result

    def _canonical(self, value: ScalarValue) -> Value:
        return EntityValue(self.store.canonical(value.name)) if isinstance(value, EntityValue) else value

    def _inputs(self, step: ProgramStep) -> list[_Result]:
        if not step.inputs:
            raise _Undetermined(f"{step.operator} needs an input")
        return [self._resolve(given) for given in step.inputs]

    def _input(self, step: ProgramStep) -> _Result:
        """Return the union of a step's inputs."""
        inputs = self._inputs(step)
        if len(inputs) == 1:
            return inputs[0]
        rows = [row for one in inputs for row in one.rows]
        return _Result(rows, min(one.scope for one in inputs), _join(one.basis for one in inputs))

    def _members(self, step: ProgramStep) -> _Result:
        members = self.store.sets.get(step.name)
        if members is None:
            raise _Undetermined(f"there is no closed set {step.name}")
        self._spend(len(members.members))
        return _Result([(EntityValue(name), _NONE) for name in members.members], _Scope.CLOSED)

    def _facts(self, facts: Sequence[Fact], step: ProgramStep) -> list[Fact]:
        """Return those facts that are known and hold in the year of the step."""
        self._spend(1 + len(facts))
        return [
            fact
            for fact in facts
            if fact.id not in self.without
            and (not step.time or (fact.time is not None and fact.time.year == step.time))
        ]

    def _of(self, subject: Value, step: ProgramStep) -> list[Fact]:
        if not step.relation:
            raise _Undetermined(f"{step.operator} needs a relation")
        if not isinstance(subject, EntityValue):
            return []
        return self._facts(self.store.of(subject.name, step.relation), step)

    def _follow(self, subjects: _Result, step: ProgramStep) -> _Result:
        rows: list[tuple[Value, _Support]] = []
        found = subjects.values()
        single = True
        for subject, support in found.items():
            facts = _distinct(self._of(subject, step))
            single = single and len(facts) == 1
            rows += [(fact.value, _join([support], fact)) for fact in facts]
        scope = subjects.scope if single and found else _Scope.OPEN
        # The only known captain of a ship can be taken for "the captain", but not for all its captains.
        if len(found) == 1 and scope is _Scope.CLOSED:
            scope = _Scope.DEFINITE
        return _Result(rows, scope, _join([subjects.basis, *(support for _, support in rows)]))

    def _find(self, values: _Result, step: ProgramStep) -> _Result:
        rows: list[tuple[Value, _Support]] = []
        if not step.relation:
            raise _Undetermined("find needs a relation")
        for value, support in values.values().items():
            stating = self.store.stating(step.relation, value)
            # Other forms of a number, a date or words can state it, too.
            if not stating or not isinstance(value, EntityValue):
                every = self.store.having(step.relation)
                self._spend(len(every))
                stating = [fact for fact in every if fits(fact.value, value)]
            rows += [
                (EntityValue(fact.subject), _join([support], fact)) for fact in self._facts(stating, step)
            ]
        return _definite(rows, values.basis)

    def _where(self, step: ProgramStep) -> _Result:
        if not 2 <= len(step.inputs) <= (3 if step.comparison is Comparison.WITHIN else 2):
            raise _Undetermined("where needs a set and a bound")
        subjects, *bounds = self._inputs(step)
        limits = [(list(bound.values()), bound) for bound in bounds]
        rows: list[tuple[Value, _Support]] = []
        consulted: list[Fact] = []
        sure = all(len(values) == 1 for values, _ in limits)
        for subject, support in subjects.values().items():
            facts = self._of(subject, step)
            consulted += facts
            verdicts = [
                (_any_meets(fact.value, step, [values for values, _ in limits]), fact) for fact in facts
            ]
            self._spend(len(facts) * max(1, *(len(values) for values, _ in limits)))
            sure = sure and len({verdict for verdict, _ in verdicts}) == 1 and verdicts[0][0] is not None
            meeting = next((fact for verdict, fact in verdicts if verdict), None)
            if meeting is not None:
                rows.append((subject, _join([support, *(bound.basis for _, bound in limits)], meeting)))
        basis = _join([subjects.basis, *(bound.basis for _, bound in limits)], *consulted)
        if subjects.scope is _Scope.CLOSED and sure:
            return _Result(rows, _Scope.CLOSED, basis)
        return _definite(rows, basis)

    def _and(self, inputs: list[_Result]) -> _Result:
        first, *others = [one.forms() for one in inputs]
        rows: list[tuple[Value, _Support]] = [
            (value, _join([support, *(other[form][1] for other in others)]))
            for form, (value, support) in first.items()
            if all(form in other for other in others)
        ]
        basis = _join(one.basis for one in inputs)
        if all(one.scope is _Scope.CLOSED for one in inputs):
            return _Result(rows, _Scope.CLOSED, basis)
        return _definite(rows, basis)

    def _superlative(self, step: ProgramStep) -> _Result:
        subjects = self._input(step)
        found = subjects.values()
        if subjects.scope is _Scope.OPEN or len(found) < 2:
            raise _Undetermined(f"{step.operator} needs a complete set of at least two things")
        ranked: list[tuple[Value, Value]] = []
        consulted: list[Fact] = []
        for subject in found:
            facts = _distinct(self._of(subject, step))
            if len(facts) != 1:
                raise _Undetermined(
                    f"{_shown(subject)} has {'several values' if facts else 'no value'} of {step.relation}"
                )
            consulted += facts
            ranked.append((subject, facts[0].value))
        wanted = 1 if step.operator is Operator.GREATEST else -1
        best: list[tuple[Value, Value]] = []
        for subject, value in ranked:
            if compare(value, value) is None:
                raise _Undetermined(f"{_shown(subject)} has no number or date as {step.relation}")
            if not any(compare(other, value) == wanted for _, other in best):
                best = [one for one in best if compare(value, one[1]) != wanted]
                best.append((subject, value))
            if len(best) > MAX_TIES:
                raise _Undetermined("too many values share a rank")
        basis = _join([subjects.basis, *found.values()], *consulted)
        return _definite([(subject, basis) for subject, _ in best], basis)

    def _records(self, step: ProgramStep) -> _Result:
        """Return one list of all things, each followed by its value of the relation."""
        given = self._input(step)
        found = given.values()
        if given.scope is _Scope.OPEN or (given.scope is _Scope.DEFINITE and len(found) != 1):
            raise _Undetermined(f"{step.operator} needs a complete set")
        items: list[ScalarValue] = []
        consulted: list[Fact] = []
        for subject in found:
            facts = _distinct(self._of(subject, step))
            if len(facts) != 1:
                raise _Undetermined(
                    f"{_shown(subject)} has {'several values' if facts else 'no value'} of {step.relation}"
                )
            value = facts[0].value
            # Records are told apart by the kind of their first item.
            if not isinstance(subject, EntityValue) or isinstance(value, EntityValue | ListValue):
                raise _Undetermined(f"{step.operator} pairs names with numbers, dates or words")
            items += [subject, value]
            consulted.append(facts[0])
        basis = _join([given.basis, *found.values()], *consulted)
        return _Result([(ListValue(tuple(items)), basis)] if items else [], _Scope.CLOSED, basis)

    def _collect(self, step: ProgramStep) -> _Result:
        if step.operator is Operator.LIST and step.relation:
            return self._records(step)
        given = self._input(step)
        if given.scope is not _Scope.CLOSED:
            raise _Undetermined(f"{step.operator} needs a complete set")
        values = [item for value in given.values() for item in _items(value)]
        basis = _join([given.basis, *(support for _, support in given.rows)])
        if step.operator is Operator.COUNT:
            return _Result([(NumberValue(Decimal(len(values))), basis)], _Scope.CLOSED, basis)
        return _Result([(ListValue(tuple(values)), basis)] if values else [], _Scope.CLOSED, basis)

    def _calculate(self, step: ProgramStep) -> _Result:
        inputs = self._inputs(step)
        if any(one.scope is _Scope.OPEN for one in inputs):
            raise _Undetermined(f"{step.operator} needs complete sets of numbers")
        values = [value for one in inputs for value, _ in one.rows]
        result: Value | None = None
        if step.operator is Operator.SUM:
            result = total(values)
        elif len(values) == 2:
            result = difference(*values)
        if result is None:
            raise _Undetermined(f"{step.operator} needs numbers of one unit")
        basis = _join(support for one in inputs for support in (one.basis, *(row[1] for row in one.rows)))
        return _Result([(result, basis)], _Scope.CLOSED, basis)

    def _compare(self, step: ProgramStep) -> _Result:
        inputs = self._inputs(step)
        if len(inputs) != 2:
            raise _Undetermined(f"{step.operator} needs two inputs")
        first, second = (one.values() for one in inputs)
        if not first or not second:
            raise _Undetermined("there is nothing to compare")
        rows: list[tuple[Value, _Support]] = []
        if step.operator is Operator.EQUAL and max(len(first), len(second)) > 1:
            if any(one.scope is not _Scope.CLOSED for one in inputs):
                raise _Undetermined("equal needs complete sets")
            basis = _join(one.basis for one in inputs)
            return _Result(
                [(BoolValue(inputs[0].forms().keys() == inputs[1].forms().keys()), basis)],
                _Scope.CLOSED,
                basis,
            )
        self._spend(len(first) * len(second))
        for (one, its_support), (other, other_support) in product(first.items(), second.items()):
            verdict = _verdict(step.operator, one, other)
            if verdict is None:
                raise _Undetermined(f"{_shown(one)} and {_shown(other)} cannot be compared")
            rows.append((BoolValue(verdict), _join([its_support, other_support])))
        return _definite(rows, _join(one.basis for one in inputs))


def _items(value: Value) -> Sequence[ScalarValue]:
    return value.items if isinstance(value, ListValue) else (value,)


def _join(earlier: Iterable[_Support], *facts: Fact) -> _Support:
    used = tuple(dict.fromkeys(one for one in earlier if one is not _NONE))
    if not facts and len(used) < 2:
        return used[0] if used else _NONE
    return _Support(tuple(fact.id for fact in facts), used)


def _distinct(facts: Sequence[Fact]) -> list[Fact]:
    """Return the first fact with each value."""
    if len(facts) == 1:
        return list(facts)
    found: dict[Hashable, Fact] = {}
    for fact in facts:
        found.setdefault(form_of(fact.value), fact)
    return list(found.values())


def _definite(rows: Sequence[tuple[Value, _Support]], basis: _Support) -> _Result:
    """Return a result that is definite if it has one value: `the lighthouse that was built in 1834`."""
    one = len({form_of(value) for value, _ in rows}) == 1
    return _Result(rows, _Scope.DEFINITE if one else _Scope.OPEN, rows[0][1] if one else basis)


def _any_meets(value: Value, step: ProgramStep, bounds: Sequence[Sequence[Value]]) -> bool | None:
    """Return whether a value compares as the step demands with any choice of the bounds, `None` if that is open."""
    verdicts = {_meets(value, step.comparison, chosen) for chosen in product(*bounds)}
    return True if True in verdicts else None if None in verdicts or not verdicts else False


def _meets(value: Value, comparison: Comparison, bounds: Sequence[Value]) -> bool | None:
    match comparison:
        case Comparison.EQUAL:
            return any(fits(item, bounds[0]) for item in _items(value))
        case Comparison.WITHIN:
            return lies_within(value, bounds[0], bounds[-1])
        case Comparison.LESS | Comparison.MORE:
            order = compare(value, bounds[0])
            return None if order is None else order == (-1 if comparison is Comparison.LESS else 1)


def _verdict(operator: Operator, first: Value, second: Value) -> bool | None:
    if operator is Operator.EQUAL:
        return equal(first, second)
    dated = isinstance(first, DateValue)
    order = compare(first, second)
    if order is None or (operator is Operator.BEFORE and not dated):
        return None
    # Two events of the same year have an order that the year does not tell.
    if order == 0 and dated and not first.day:
        return None
    return order == (-1 if operator is Operator.BEFORE else 1)


def _shown(value: Value) -> str:
    return show_value(value)
