"""Good drafts of nine kinds, made from patterns over everything that is true and confirmed by brute force."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from random import Random

import msgspec

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
    ProgramInput,
    ProgramStep,
    QuestionKind,
    TextValue,
    Value,
    obfuscate,
    show_value,
    skeleton_of,
)
from agentflow.synthesis._question_draft import QuestionDraft
from agentflow.testing import oracle_answers
from benchmarks._gate_labels import faults, needed_by
from benchmarks._gate_language import write_question
from benchmarks._gate_scenes import Case, Scene, content, scene

GOOD = 120
ATTEMPTS = 200
"""Programs that are tried for a draft."""
SCENES = 4
"""Worlds of a set of drafts."""
KINDS = tuple(QuestionKind)
MAX_LEVEL = 3
"""Obfuscation of drafts: every second one is written at a level above 0, if its answer stays unique."""


def good_cases(seed: int, count: int = GOOD) -> Iterator[Case]:
    """Yield good drafts, the kinds in turns; no two of them ask the same."""
    asked: set[str] = set()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        found = _new(seed, "good", number, kind, asked)
        if found is None:
            raise ValueError(f"no further draft of the kind {kind}")
        yield found


def more_cases(
    seed: int, name: str, kinds: Iterable[QuestionKind] = KINDS, *, levels: bool = False
) -> Iterator[Case]:
    """Yield good drafts without end: material to be spoilt.

    :param name: drafts with different names are different.
    :param levels: obfuscate some of them.
    """
    wanted = tuple(kinds)
    asked: set[str] = set()
    number = 0
    while True:
        level = number if levels else 0
        found = _new(seed, f"{name} {number}", level, wanted[number % len(wanted)], asked)
        if found is not None:
            yield found
        number += 1


def _new(seed: int, name: str, number: int, kind: QuestionKind, asked: set[str]) -> Case | None:
    """Return a confirmed draft of a kind that is different from all earlier ones, if there is one."""
    for attempt in range(ATTEMPTS):
        random = Random(f"{seed} {name} {number} {kind} {attempt}")
        place = scene(seed * 100 + random.randrange(SCENES))
        program = _PATTERNS[kind](_Things(place, random))
        case = None if program is None else case_of(place, kind, program)
        if case is not None and number % 2 and (harder := _obfuscated(case, number // 2 % MAX_LEVEL + 1)):
            case = harder
        if case is not None and case.draft.question not in asked and not faults(case):
            asked.add(case.draft.question)
            return case
    return None


def case_of(place: Scene, kind: QuestionKind, program: Program) -> Case | None:
    """Return the draft of a program, or `None` if it does not have one answer."""
    truth = place.truth
    answer = answer_in(program, truth)
    if answer is None:
        return None
    given = tuple(
        dict.fromkeys(one.name for step in program for one in step.inputs if isinstance(one, EntityValue))
    )
    passed = [answer_in(program[: number + 1], truth) for number in range(len(program))]
    secret = dict.fromkeys(one.name for one in passed if isinstance(one, EntityValue))
    sets = {one.id: one.description for one in truth.sets.values()}
    draft = QuestionDraft(
        question=write_question(program, sets),
        kind=kind,
        program=program,
        answer=answer,
        facts=cited(program, place),
        given=given,
        hidden=tuple(name for name in secret if name not in given),
    )
    return Case(kind=str(kind), draft=draft, scene=place)


def cited(program: Program, place: Scene) -> tuple[str, ...]:
    """Return the ids of the extracted facts that a program needs."""
    needed = needed_by(program, place.truth)
    return tuple(fact.id for fact in place.known.store.facts if content(fact) in needed)


def answer_in(program: Program, store: FactStore) -> Value | None:
    """Return the one answer of a program, by brute force."""
    found = oracle_answers(program, store)
    return value_of_plain(next(iter(found))) if len(found) == 1 else None


def value_of_plain(plain: tuple[object, ...]) -> Value:
    """Return the value that a tuple of the oracle stands for."""
    match plain:
        case ("entity", str(name)):
            return EntityValue(name)
        case ("date", int(year), int(month), int(day)):
            return DateValue(year, month, day)
        case ("text", str(text)):
            return TextValue(text)
        case ("bool", bool(truth)):
            return BoolValue(truth)
        case ("list", items):
            found = (value_of_plain(one) for one in _parts(items))
            scalars = [one for one in found if not isinstance(one, ListValue)]
            return ListValue(tuple(sorted(scalars, key=show_value)))
        case ("number", amount, str(unit)):
            return NumberValue(Decimal(str(amount)), plural(unit))
        case _:
            raise ValueError(f"no value: {plain}")


def _parts(items: object) -> list[tuple[object, ...]]:
    """Return the items of a list of the oracle."""
    return msgspec.convert(items, list[tuple[object, ...]]) if isinstance(items, frozenset) else []


def plural(unit: str) -> str:
    """Return a unit of the oracle as pages write it."""
    return "metres" if unit == "length" else f"{unit}s" if unit else ""


def _obfuscated(case: Case, level: int) -> Case | None:
    """Return a draft with descriptions instead of names; `None` if no description is unique."""
    known = case.scene.known.store
    named = skeleton_of(QuestionKind(case.kind), case.draft.program, known, case.draft.hidden)
    if named is None:
        return None
    found = obfuscate(named, level, known)
    if not found.level:
        return None
    made = case_of(case.scene, found.kind, found.program)
    if made is None:
        return None
    hidden = tuple(dict.fromkeys((*made.draft.hidden, *found.hidden)))
    draft = msgspec.structs.replace(
        made.draft,
        given=found.given,
        hidden=tuple(one for one in hidden if one not in found.given),
        level=found.level,
    )
    return replace(made, draft=draft)


class _Things:
    """Random choices among the things of a scene."""

    def __init__(self, place: Scene, random: Random) -> None:
        self.random = random
        self.store = place.truth
        self.far = place.far
        (closed,) = place.truth.sets.values()
        self.members = ProgramStep(Operator.MEMBERS, name=closed.id)
        self.lights = [EntityValue(name) for name in closed.members]

    def any(self, relation: str) -> EntityValue:
        """Return something that has a relation."""
        near = [fact.subject for fact in self.store.having(relation) if fact.subject not in self.far]
        return EntityValue(self.random.choice(near))

    def two(self, relation: str) -> list[ProgramInput]:
        names = sorted({fact.subject for fact in self.store.having(relation)} - self.far)
        return [EntityValue(name) for name in self.random.sample(names, 2)]

    def value(self, relation: str) -> Value:
        near = [fact.value for fact in self.store.having(relation) if fact.subject not in self.far]
        return self.random.choice(near)

    def one_of(self, *options: str) -> str:
        return self.random.choice(options)


def follow(relation: str, given: ProgramInput, time: int = 0) -> ProgramStep:
    """Return the step that looks up a relation."""
    return ProgramStep(Operator.FOLLOW, (given,), relation, time=time)


_PERSONS = {"first keeper": "light", "architect": "light", "captain": "ship"}


def _bridge(things: _Things) -> Program:
    shape = things.random.randrange(5)
    if shape == 0:
        asked = things.one_of("area", "population")
        light = things.any("island")
        return (follow("island", light), follow(asked, 1, 1900 if asked == "population" else 0))
    if shape == 1:
        year = things.value("year of construction")
        find = ProgramStep(Operator.FIND, (year,), "year of construction")
        return (find, follow("first keeper", 1), follow(things.one_of("birthplace", "year of birth"), 2))
    if shape == 2:
        return (follow("island", things.any("island")), follow("largest village", 1))
    person = things.one_of(*_PERSONS)
    return (follow(person, things.any(person)), follow(things.one_of("birthplace", "year of birth"), 1))


def _comparison(things: _Things) -> Program:
    rank = things.random.choice((Operator.GREATEST, Operator.LEAST))
    shape = things.random.randrange(4)
    if shape == 0:
        first, second = things.two("first keeper")
        return (
            follow("first keeper", first), follow("first keeper", second),
            ProgramStep(rank, (1, 2), "year of birth"),
        )  # fmt: skip
    if shape == 1:
        first, second = things.two("island")
        return (follow("island", first), follow("island", second), ProgramStep(rank, (1, 2), "area"))
    relation = things.one_of("year of birth", "crew", "year of launch")
    return (ProgramStep(rank, tuple(things.two(relation)), relation),)


def _intersection(things: _Things) -> Program:
    shape = things.random.randrange(3)
    island = ProgramStep(Operator.FIND, (things.value("island"),), "island")
    architect = ProgramStep(Operator.FIND, (things.value("architect"),), "architect")
    both = ProgramStep(Operator.AND, (1, 2))
    if shape == 0:
        return (island, architect, both)
    if shape == 1:
        return (island, architect, both, follow("year of construction", 3))
    captain = things.any("captain")
    return (
        follow("captain", captain),
        ProgramStep(Operator.FIND, (1,), "first keeper"),
        island,
        ProgramStep(Operator.AND, (2, 3)),
    )


def _aggregate(things: _Things) -> Program:
    island = ProgramStep(Operator.WHERE, (1, things.value("island")), "island")
    shape = things.random.randrange(3)
    if shape == 0:
        return (things.members, island, follow("height", 2), ProgramStep(Operator.SUM, (3,)))
    rank = things.random.choice((Operator.GREATEST, Operator.LEAST))
    if shape == 1:
        return (things.members, ProgramStep(rank, (1,), "year of construction"), follow("first keeper", 2))
    return (things.members, island, ProgramStep(rank, (2,), things.one_of("year of construction", "height")))


def _conditions(things: _Things) -> tuple[ProgramStep, ...]:
    relation = things.one_of("island", "architect")
    first = ProgramStep(Operator.WHERE, (1, things.value(relation)), relation)
    if things.random.random() < 0.5:
        return (things.members, first)
    year = things.value("year of construction")
    how = things.random.choice((Comparison.MORE, Comparison.LESS))
    return (things.members, first, ProgramStep(Operator.WHERE, (2, year), "year of construction", how))


def _count(things: _Things) -> Program:
    steps = _conditions(things)
    return (*steps, ProgramStep(Operator.COUNT, (len(steps),)))


def _list(things: _Things) -> Program | None:
    steps = _conditions(things)
    program = (*steps, ProgramStep(Operator.LIST, (len(steps),)))
    answer = answer_in(program, things.store)
    return program if isinstance(answer, ListValue) and len(answer.items) > 1 else None


def _temporal(things: _Things) -> Program:
    light, other = things.random.sample(things.lights, 2)
    last = things.random.choice((Operator.BEFORE, Operator.DIFFERENCE))
    if things.random.random() < 0.5:
        return (
            follow("year of construction", light), follow("first keeper", other), follow("year of birth", 2),
            ProgramStep(last, (1, 3)),
        )  # fmt: skip
    ship = things.any("year of launch")
    return (follow("year of launch", ship), follow("year of construction", light), ProgramStep(last, (1, 2)))


def _arithmetic(things: _Things) -> Program:
    first, second = things.two("crew")
    shape = things.random.randrange(3)
    if shape == 0:
        one, two = things.two("island")
        return (
            follow("island", one), follow("area", 1), follow("island", two), follow("area", 3),
            ProgramStep(things.random.choice((Operator.SUM, Operator.DIFFERENCE)), (2, 4)),
        )  # fmt: skip
    if shape == 1:
        light = things.any("island")
        return (
            follow("island", light), follow("population", 1, 1900), follow("population", 1, 1950),
            ProgramStep(Operator.DIFFERENCE, (2, 3)),
        )  # fmt: skip
    last = things.random.choice((Operator.SUM, Operator.DIFFERENCE))
    return (follow("crew", first), follow("crew", second), ProgramStep(last, (1, 2)))


def _yes_no(things: _Things) -> Program:
    shape = things.random.randrange(4)
    if shape == 0:
        relation = things.one_of("island", "architect")
        one, two = things.two(relation)
        return (follow(relation, one), follow(relation, two), ProgramStep(Operator.EQUAL, (1, 2)))
    if shape == 1:
        one, two = things.two("crew")
        return (follow("crew", one), follow("crew", two), ProgramStep(Operator.GREATER, (1, 2)))
    if shape == 2:
        light = things.any("first keeper")
        return (
            follow("first keeper", light), follow("birthplace", 1),
            ProgramStep(Operator.EQUAL, (2, things.value("birthplace"))),
        )  # fmt: skip
    ship, light = things.any("captain"), things.any("architect")
    return (
        follow("captain", ship), follow("birthplace", 1), follow("architect", light), follow("birthplace", 3),
        ProgramStep(Operator.EQUAL, (2, 4)),
    )  # fmt: skip


_PATTERNS: dict[QuestionKind, Callable[[_Things], Program | None]] = {
    QuestionKind.BRIDGE: _bridge,
    QuestionKind.COMPARISON: _comparison,
    QuestionKind.INTERSECTION: _intersection,
    QuestionKind.AGGREGATE: _aggregate,
    QuestionKind.COUNT: _count,
    QuestionKind.TEMPORAL: _temporal,
    QuestionKind.ARITHMETIC: _arithmetic,
    QuestionKind.YES_NO: _yes_no,
    QuestionKind.LIST: _list,
}
