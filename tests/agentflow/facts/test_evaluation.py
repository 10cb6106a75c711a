"""Programs compute all answers that the facts allow, and none that the facts leave open."""

from decimal import Decimal

import pytest

from agentflow.facts import (
    KIND,
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
    answer_of,
    describe_program,
    evaluate,
)
from tests.agentflow.facts._small import BRENN, FAR, SETS, SKERRY, STORE, TERN, fact, metres, step

FOLLOW, FIND, MEMBERS, WHERE = Operator.FOLLOW, Operator.FIND, Operator.MEMBERS, Operator.WHERE
PAIR = step(MEMBERS, name="pair")
ALL = step(MEMBERS, name="all")


def where(comparison: Comparison, relation: str, *inputs: int | Value) -> ProgramStep:
    return ProgramStep(WHERE, inputs, relation, comparison)


def number(amount: int, unit: str = "") -> NumberValue:
    return NumberValue(Decimal(amount), unit)


ANSWERS: dict[str, tuple[Program, list[Value]]] = {
    "a chain": (
        (step(FOLLOW, BRENN, relation="keeper"), step(FOLLOW, 1, relation="birthplace")),
        [EntityValue("Tern Bay")],
    ),
    "a constant under another name": (
        (step(FOLLOW, EntityValue("the Brenn lighthouse"), relation="keeper"),),
        [EntityValue("Ada Holm")],
    ),
    "all values, in the order of the facts": (
        (step(FOLLOW, EntityValue("Brenn"), relation="population"),),
        [number(300, "inhabitants"), number(450, "inhabitants")],
    ),
    "values of a year": (
        (step(FOLLOW, EntityValue("Brenn"), relation="population", time=1950),),
        [number(450, "inhabitants")],
    ),
    "a stated list": (
        (step(FOLLOW, EntityValue("Gull"), relation="owners"), step(Operator.COUNT, 1)),
        [number(2)],
    ),
    "subjects of a value in a list": (
        (step(FIND, EntityValue("Ada Holm"), relation="owners"),),
        [EntityValue("Gull")],
    ),
    "a date that is in a year": (
        (step(FIND, DateValue(1834), relation="opening"),),
        [BRENN, SKERRY],
    ),
    "a number in another unit": (
        (step(FIND, NumberValue(Decimal("0.034"), "km"), relation="height"),),
        [BRENN, TERN],
    ),
    "several conditions": (
        (
            step(FIND, TextValue("lighthouse"), relation=KIND),
            step(FIND, EntityValue("Ada Holm"), relation="keeper"),
            step(Operator.AND, 1, 2),
        ),
        [BRENN],
    ),
    "a range with both ends": (
        (ALL, where(Comparison.WITHIN, "height", 1, metres(10), metres(20))),
        [SKERRY],
    ),
    "a decade": (
        (
            ALL,
            where(Comparison.WITHIN, "opening", 1, DateValue(1830), DateValue(1839)),
            step(Operator.LIST, 2),
        ),
        [ListValue((BRENN, SKERRY))],
    ),
    "two greatest": ((ALL, step(Operator.GREATEST, 1, relation="height")), [BRENN, TERN]),
    "one least": ((ALL, step(Operator.LEAST, 1, relation="height")), [SKERRY]),
    "an order that a year leaves open": (
        (step(Operator.LEAST, BRENN, SKERRY, relation="opening"),),
        [BRENN, SKERRY],
    ),
    "the latest in spite of different precision": (
        (ALL, step(Operator.GREATEST, 1, relation="opening")),
        [TERN],
    ),
    "heights without a common unit": (
        (step(Operator.GREATEST, BRENN, FAR, relation="height"),),
        [BRENN, FAR],
    ),
    "a sum that counts equal numbers of two things twice": (
        (step(FOLLOW, BRENN, relation="height"), step(Operator.SUM, 1, 1)),
        [metres(68)],
    ),
    "a sum over a set": (
        (PAIR, step(FOLLOW, 1, relation="height"), step(Operator.SUM, 2)),
        [metres(54)],
    ),
    "a sum of many digits": (
        (step(Operator.SUM, number(10**40, "grains"), number(1, "grains")),),
        [number(10**40 + 1, "grains")],
    ),
    "a sum in two units": (
        (step(FOLLOW, EntityValue("Gull"), EntityValue("Tern"), relation="crossing"), step(Operator.SUM, 1)),
        [number(9, "km")],
    ),
    "a difference": (
        (step(Operator.OR, BRENN, SKERRY), step(FOLLOW, 1, relation="height"), step(Operator.DIFFERENCE, 2)),
        [metres(14)],
    ),
    "years between": (
        (
            step(FOLLOW, TERN, relation="opening"),
            step(FOLLOW, BRENN, relation="opening"),
            step(Operator.DIFFERENCE, 1, 2),
        ),
        [number(16, "years")],
    ),
    "none of a set": (
        (PAIR, where(Comparison.MORE, "height", 1, metres(90)), step(Operator.COUNT, 2)),
        [number(0)],
    ),
    "an empty set": ((step(MEMBERS, name="none"), step(Operator.COUNT, 1)), [number(0)]),
    "an order in different units": (
        (
            step(FOLLOW, EntityValue("Gull"), relation="crossing"),
            step(FOLLOW, EntityValue("Tern"), relation="crossing"),
            step(Operator.GREATER, 1, 2),
        ),
        [BoolValue(True)],
    ),
    "earlier": (
        (
            step(FOLLOW, TERN, relation="opening"),
            step(FOLLOW, BRENN, relation="opening"),
            step(Operator.BEFORE, 1, 2),
        ),
        [BoolValue(False)],
    ),
    "the same": (
        (
            step(FOLLOW, BRENN, relation="island"),
            step(FOLLOW, SKERRY, relation="island"),
            step(Operator.EQUAL, 1, 2),
        ),
        [BoolValue(True)],
    ),
    "a stated truth": ((step(FOLLOW, EntityValue("Gull"), relation="afloat"),), [BoolValue(True)]),
}


@pytest.mark.promise("programs:evaluation:answers")
@pytest.mark.parametrize("program, answers", ANSWERS.values(), ids=ANSWERS)
def test_a_program_computes_all_answers(program: Program, answers: list[Value]) -> None:
    result = evaluate(program, STORE)
    assert [one.value for one in result.answers] == answers
    assert result.reason == ""
    assert answer_of(program, STORE) == (answers[0] if len(answers) == 1 else None)


OPEN: dict[str, tuple[Program, str]] = {
    "no steps": ((), "a program has 1 to 32 steps, this one has 0"),
    "too many steps": ((ALL,) * 33, "a program has 1 to 32 steps, this one has 33"),
    "a later step": ((step(FOLLOW, 1, relation="height"),), "step 1: there is no earlier step 1"),
    "a step before the first": (
        (ALL, step(FOLLOW, 0, relation="height")),
        "step 2: there is no earlier step 0",
    ),
    "no input": ((step(FOLLOW, relation="height"),), "step 1: follow needs an input"),
    "no relation": ((step(FIND, BRENN),), "step 1: find needs a relation"),
    "no bound": ((ALL, step(WHERE, 1, relation="height")), "step 2: where needs a set and a bound"),
    "no set": ((step(MEMBERS, name="gone"),), "step 1: there is no closed set gone"),
    "nothing found": ((step(FOLLOW, BRENN, relation="weight"),), "step 1: nothing fits"),
    "a count of things that may be more": (
        (step(FIND, TextValue("lighthouse"), relation=KIND), step(Operator.COUNT, 1)),
        "step 2: count needs a complete set",
    ),
    "a list of one known value": (
        (step(FOLLOW, BRENN, relation="keeper"), step(Operator.LIST, 1)),
        "step 2: list needs a complete set",
    ),
    "a member without a value": (
        (ALL, where(Comparison.EQUAL, "keeper", 1, EntityValue("Ada Holm")), step(Operator.COUNT, 2)),
        "step 3: count needs a complete set",
    ),
    "a member that cannot be compared": (
        (PAIR, where(Comparison.LESS, "opening", 1, DateValue(1834, 2)), step(Operator.COUNT, 2)),
        "step 3: count needs a complete set",
    ),
    "a superlative with a missing value": (
        (ALL, step(Operator.GREATEST, 1, relation="keeper")),
        "step 2: Tern Light has no value of keeper",
    ),
    "a superlative of names": (
        (PAIR, step(Operator.GREATEST, 1, relation="keeper")),
        "step 2: Brenn Light has no number or date as keeper",
    ),
    "a sum with a missing value": (
        (ALL, step(FOLLOW, 1, relation="keeper"), step(Operator.SUM, 2)),
        "step 3: sum needs complete sets of numbers",
    ),
    "a sum of different units": (
        (
            step(FOLLOW, BRENN, relation="height"),
            step(FOLLOW, FAR, relation="height"),
            step(Operator.SUM, 1, 2),
        ),
        "step 3: sum needs numbers of one unit",
    ),
    "years between a year and a day": (
        (PAIR, step(FOLLOW, 1, relation="opening"), step(Operator.DIFFERENCE, 2)),
        "step 3: difference needs numbers of one unit",
    ),
    "an order inside a year": (
        (
            step(FOLLOW, BRENN, relation="opening"),
            step(FOLLOW, SKERRY, relation="opening"),
            step(Operator.BEFORE, 1, 2),
        ),
        "step 3: 1834 and 12 May 1834 cannot be compared",
    ),
    "two events of a year": (
        (step(FOLLOW, BRENN, relation="opening"), step(Operator.BEFORE, 1, 1)),
        "step 2: 1834 and 1834 cannot be compared",
    ),
    "an empty list": (
        (PAIR, where(Comparison.MORE, "height", 1, metres(90)), step(Operator.LIST, 2)),
        "step 3: nothing fits",
    ),
}


@pytest.mark.promise("programs:evaluation:open")
@pytest.mark.parametrize("program, reason", OPEN.values(), ids=OPEN)
def test_a_malformed_or_undetermined_program_has_a_reason(program: Program, reason: str) -> None:
    assert evaluate(program, STORE).answers == ()
    assert evaluate(program, STORE).reason == reason


@pytest.mark.promise("programs:evaluation:facts")
def test_an_answer_names_its_facts_in_the_order_of_the_program() -> None:
    program, _ = ANSWERS["a chain"]
    (answer,) = evaluate(program, STORE).answers
    assert answer.facts == ("Brenn Light/keeper/Ada Holm", "Ada Holm/birthplace/Tern Bay")
    counted = (PAIR, where(Comparison.MORE, "height", 1, metres(30)), step(Operator.COUNT, 2))
    (answer,) = evaluate(counted, STORE).answers
    assert answer.facts == ("Brenn Light/height/34 metres", "Skerry Light/height/20 metres")


@pytest.mark.promise("programs:evaluation:facts")
def test_facts_can_be_left_out() -> None:
    program, answers = ANSWERS["a chain"]
    assert answer_of(program, STORE, {"Ada Holm/birthplace/Tern Bay"}) is None
    assert answer_of(program, STORE, {"Ada Holm/year of birth/1801"}) == answers[0]
    assert evaluate(program, STORE, {"unknown"}) == evaluate(program, STORE)


@pytest.mark.promise("programs:evaluation:bounded")
def test_a_large_store_has_an_answer_and_an_explosion_has_none() -> None:
    many = [fact(f"Light {place}", "height", metres(place)) for place in range(10_000)]
    many += [fact(f"Light {place}", "owner", EntityValue("Guild")) for place in range(10_000)]
    store = FactStore(many, SETS)
    found = (
        step(FIND, EntityValue("Guild"), relation="owner"),
        where(Comparison.MORE, "height", 1, metres(9_998)),
    )
    assert answer_of(found, store) == EntityValue("Light 9999")
    everything = (step(FIND, EntityValue("Guild"), relation="owner"),)
    loop = everything + tuple(step(Operator.OR, number, number) for number in range(1, 30))
    assert evaluate(loop, store).reason.endswith("too many values")
    values = (*everything, step(FOLLOW, 1, relation="height"))
    compared = (*values, step(Operator.GREATER, 2, 2))
    assert evaluate(compared, store).reason == "step 3: too many values"


@pytest.mark.promise("programs:description")
@pytest.mark.parametrize(
    "program, words",
    [
        (ANSWERS["a chain"][0], ("(1) the keeper of Brenn Light", "(2) the birthplace of (1)")),
        (
            ANSWERS["several conditions"][0],
            ("(1) each lighthouse", "(2) what has Ada Holm as its keeper", "(3) what is in (1) and in (2)"),
        ),
        (
            (PAIR, where(Comparison.LESS, "opening", 1, DateValue(1840)), step(Operator.COUNT, 2)),
            (
                "(1) all lights of Brenn",
                "(2) those of (1) whose opening is before 1840",
                "(3) the number of (2)",
            ),
        ),
        (
            ANSWERS["a range with both ends"][0],
            (
                "(1) all lights",
                "(2) those of (1) whose height is between 10 metres and 20 metres, both included",
            ),
        ),
        (
            (step(Operator.LEAST, BRENN, SKERRY, TERN, relation="year of opening", time=1900),),
            (
                "(1) the one of the tower, Skerry Light and Tern Light with the earliest year of opening in 1900",
            ),
        ),
        (
            ANSWERS["earlier"][0],
            (
                "(1) the opening of Tern Light",
                "(2) the opening of the tower",
                "(3) whether (1) is before (2)",
            ),
        ),
    ],
)
def test_a_program_is_described_in_plain_words(program: Program, words: tuple[str, ...]) -> None:
    names = {one.id: one.description for one in SETS}
    if "the tower" in " ".join(words):
        names["Brenn Light"] = "the tower"
    assert describe_program(program, names) == words
