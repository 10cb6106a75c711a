"""Skeletons of all kinds are enumerated over a store, and the best become questions."""

from collections import Counter
from functools import cache
from itertools import combinations, pairwise

import pytest

from agentflow.facts import (
    BoolValue,
    EntityValue,
    FactStore,
    Operator,
    QuestionKind,
    Skeleton,
    TextValue,
    answer_of,
    enumerate_skeletons,
    evaluate,
    minimal_support,
    needed_facts,
    relates_to_seed,
    select_questions,
    skeleton_of,
)
from agentflow.testing import FactWorld, fact_world
from tests.agentflow.facts._small import BRENN, SETS, STORE, fact, metres, step


@cache
def enumerated() -> list[tuple[FactWorld, list[Skeleton]]]:
    worlds = [fact_world(seed) for seed in range(8)]
    return [(world, list(enumerate_skeletons(world.store, [world.seed_name]))) for world in worlds]


@pytest.mark.promise("programs:enumeration:kinds")
def test_every_kind_is_enumerated_and_none_dominates() -> None:
    for _, skeletons in enumerated():
        kinds = Counter(one.kind for one in skeletons)
        assert set(kinds) == set(QuestionKind)
        assert max(kinds.values()) <= len(skeletons) / 4


@pytest.mark.promise("programs:enumeration:unique")
def test_every_skeleton_has_one_answer_that_needs_all_its_facts() -> None:
    for world, skeletons in enumerated():
        for one in skeletons:
            assert answer_of(one.program, world.store) == one.answer
            assert len(one.facts) >= 2
            assert needed_facts(one, world.store) == one.facts


@pytest.mark.promise("programs:enumeration:seed")
def test_every_skeleton_is_near_the_seed_and_strays_are_left_out() -> None:
    for world, skeletons in enumerated():
        assert not {fact for one in skeletons for fact in one.facts} & set(world.strays)
        distances = [relates_to_seed(one, world.store, [world.seed_name]) for one in skeletons]
        assert all(distance is not None and distance <= 3 for distance in distances)


@pytest.mark.promise("programs:enumeration:hidden")
def test_hidden_entities_are_not_given_and_contradicted_facts_are_not_used() -> None:
    for world, skeletons in enumerated():
        assert not {fact for one in skeletons for fact in one.facts} & set(world.contradicted)
        for one in skeletons:
            assert not set(one.given) & set(one.hidden)
            named = {
                given.name for step in one.program for given in step.inputs if isinstance(given, EntityValue)
            }
            assert named == set(one.given)


@pytest.mark.promise("programs:enumeration:hidden")
@pytest.mark.parametrize(
    "light, island, height, kept",
    [
        ("Norrö Light", "Brenn", "height", 2),
        ("Brenn Light", "Brenn", "height", 1),
        ("Norrö Light", "Brenn", "size of Brenn", 1),
    ],
)
def test_a_name_that_contains_a_hidden_one_is_not_asked_about(
    light: str, island: str, height: str, kept: int
) -> None:
    facts = [
        fact(light, "island", EntityValue(island)),
        fact(island, height, metres(30)),
        fact(light, "keeper", EntityValue("Ada Holm")),
        fact("Ada Holm", "birthplace", EntityValue("Tern Bay")),
    ]
    found = enumerate_skeletons(FactStore(facts), [light])
    assert len([one for one in found if one.given == (light,)]) == kept


@pytest.mark.promise("programs:enumeration:balanced")
def test_yes_and_no_are_balanced() -> None:
    for _, skeletons in enumerated():
        truths = Counter(one.answer for one in skeletons if one.kind is QuestionKind.YES_NO)
        assert truths[BoolValue(True)] == truths[BoolValue(False)] > 0


@pytest.mark.promise("programs:enumeration:deterministic")
def test_the_same_facts_give_the_same_skeletons() -> None:
    world = fact_world(0)
    assert enumerate_skeletons(world.store, [world.seed_name]) == enumerated()[0][1]


@pytest.mark.promise("programs:selection:shared")
def test_selected_questions_share_at_most_half_their_facts() -> None:
    for _, skeletons in enumerated():
        chosen = select_questions(skeletons, 12)
        assert len(chosen) >= 5
        kinds = Counter(one.kind for one in chosen)
        assert len(kinds) >= 5
        assert max(kinds.values()) <= max(1, len(chosen) / 4)
        for one, other in combinations(chosen, 2):
            common = set(one.facts) & set(other.facts)
            assert len(common) <= min(len(one.facts), len(other.facts)) / 2
        assert select_questions(skeletons, 3) == chosen[:3]


def test_without_a_seed_or_facts_there_are_no_skeletons() -> None:
    assert enumerate_skeletons(STORE, []) == []
    assert enumerate_skeletons(STORE, ["an unknown place"]) == []
    assert enumerate_skeletons(FactStore(()), ["Brenn Light"]) == []
    assert select_questions([], 5) == []


@pytest.mark.promise("programs:enumeration:siblings")
def test_the_seed_is_compared_with_things_of_its_kind_that_no_fact_links_to_it() -> None:
    facts = [
        fact(f"{kind} {place}", relation, value)
        for kind in ("Light", "Ship")
        for place in range(40)
        for relation, value in (("kind", TextValue(kind)), ("height", metres(place)))
    ]
    found = enumerate_skeletons(FactStore(facts), ["Light 7"])
    assert {one.kind for one in found} >= {
        QuestionKind.COMPARISON,
        QuestionKind.ARITHMETIC,
        QuestionKind.YES_NO,
    }
    # A question may name the seed or ask for it.
    assert all("Light 7" in (*one.given, *one.hidden) for one in found)
    assert all(name.startswith("Light") for one in found for name in one.given)


@pytest.mark.promise("programs:seed:mentions")
@pytest.mark.parametrize(
    "seed, found",
    [
        ("Brenn Light", True),
        ("Find out everything about the Brenn lighthouse.", True),
        ("Lights", True),
        ("The lighthouses of the north", True),
        ("Gull", True),
        ("Bren", False),
        ("", False),
    ],
)
def test_a_seed_is_found_by_name_alias_set_or_kind(seed: str, found: bool) -> None:
    names = ("Gull",) if seed == "Gull" else ("Brenn Light",)
    program = (
        step(Operator.FOLLOW, EntityValue(names[0]), relation="owners" if seed == "Gull" else "keeper"),
    )
    skeleton = skeleton_of(QuestionKind.BRIDGE, program, STORE)
    assert skeleton is not None
    assert (relates_to_seed(skeleton, STORE, [seed]) == 0) is found


@pytest.mark.promise("programs:seed:distance")
def test_the_distance_to_the_seed_is_a_number_of_facts() -> None:
    names = ["A", "B", "C", "D", "E", "F"]
    chain = [fact(one, "next", EntityValue(other)) for one, other in pairwise(names)]
    store = FactStore([*chain, fact("Z", "next", EntityValue("Y"))])

    def distance(subject: str) -> int | None:
        program = (step(Operator.FOLLOW, EntityValue(subject), relation="next"),)
        skeleton = skeleton_of(QuestionKind.BRIDGE, program, store)
        assert skeleton is not None
        return relates_to_seed(skeleton, store, ["A"])

    assert [distance(name) for name in "ABCDEZ"] == [0, 1, 2, 3, None, None]


def needed(skeleton: Skeleton | None, store: FactStore) -> int:
    assert skeleton is not None
    return len(needed_facts(skeleton, store))


@pytest.mark.promise("programs:needed")
def test_a_fact_is_needed_unless_the_program_can_do_without_it() -> None:
    chain = (
        step(Operator.FOLLOW, BRENN, relation="keeper"),
        step(Operator.FOLLOW, 1, relation="birthplace"),
    )
    # Two nodes state the birthplace; it is one fact and needed.
    assert needed(skeleton_of(QuestionKind.BRIDGE, chain, STORE), STORE) == 2
    dated = FactStore(
        [*STORE.facts, fact("Ada Holm", "birthplace", EntityValue("Tern Bay"), year=1801)], SETS
    )
    assert needed(skeleton_of(QuestionKind.BRIDGE, chain, dated), dated) == 2
    either = (
        step(Operator.OR, BRENN, EntityValue("Skerry Light")),
        step(Operator.FOLLOW, 1, relation="island"),
    )
    found = skeleton_of(QuestionKind.BRIDGE, either, STORE)
    assert needed(found, STORE) == 0


@pytest.mark.promise("programs:support")
def test_the_support_has_the_fewest_nodes() -> None:
    facts = [
        fact("A", "r", metres(1), "n1", "n2"),
        fact("B", "r", metres(2), "n2", "n3"),
        fact("C", "r", metres(3), "n3", "n4"),
        fact("D", "r", metres(4), "n4"),
    ]
    store = FactStore(facts, SETS)
    ids = [one.id for one in facts]
    assert minimal_support(ids, store) == ("n2", "n4")
    assert minimal_support(ids[:1], store) == ("n1",)
    assert minimal_support([], store) == ()
    assert minimal_support(["unknown"], store) == ()
    assert minimal_support(ids[:1], store, ["pair", "unknown"]) == ("n2",)


@pytest.mark.promise("programs:support")
def test_a_support_of_many_nodes_is_greedy_and_deterministic() -> None:
    facts = [
        fact(f"A{place}", "r", metres(place), f"n{place}", f"n{place + 1}", f"n{place + 20}")
        for place in range(40)
    ]
    store = FactStore(facts)
    ids = [one.id for one in facts]
    support = minimal_support(ids, store)
    assert support == minimal_support(ids, store)
    assert len(support) <= 20
    assert all(any(span.node in support for span in one.spans) for one in facts)


@pytest.mark.promise("programs:enumeration:conditions")
def test_a_question_without_one_of_its_conditions_has_other_answers() -> None:
    for world, skeletons in enumerated():
        for one in skeletons:
            for number, condition in enumerate(one.program):
                if condition.operator is Operator.AND:
                    for left in condition.inputs:
                        shorter = (*one.program[:number], step(Operator.OR, left), *one.program[number + 1 :])
                        assert answer_of(shorter, world.store) is None
                elif condition.operator is Operator.WHERE:
                    first = condition.inputs[0]
                    shorter = (*one.program[:number], step(Operator.OR, first), *one.program[number + 1 :])
                    assert [found.value for found in evaluate(shorter, world.store).answers] != [one.answer]
