"""Obfuscated questions keep their one answer and name nothing that they hide."""

from collections import Counter
from decimal import Decimal
from functools import cache

import pytest

from agentflow.facts import (
    DateValue,
    EntityValue,
    FactStore,
    NumberValue,
    Operator,
    QuestionKind,
    Skeleton,
    TextValue,
    answer_of,
    enumerate_skeletons,
    needed_facts,
    obfuscate,
    skeleton_of,
)
from agentflow.testing import FactWorld, fact_world
from tests.agentflow.facts._small import fact, metres, step


def levels(world: FactWorld, level: int) -> list[tuple[Skeleton, Skeleton]]:
    skeletons = enumerate_skeletons(world.store, [world.seed_name], per_kind=4, tried=16)
    return [(one, obfuscate(one, level, world.store)) for one in skeletons]


@cache
def all_levels() -> list[tuple[FactWorld, int, tuple[Skeleton, Skeleton]]]:
    worlds = [fact_world(seed) for seed in range(3)]
    return [(world, level, pair) for world in worlds for level in (1, 2, 3) for pair in levels(world, level)]


@pytest.mark.promise("programs:levels:unique")
def test_every_level_keeps_the_answer_unique_and_its_facts_needed() -> None:
    reached = Counter(after.level for _, _, (_, after) in all_levels())
    assert set(reached) == {0, 1, 2, 3}
    highest = Counter(after.level for _, level, (_, after) in all_levels() if level == 3)
    assert 3 * highest[3] >= highest.total()
    for world, level, (before, after) in all_levels():
        assert after.level <= level
        assert after.answer == before.answer
        assert answer_of(after.program, world.store) == before.answer
        assert needed_facts(after, world.store) == after.facts
        assert set(before.facts) <= set(after.facts)
        for one in after.descriptions:
            assert answer_of(one.program, world.store) == one.constant


@pytest.mark.promise("programs:levels:hidden")
def test_an_obfuscated_question_names_no_hidden_entity_and_no_described_constant() -> None:
    for _, _, (before, after) in all_levels():
        constants = [given for one in after.program for given in one.inputs if not isinstance(given, int)]
        named = {given.name for given in constants if isinstance(given, EntityValue)}
        assert named == set(after.given)
        assert not named & set(after.hidden)
        assert set(before.hidden) <= set(after.hidden)
        assert not {one.constant for one in after.descriptions} & set(constants)
        for one in after.descriptions:
            assert not any(name in one.words for name in after.hidden)
            if after.level > 1:
                assert not any(
                    isinstance(given, EntityValue) for part in one.program for given in part.inputs
                )
        if after.level:
            assert after.descriptions
            assert after.id != before.id
        else:
            assert after == before


LIGHTS = [
    fact(name, relation, value)
    for name, keeper, year, height in [
        ("Brenn Light", "Ada Holm", 1834, 34),
        ("Skerry Light", "Jon Berg", 1838, 61),
        ("Tern Light", "Eva Lund", 1861, 38),
        ("Far Light", "Ole Vik", 1902, 38),
    ]
    for relation, value in [
        ("kind", TextValue("lighthouse")),
        ("keeper", EntityValue(keeper)),
        ("year of opening", DateValue(year)),
        ("height", metres(height)),
    ]
]
PEOPLE = [
    fact(name, "birthplace", EntityValue(f"{name} Bay"))
    for name in ("Ada Holm", "Jon Berg", "Eva Lund", "Ole Vik")
]
STORE = FactStore([*LIGHTS, *PEOPLE])


def birthplace_of_keeper(light: str) -> Skeleton:
    program = (
        step(Operator.FOLLOW, EntityValue(light), relation="keeper"),
        step(Operator.FOLLOW, 1, relation="birthplace"),
    )
    found = skeleton_of(QuestionKind.BRIDGE, program, STORE, ["Ada Holm"])
    assert found is not None
    return found


@pytest.mark.promise("programs:levels:words")
@pytest.mark.parametrize(
    "light, level, reached, words",
    [
        ("Brenn Light", 1, 1, "the lighthouse whose year of opening is 1834"),
        (
            "Brenn Light",
            2,
            2,
            "the lighthouse whose year of opening is in the 1830s and whose height is between 30 and 40 metres",
        ),
        (
            "Brenn Light",
            3,
            3,
            "the lighthouse whose height is between 0 and 50 metres and whose year of opening is in the 1830s",
        ),
        ("Tern Light", 2, 2, "the lighthouse whose year of opening is in the 1860s"),
        ("Far Light", 3, 3, "the lighthouse whose year of opening is in the 20th century"),
        ("Far Light", 9, 3, "the lighthouse whose year of opening is in the 20th century"),
        ("Far Light", 0, 0, ""),
    ],
)
def test_a_name_is_replaced_by_a_description(light: str, level: int, reached: int, words: str) -> None:
    found = obfuscate(birthplace_of_keeper(light), level, STORE)
    assert found.level == reached
    assert [one.words for one in found.descriptions] == ([words] if words else [])
    assert found.given == (() if reached else (light,))


def test_a_question_whose_constants_nothing_describes_stays_as_it_is() -> None:
    bare = FactStore([fact("Brenn Light", "keeper", EntityValue("Ada Holm")), *PEOPLE])
    assert obfuscate(birthplace_of_keeper("Brenn Light"), 3, bare).level == 0
    described = obfuscate(birthplace_of_keeper("Brenn Light"), 1, STORE)
    with pytest.raises(ValueError, match="is at level 1: obfuscate the one at level 0"):
        obfuscate(described, 2, STORE)


def test_a_number_that_no_range_fits_is_no_clue() -> None:
    odd = [
        fact("A", "kind", TextValue("thing")),
        fact("A", "height", NumberValue(Decimal(-5), "metres")),
        fact("A", "year of opening", DateValue(-44)),
        fact("A", "keeper", EntityValue("Ada Holm")),
        fact("B", "kind", TextValue("thing")),
    ]
    store = FactStore([*odd, *PEOPLE])
    program = (
        step(Operator.FOLLOW, EntityValue("A"), relation="keeper"),
        step(Operator.FOLLOW, 1, relation="birthplace"),
    )
    found = skeleton_of(QuestionKind.BRIDGE, program, store)
    assert found is not None
    assert obfuscate(found, 2, store).level == 1
