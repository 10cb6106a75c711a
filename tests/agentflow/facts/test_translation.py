"""Translations of questions become programs, which are compared with those of skeletons."""

import pytest

from agentflow.facts import (
    BoolValue,
    Comparison,
    DateValue,
    EntityValue,
    FactStore,
    Operator,
    Program,
    ProgramInput,
    ProgramStep,
    TextValue,
    Translation,
    TranslationStep,
    Value,
    answer_of,
    enumerate_skeletons,
    program_of,
    same_meaning,
    show_value,
)
from agentflow.testing import fact_world
from tests.agentflow.facts._small import BRENN, SKERRY, STORE, TERN, fact, metres, step

FOLLOW, WHERE = Operator.FOLLOW, Operator.WHERE


def translated(*steps: TranslationStep, store: FactStore = STORE) -> Program:
    return program_of(Translation(steps), store)


@pytest.mark.promise("programs:translation")
@pytest.mark.parametrize(
    "written, meant",
    [
        (TranslationStep(FOLLOW, ("Brenn Light",), "keeper"), step(FOLLOW, BRENN, relation="keeper")),
        (
            TranslationStep(FOLLOW, (" the BRENN lighthouse",), "The Keeper of"),
            step(FOLLOW, BRENN, relation="keeper"),
        ),
        (TranslationStep(FOLLOW, ("#1",), "keepers"), step(FOLLOW, 1, relation="keeper")),
        (
            TranslationStep(FOLLOW, ("Brenn",), "population in 1900"),
            step(FOLLOW, EntityValue("Brenn"), relation="population", time=1900),
        ),
        (
            TranslationStep(FOLLOW, ("Brenn",), "population", time="1950"),
            step(FOLLOW, EntityValue("Brenn"), relation="population", time=1950),
        ),
        (TranslationStep(FOLLOW, ("Brann",), "depth"), step(FOLLOW, EntityValue("Brann"), relation="depth")),
        (TranslationStep(Operator.MEMBERS, ("the Lights of Brenn",)), step(Operator.MEMBERS, name="pair")),
        (TranslationStep(Operator.MEMBERS, ("moons",)), step(Operator.MEMBERS, name="moons")),
        (
            TranslationStep(Operator.FIND, ("lighthouses",), "kind"),
            step(Operator.FIND, TextValue("lighthouse"), relation="kind"),
        ),
        (
            TranslationStep(Operator.FIND, ("12 May 1834",), "opening"),
            step(Operator.FIND, DateValue(1834, 5, 12), relation="opening"),
        ),
        (
            TranslationStep(Operator.FIND, ("ada holm",), "keeper"),
            step(Operator.FIND, EntityValue("Ada Holm"), relation="keeper"),
        ),
        (
            TranslationStep(Operator.FIND, ("yes",), "afloat"),
            step(Operator.FIND, BoolValue(True), relation="afloat"),
        ),
        (
            TranslationStep(WHERE, ("#1", "34"), "height", Comparison.MORE),
            ProgramStep(WHERE, (1, metres(34)), "height", Comparison.MORE),
        ),
        (
            TranslationStep(WHERE, ("#1", "between 30 and 40 metres"), "height", Comparison.WITHIN),
            ProgramStep(WHERE, (1, metres(30), metres(40)), "height", Comparison.WITHIN),
        ),
        (
            TranslationStep(WHERE, ("#1", "the 1830s"), "opening"),
            ProgramStep(WHERE, (1, DateValue(1830), DateValue(1839)), "opening", Comparison.WITHIN),
        ),
        (
            TranslationStep(WHERE, ("#1", "19th century"), "opening", Comparison.WITHIN),
            ProgramStep(WHERE, (1, DateValue(1801), DateValue(1900)), "opening", Comparison.WITHIN),
        ),
        (TranslationStep(Operator.BEFORE, ("#1", "1840")), step(Operator.BEFORE, 1, DateValue(1840))),
        (TranslationStep(Operator.GREATER, ("#1", "20 metres")), step(Operator.GREATER, 1, metres(20))),
        (TranslationStep(Operator.SUM, ()), step(Operator.SUM)),
    ],
)
def test_a_written_step_gets_names_relations_and_types_of_the_store(
    written: TranslationStep, meant: ProgramStep
) -> None:
    assert translated(written) == (meant,)


def written(program: Program, store: FactStore) -> Translation:
    """Return a program as a good model would write it."""

    def shown(given: ProgramInput) -> str:
        return f"#{given}" if isinstance(given, int) else show_value(given)

    return Translation(
        tuple(
            TranslationStep(
                one.operator,
                (store.sets[one.name].description,) if one.name else tuple(map(shown, one.inputs)),
                f"{one.relation} in {one.time}" if one.time else one.relation,
                one.comparison,
            )
            for one in program
        )
    )


@pytest.mark.promise("programs:translation")
def test_every_skeleton_survives_being_written_and_read() -> None:
    for seed in range(3):
        world = fact_world(seed)
        for one in enumerate_skeletons(world.store, [world.seed_name], per_kind=4, tried=16):
            program = program_of(written(one.program, world.store), world.store)
            assert program == one.program
            assert same_meaning(program, one.program, world.store)


def years(first: Value, second: Value, operator: Operator) -> Program:
    return (
        step(FOLLOW, first, relation="opening"),
        step(FOLLOW, second, relation="opening"),
        step(operator, 1, 2),
    )


def tall(
    comparison: Comparison, height: int, *, sets: str = "all", operator: Operator = Operator.COUNT
) -> Program:
    return (
        step(Operator.MEMBERS, name=sets),
        ProgramStep(WHERE, (1, metres(height)), "height", comparison),
        step(operator, 2),
    )


KEEPER = (step(FOLLOW, BRENN, relation="keeper"), step(FOLLOW, 1, relation="birthplace"))
DESCRIBED = (
    step(Operator.FIND, TextValue("lighthouse"), relation="kind"),
    step(Operator.FIND, EntityValue("Ada Holm"), relation="keeper"),
    step(Operator.AND, 1, 2),
    step(FOLLOW, 3, relation="height"),
)
FOUR = FactStore(
    [fact(name, "height", metres(height)) for name, height in zip("ABCD", (10, 20, 30, 40), strict=True)]
)


@pytest.mark.promise("programs:same_meaning")
@pytest.mark.parametrize(
    "first, second, same",
    [
        (KEEPER, KEEPER, True),
        (KEEPER, KEEPER[:1], False),
        (KEEPER, (step(FOLLOW, SKERRY, relation="keeper"), KEEPER[1]), False),
        # The kind may be mentioned or not; another condition may not.
        (DESCRIBED, (*DESCRIBED[1:2], step(FOLLOW, 1, relation="height")), True),
        (
            DESCRIBED,
            (
                *DESCRIBED[:2],
                step(Operator.FIND, DateValue(1834), relation="opening"),
                step(Operator.AND, 1, 2, 3),
                step(FOLLOW, 4, relation="height"),
            ),
            False,
        ),
        # A lost condition leaves several answers.
        (DESCRIBED, (DESCRIBED[0], step(FOLLOW, 1, relation="height")), False),
        (years(BRENN, TERN, Operator.DIFFERENCE), years(TERN, BRENN, Operator.DIFFERENCE), True),
        (years(BRENN, TERN, Operator.BEFORE), years(TERN, BRENN, Operator.GREATER), True),
        (years(BRENN, TERN, Operator.BEFORE), years(TERN, BRENN, Operator.BEFORE), False),
        (years(TERN, BRENN, Operator.BEFORE), years(BRENN, TERN, Operator.EQUAL), False),
        (
            (step(Operator.GREATEST, BRENN, SKERRY, relation="height"),),
            (step(Operator.GREATEST, SKERRY, BRENN, relation="height"),),
            True,
        ),
        (
            (step(Operator.GREATEST, BRENN, SKERRY, relation="height"),),
            (step(Operator.LEAST, BRENN, SKERRY, relation="height"),),
            False,
        ),
        (tall(Comparison.MORE, 25), tall(Comparison.MORE, 30), True),
        # One of two is higher and one is lower.
        (tall(Comparison.MORE, 25, sets="pair"), tall(Comparison.LESS, 25, sets="pair"), False),
        ((), KEEPER, False),
    ],
)
def test_programs_mean_the_same_if_they_compute_it_from_the_same_facts(
    first: Program, second: Program, same: bool
) -> None:
    assert same_meaning(first, second, STORE) is same
    assert same_meaning(second, first, STORE) is same


@pytest.mark.promise("programs:same_meaning")
def test_a_dropped_condition_is_always_noticed_if_there_is_a_second_answer() -> None:
    for seed in range(3):
        world = fact_world(seed)
        for one in enumerate_skeletons(world.store, [world.seed_name], per_kind=6, tried=24):
            for number, part in enumerate(one.program):
                if part.operator in (Operator.AND, WHERE):
                    left = (
                        *one.program[:number],
                        step(Operator.OR, part.inputs[0]),
                        *one.program[number + 1 :],
                    )
                    assert answer_of(left, world.store) != one.answer
                    assert not same_meaning(left, one.program, world.store)
