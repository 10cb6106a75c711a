"""Programs have the answers and hops that a second, brute-force implementation finds."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.facts import (
    BoolValue,
    ClosedSet,
    Comparison,
    DateValue,
    EntityValue,
    Fact,
    FactSpan,
    FactStore,
    ListValue,
    NumberValue,
    Operator,
    Program,
    ProgramStep,
    TextValue,
    enumerate_skeletons,
    evaluate,
    needed_facts,
    select_questions,
)
from agentflow.testing import fact_world, oracle_answers, oracle_hops, plain_value

NAMES = ("A", "B", "C", "D")
RELATIONS = ("owner", "size", "start", "kind")
VALUES = {
    "owner": [
        *map(EntityValue, NAMES),
        ListValue((EntityValue("A"), EntityValue("B"))),
        ListValue((EntityValue("D"),)),
    ],
    "size": [
        NumberValue(Decimal(5), "km"),
        NumberValue(Decimal(5000), "metres"),
        NumberValue(Decimal(7), "km"),
        NumberValue(Decimal(7), "ships"),
        NumberValue(Decimal(1), "ship"),
        BoolValue(True),
    ],
    "start": [DateValue(1834), DateValue(1834, 5), DateValue(1834, 5, 12), DateValue(1840), DateValue(-3)],
    "kind": [TextValue("ship"), TextValue("light")],
}
EVERY = [value for values in VALUES.values() for value in values]
SETS = [
    ClosedSet(id=f"set{size}", description=f"{size} things", members=NAMES[:size], spans=())
    for size in range(5)
]


@st.composite
def stores(draw: st.DrawFn) -> FactStore:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(NAMES),
                st.sampled_from(RELATIONS),
                st.integers(0, 5),
                st.sampled_from([None, None, None, DateValue(1900), DateValue(1950)]),
            ),
            min_size=4,
            max_size=16,
            unique=True,
        )
    )
    facts = [
        Fact(
            id=f"f{number}",
            subject=subject,
            relation=relation,
            value=VALUES[relation][place % len(VALUES[relation])],
            time=time,
            spans=(FactSpan("n", 0, 1),),
        )
        for number, (subject, relation, place, time) in enumerate(rows)
    ]
    return FactStore(facts, SETS, {"a": "A"})


@st.composite
def programs(draw: st.DrawFn) -> Program:
    steps: list[ProgramStep] = []
    for number in range(draw(st.integers(1, 4))):
        operator = draw(st.sampled_from(list(Operator)))
        earlier = st.integers(1, number) if number else st.sampled_from(EVERY)
        inputs = draw(st.lists(st.one_of(earlier, st.sampled_from(EVERY)), min_size=1, max_size=3))
        if operator is Operator.FIND or operator is Operator.FOLLOW:
            inputs = inputs[:2]
        steps.append(
            ProgramStep(
                operator,
                tuple(inputs),
                draw(st.sampled_from(RELATIONS)),
                draw(st.sampled_from(list(Comparison))),
                draw(st.sampled_from([one.id for one in SETS])),
                draw(st.sampled_from([0, 0, 0, 1900])),
            )
        )
    return tuple(steps)


@st.composite
def complete_stores(draw: st.DrawFn) -> FactStore:
    """Return stores in which nearly every thing has one value of each relation."""
    facts = [
        Fact(
            id=f"{name}/{relation}",
            subject=name,
            relation=relation,
            value=draw(st.sampled_from(VALUES[relation][:5])),
            spans=(FactSpan("n", 0, 1),),
        )
        for name in NAMES
        for relation in RELATIONS
    ]
    gone = draw(st.sampled_from(["", "", *(one.id for one in facts)]))
    return FactStore([one for one in facts if one.id != gone], SETS, {"a": "A"})


@st.composite
def likely_programs(draw: st.DrawFn) -> Program:
    """Return programs that usually have answers: things, what follows from them, and an operation."""
    relation = draw(st.sampled_from(["size", "size", "start", "start", "owner", "kind"]))
    bound = draw(st.sampled_from(VALUES[relation][:5]))
    comparison = draw(st.sampled_from(list(Comparison)))
    things = draw(
        st.sampled_from(
            [
                (ProgramStep(Operator.MEMBERS, name="set2"),),
                (ProgramStep(Operator.MEMBERS, name="set4"),),
                (ProgramStep(Operator.OR, (EntityValue("A"), EntityValue("a"), EntityValue("C"))),),
                (ProgramStep(Operator.FIND, (draw(st.sampled_from(VALUES["kind"])),), "kind"),),
                (ProgramStep(Operator.FOLLOW, (EntityValue("B"),), "owner"),),
                (
                    ProgramStep(Operator.MEMBERS, name="set3"),
                    ProgramStep(Operator.WHERE, (1, bound), relation, comparison),
                ),
            ]
        )
    )
    last = len(things)
    many = st.sampled_from(
        [
            (ProgramStep(Operator.GREATEST, (last,), relation),),
            (ProgramStep(Operator.LEAST, (last, EntityValue("D")), relation),),
            (ProgramStep(Operator.COUNT, (last,)),),
            (ProgramStep(Operator.LIST, (last,)),),
            (ProgramStep(Operator.LIST, (last,), relation),),
            (ProgramStep(Operator.AND, (last, EntityValue("A"))),),
            (ProgramStep(Operator.FOLLOW, (last,), relation), ProgramStep(Operator.SUM, (last + 1,))),
            (ProgramStep(Operator.FOLLOW, (last,), relation), ProgramStep(Operator.COUNT, (last + 1,))),
            (ProgramStep(Operator.FOLLOW, (last,), relation), ProgramStep(Operator.DIFFERENCE, (last + 1,))),
        ]
    )
    two = st.sampled_from(
        [
            (
                ProgramStep(Operator.FOLLOW, (last,), relation),
                ProgramStep(Operator.FOLLOW, (EntityValue("D"),), relation),
                ProgramStep(operator, (last + 1, last + 2)),
            )
            for operator in (
                Operator.BEFORE,
                Operator.GREATER,
                Operator.EQUAL,
                Operator.DIFFERENCE,
                Operator.SUM,
            )
        ]
    )
    return (*things, *draw(st.one_of(many, two)))


def check(store: FactStore, program: Program) -> None:
    result = evaluate(program, store)
    assert frozenset(plain_value(one.value) for one in result.answers) == oracle_answers(program, store)
    assert bool(result.reason) is not bool(result.answers)
    for one in result.answers:
        assert set(one.facts) <= set(store.by_id)


@pytest.mark.promise("programs:evaluation:oracle")
@settings(max_examples=100)
@given(stores(), programs())
def test_any_program_has_the_answers_of_the_oracle(store: FactStore, program: Program) -> None:
    check(store, program)


@pytest.mark.promise("programs:evaluation:oracle")
@settings(max_examples=200)
@given(complete_stores(), likely_programs())
def test_a_likely_program_has_the_answers_of_the_oracle(store: FactStore, program: Program) -> None:
    check(store, program)


@pytest.mark.promise("programs:needed:oracle")
def test_in_fifty_worlds_with_redundancy_the_hops_are_those_of_the_oracle() -> None:
    for seed in range(50):
        world = fact_world(seed, islands=2)
        assert world.redundant
        chosen = select_questions(enumerate_skeletons(world.store, [world.seed_name], per_kind=2, tried=8), 3)
        assert len(chosen) == 3
        for one in chosen:
            assert oracle_answers(one.program, world.store) == {plain_value(one.answer)}
            assert len(needed_facts(one, world.store)) == oracle_hops(one.program, world.store) >= 2
