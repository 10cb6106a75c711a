"""Obfuscation: skeletons whose constants are described, generalised, or described with a clue less."""

from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_FLOOR, Decimal
from itertools import combinations, permutations
from typing import Final, NamedTuple

import msgspec

from agentflow.facts._candidates import functional_relations
from agentflow.facts._conditions import readable
from agentflow.facts._enumeration import leaks
from agentflow.facts._evaluation import evaluate
from agentflow.facts._facts import KIND, Fact
from agentflow.facts._ordering import lies_within
from agentflow.facts._programs import Comparison, Operator, Program, ProgramStep
from agentflow.facts._skeletons import Description, Skeleton
from agentflow.facts._store import FactStore
from agentflow.facts._support import is_needed
from agentflow.facts._values import (
    DateValue,
    EntityValue,
    NumberValue,
    TextValue,
    Value,
    show_value,
    values_agree,
)
from agentflow.trajectory import digest

HIGHEST_LEVEL: Final = 3
"""Level at which descriptions say as little as possible."""
MAX_CLUES: Final = 6
"""Most facts about an entity that are tried as clues."""


def obfuscate(skeleton: Skeleton, level: int, store: FactStore) -> Skeleton:
    """Return a skeleton at a level of obfuscation, or at the highest lower one that keeps its answer unique.

    The level of the result is 0, and the skeleton itself, if no constant can be described. At level 1 named entities
    are described by one or two facts; at level 2 by years and numbers of them that are given as ranges, such as `the
    1830s`, or by two such clues; at level 3 by wide ranges, such as a century, and as few of them as possible. The answer is computed again from the
    program of the result.

    See docs/facts.md for examples.

    :param level: wanted level, from 0.
    """
    if skeleton.level:
        raise ValueError(f"skeleton {skeleton.id} is at level {skeleton.level}: obfuscate the one at level 0")
    for wanted in range(min(level, HIGHEST_LEVEL), 0, -1):
        if (found := _at_level(skeleton, wanted, store)) is not None:
            return found
    return skeleton


class Clue(NamedTuple):
    """A condition that a described entity meets."""

    step: ProgramStep
    """`find`, or `where` whose first input is the result of the clue before."""
    words: str
    """Condition in words: `year of opening is in the 1830s`."""


class _Describer:
    """Descriptions of the constants of a skeleton, without the facts that it rests on."""

    def __init__(self, skeleton: Skeleton, store: FactStore) -> None:
        self.store = store
        self.functional = functional_relations(store)
        self.used = frozenset(skeleton.facts)
        self.secret = frozenset((*skeleton.hidden, *skeleton.given))
        self.answer = skeleton.answer

    def describe(self, name: str, level: int) -> Description | None:
        """Return a description that fits an entity only, `None` if there is none."""
        facts = self._known(name)
        kind = next((fact.value for fact in facts if fact.relation == KIND), None)
        noun = (
            kind.text if isinstance(kind, TextValue) else kind.name if isinstance(kind, EntityValue) else ""
        )
        usable = [fact for fact in facts if fact.relation != KIND][:MAX_CLUES]
        makers: Mapping[int, Iterator[list[Clue]]] = {
            1: self._exact(usable, kind),
            2: self._general(usable, kind, clues=(1, 2)),
            3: self._fewer(usable, kind),
        }
        for clues in makers[level]:
            program = _chain(clues)
            if [one.value for one in evaluate(program, self.store).answers] == [EntityValue(name)]:
                words = " and ".join(f"whose {clue.words}" for clue in clues if clue.words)
                return Description(EntityValue(name), f"the {noun or 'one'} {words}", program)
        return None

    def _known(self, name: str) -> list[Fact]:
        """Return facts about an entity that describe it without giving anything away."""
        return [
            fact
            for fact in self.store.about(name)
            if fact.id not in self.used
            and fact.time is None
            and readable(fact.relation)
            and not (isinstance(fact.value, EntityValue) and fact.value.name in self.secret)
            and not values_agree(fact.value, self.answer)
            and (fact.relation in self.functional or fact.relation == KIND)
            and len({one.value for one in self.store.of(name, fact.relation)}) == 1
        ]

    def _exact(self, facts: list[Fact], kind: Value | None) -> Iterator[list[Clue]]:
        named = [
            Clue(
                ProgramStep(Operator.FIND, (fact.value,), fact.relation),
                f"{fact.relation} is {show_value(fact.value)}",
            )
            for fact in sorted(facts, key=lambda fact: isinstance(fact.value, NumberValue))
            if isinstance(fact.value, EntityValue | DateValue | NumberValue)
        ]
        base = _kind_clue(kind)
        for clue in named:
            yield [clue]
        for clue in named if base else ():
            yield [*base, clue]
        for pair in combinations(named, 2):
            yield list(pair)

    def _general(
        self, facts: Iterable[Fact], kind: Value | None, clues: tuple[int, ...]
    ) -> Iterator[list[Clue]]:
        """Return ranges of years and numbers among things of a kind, narrow ones first."""
        base = _kind_clue(kind)
        if not base:
            return
        found = list(facts)
        for number in clues:
            for size in range(2):
                ranges = [clue for fact in found if (clue := _range_clue(fact, size)) is not None]
                for chosen in combinations(ranges, number):
                    yield [*base, *chosen]

    def _fewer(self, facts: list[Fact], kind: Value | None) -> Iterator[list[Clue]]:
        """Return descriptions that say less than at level 2: one wide range, two, or a wide and a narrow one."""
        base = _kind_clue(kind)
        wide, narrow = (
            {fact.id: clue for fact in facts if (clue := _range_clue(fact, size)) is not None}
            for size in (1, 0)
        )
        for number in (1, 2) if base else ():
            for chosen in combinations(wide.values(), number):
                yield [*base, *chosen]
        for first, second in permutations(wide, 2) if base else ():
            if second in narrow:
                yield [*base, wide[first], narrow[second]]


def _at_level(skeleton: Skeleton, level: int, store: FactStore) -> Skeleton | None:
    describer = _Describer(skeleton, store)
    constants = [
        name
        for name in skeleton.given
        if EntityValue(name) in {given for step in skeleton.program for given in step.inputs}
    ]
    descriptions = [found for name in constants if (found := describer.describe(name, level)) is not None]
    if level > 2 and descriptions:
        # Another constant may only have a description with more clues.
        known = {one.constant for one in descriptions}
        others = (name for name in constants if EntityValue(name) not in known)
        descriptions += [found for name in others if (found := describer.describe(name, 2)) is not None]
    while descriptions:
        described = _with_descriptions(skeleton, level, descriptions, store)
        if described is not None:
            return described
        descriptions.pop()
    return None


def _with_descriptions(
    skeleton: Skeleton, level: int, descriptions: list[Description], store: FactStore
) -> Skeleton | None:
    steps: list[ProgramStep] = []
    places: dict[Value, int] = {}
    for description in descriptions:
        steps += _moved(description.program, len(steps))
        places[description.constant] = len(steps)
    steps += _moved(skeleton.program, len(steps), places)
    program = tuple(steps)
    answers = evaluate(program, store).answers
    if [one.value for one in answers] != [skeleton.answer]:
        return None
    facts = tuple(one for one in answers[0].facts if is_needed(one, program, skeleton.answer, store))
    if not set(skeleton.facts) <= set(facts):
        return None
    names = {given.name for step in program for given in step.inputs if isinstance(given, EntityValue)}
    given = [name for name in skeleton.given if name in names]
    given += [name for name in dict.fromkeys(_constants(program)) if name not in given]
    described = [one.constant.name for one in descriptions if isinstance(one.constant, EntityValue)]
    hidden = tuple(dict.fromkeys((*skeleton.hidden, *described)))
    if set(given) & set(hidden):
        return None
    found = msgspec.structs.replace(
        skeleton,
        id=digest([skeleton.kind, program, level]),
        program=program,
        level=level,
        descriptions=tuple(descriptions),
        given=tuple(given),
        hidden=hidden,
        facts=facts,
    )
    return None if leaks(found, store) else found


def _constants(program: Program) -> Iterator[str]:
    for step in program:
        yield from (given.name for given in step.inputs if isinstance(given, EntityValue))


def _moved(program: Program, start: int, places: Mapping[Value, int] | None = None) -> list[ProgramStep]:
    """Return the steps of a program behind others, with constants replaced by the results of steps."""
    known = places or {}
    return [
        msgspec.structs.replace(
            step,
            inputs=tuple(
                given + start if isinstance(given, int) else known.get(given, given) for given in step.inputs
            ),
        )
        for step in program
    ]


def _chain(clues: Iterable[Clue]) -> Program:
    """Return the program of all clues: things found by the first, of which those that meet the others are left."""
    steps: list[ProgramStep] = []
    for clue in clues:
        if clue.step.operator is Operator.WHERE:
            steps.append(msgspec.structs.replace(clue.step, inputs=(len(steps), *clue.step.inputs)))
        elif not steps:
            steps.append(clue.step)
        else:
            steps.append(clue.step)
            steps.append(ProgramStep(Operator.AND, (len(steps) - 1, len(steps))))
    return tuple(steps)


def _kind_clue(kind: Value | None) -> list[Clue]:
    return [] if kind is None else [Clue(ProgramStep(Operator.FIND, (kind,), KIND), "")]


def _range_clue(fact: Fact, size: int) -> Clue | None:
    """Return the decade or century of a year, or the range of a number with one leading digit or half of the next."""
    found = decade_of(fact.value, 100 if size else 10) if isinstance(fact.value, DateValue) else None
    if found is None and isinstance(fact.value, NumberValue):
        found = range_of(fact.value, 5 if size else 1)
    if found is None or not lies_within(fact.value, found[0], found[1]):
        return None
    step = ProgramStep(Operator.WHERE, found[:2], fact.relation, Comparison.WITHIN)
    return Clue(step, f"{fact.relation} is {found[2]}")


def decade_of(date: DateValue, years: int = 10) -> tuple[Value, Value, str] | None:
    """Return the first and last year of the decade or century of a date, and words for it.

    >>> decade_of(DateValue(1834))[2]
    'in the 1830s'
    """
    if date.year < 1000:
        return None
    if years == 10:
        first = date.year - date.year % 10
        return DateValue(first), DateValue(first + 9), f"in the {first}s"
    century = (date.year + 99) // 100
    ending = {1: "st", 2: "nd", 3: "rd"}.get(century % 10 if century // 10 != 1 else 0, "th")
    return DateValue(century * 100 - 99), DateValue(century * 100), f"in the {century}{ending} century"


def range_of(number: NumberValue, steps: int = 1) -> tuple[Value, Value, str] | None:
    """Return the range of a positive number between round ones, and words for it.

    >>> range_of(NumberValue(Decimal(34), "metres"))[2]
    'between 30 and 40 metres'
    """
    if number.amount <= 0:
        return None
    size = Decimal(1).scaleb(number.amount.adjusted()) * steps
    low = (number.amount / size).to_integral_value(ROUND_FLOOR) * size
    ends = NumberValue(_plain(low), number.unit), NumberValue(_plain(low + size), number.unit)
    shown = show_value(NumberValue(ends[0].amount))
    return *ends, f"between {shown} and {show_value(ends[1])}"


def _plain(amount: Decimal) -> Decimal:
    return amount.quantize(Decimal(1)) if amount == amount.to_integral_value() else amount.normalize()
