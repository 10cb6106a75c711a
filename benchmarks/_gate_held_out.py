"""Mistakes that were not used while the checks were developed."""

from dataclasses import replace
from decimal import Decimal
from random import Random

import msgspec

from agentflow.facts import (
    ClosedSet,
    Comparison,
    DateValue,
    EntityValue,
    FactSpan,
    FactStore,
    ListValue,
    NumberValue,
    Operator,
    Program,
    ProgramStep,
    TextValue,
    new_fact,
)
from benchmarks._gate_mistakes import (
    answered,
    asked,
    facts_of_draft,
    misled,
    other_value,
    redrafted,
    with_step,
    words_of,
)
from benchmarks._gate_scenes import Case, with_page, with_store

_UNITS = {
    "metres": ("feet", "kilometres"),
    "square kilometres": ("square miles", "hectares"),
    "sailors": ("passengers", "officers"),
    "inhabitants": ("houses", "voters"),
    "years": ("months", "days"),
}
_RANKS = {Operator.GREATEST: Operator.LEAST, Operator.LEAST: Operator.GREATEST}


def swap_unit(case: Case, variant: str, random: Random) -> Case | None:
    """Take another unit, with the same number."""
    answer = case.draft.answer
    if not isinstance(answer, NumberValue) or answer.unit not in _UNITS:
        return None
    wrong = random.choice(_UNITS[answer.unit])
    if variant == "answer":
        return answered(case, NumberValue(answer.amount, wrong))
    store = case.scene.known.store
    values = {
        fact.id: NumberValue(fact.value.amount, wrong)
        for fact in facts_of_draft(case)
        if isinstance(fact.value, NumberValue)
    }
    facts = [
        new_fact(fact.subject, fact.relation, values[fact.id], fact.spans, fact.time)
        if fact.id in values
        else fact
        for fact in store.facts
    ]
    return redrafted(case, with_store(case.scene, FactStore(facts, store.sets.values(), store.aliases)))


def flip_comparison(case: Case, variant: str, random: Random) -> Case | None:
    """Ask for the least in place of the greatest."""
    for number, step in enumerate(case.draft.program):
        if step.operator not in _RANKS:
            continue
        flipped = with_step(
            case.draft.program, number, msgspec.structs.replace(step, operator=_RANKS[step.operator])
        )
        if variant == "words":
            return words_of(case, flipped)
        if variant == "answer":
            made = redrafted(case, case.scene, flipped)
            return None if made is None else answered(case, made.draft.answer)
        for fact in random.sample(facts_of_draft(case), len(case.draft.facts)):
            value = other_value(case, fact, random)
            if fact.relation != step.relation or value is None:
                continue
            if (found := misled(case, fact, value)) is not None:
                return found
    return None


def lose_item(case: Case, variant: str, random: Random) -> Case | None:
    """Leave out an item of a list."""
    answer = case.draft.answer
    if not isinstance(answer, ListValue):
        return None
    lost = random.choice(answer.items)
    if variant == "answer":
        return answered(case, ListValue(tuple(item for item in answer.items if item != lost)))
    store = case.scene.known.store
    if variant == "members":
        sets: list[ClosedSet] = [
            msgspec.structs.replace(
                one, members=tuple(name for name in one.members if EntityValue(name) != lost)
            )
            for one in store.sets.values()
        ]
        return redrafted(case, with_store(case.scene, FactStore(store.facts, sets, store.aliases)))
    for fact in facts_of_draft(case):
        value = other_value(case, fact, random)
        if not isinstance(lost, EntityValue) or fact.subject != lost.name or value is None:
            continue
        if (found := misled(case, fact, value)) is not None:
            return found
    return None


def use_stale_value(case: Case, variant: str, random: Random) -> Case | None:
    """Take a value of another time."""
    number, step = next(
        ((number, step) for number, step in enumerate(case.draft.program) if step.time),
        (0, case.draft.program[0]),
    )
    program = case.draft.program
    if variant in ("words", "no time"):
        if not step.time:
            return None
        time = 0 if variant == "no time" else 1950 if step.time == 1900 else 1900
        return words_of(case, with_step(program, number, msgspec.structs.replace(step, time=time)))
    dated = [fact for fact in facts_of_draft(case) if isinstance(fact.value, NumberValue)]
    if not dated:
        return None
    fact = random.choice(dated)
    assert isinstance(fact.value, NumberValue)
    later = NumberValue(fact.value.amount + random.randint(2, 9), fact.value.unit)
    newer = new_fact(fact.subject, fact.relation, later, (FactSpan("node_more", 0, 1),), fact.time)
    title = f"News about {fact.subject}"
    return replace(case, scene=with_page(case.scene, [newer], title=title, unread=variant == "unread page"))


def widen(case: Case, variant: str, random: Random) -> Case | None:
    """Describe something so vaguely that several things fit."""
    program = case.draft.program
    if variant == "vague":
        thing = random.choice(("thing", "place", "building", "person", "ship", "name", "number", "year"))
        where = random.choice(("on the coast", "far from here", "in those days", "near the water"))
        return asked(case, f"What is the {thing} that has something to do with another one {where}?")
    for number, step in enumerate(program):
        if step.operator is Operator.WHERE and step.comparison is Comparison.WITHIN:
            wide = msgspec.structs.replace(step, inputs=(step.inputs[0], *_wide(step)))
        elif step.operator is Operator.FIND and isinstance(step.inputs[0], DateValue):
            base = ProgramStep(Operator.FIND, (_noun(case, step),), "kind")
            first = DateValue(step.inputs[0].year - 60), DateValue(step.inputs[0].year + 60)
            where = ProgramStep(Operator.WHERE, (number + 1, *first), step.relation, Comparison.WITHIN)
            return _vaguer(case, variant, _inserted(program, number, base, where))
        else:
            continue
        return _vaguer(case, variant, with_step(program, number, wide))
    return None


def _vaguer(case: Case, variant: str, program: Program) -> Case:
    changed = words_of(case, program)
    if variant == "words":
        return changed
    return replace(changed, draft=msgspec.structs.replace(changed.draft, program=program))


def _wide(step: ProgramStep) -> tuple[DateValue, DateValue] | tuple[NumberValue, NumberValue]:
    low = step.inputs[1]
    if isinstance(low, DateValue):
        return DateValue(1701), DateValue(1900)
    unit = low.unit if isinstance(low, NumberValue) else ""
    return NumberValue(Decimal(1), unit), NumberValue(Decimal(9_000), unit)


def _noun(case: Case, step: ProgramStep) -> TextValue:
    return TextValue(
        {"year of construction": "lighthouse", "year of launch": "ship"}.get(step.relation, "person")
    )


def _inserted(program: Program, number: int, base: ProgramStep, where: ProgramStep) -> Program:
    """Return a program with two steps in the place of one."""
    moved = [
        msgspec.structs.replace(
            step,
            inputs=tuple(
                given + 1 if isinstance(given, int) and given > number else given for given in step.inputs
            ),
        )
        for step in program[number + 1 :]
    ]
    return (*program[:number], base, where, *moved)
