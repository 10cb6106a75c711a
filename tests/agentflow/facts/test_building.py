import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentflow.facts import (
    MAX_ALIAS_PAIRS,
    AliasJudgement,
    ChunkExtraction,
    ExtractedSet,
    Extraction,
    FaultKind,
    StoreBuild,
    build_store,
    chunks_of,
    merge_aliases,
    show_value,
)
from agentflow.trajectory import Node, Verdict
from tests.agentflow.facts._observations import extracted, observed, reported

PELL = observed(
    "Captain Joram Pell was born in Low Maddon in 1655. Low Maddon is the main town of Maddon. Pell was a sailor. "
    "The Guild of Glaziers (GG) was founded by J. Pell in 1690. It has 75 members.",
    "node_1",
)
GUILD = observed(
    "The guild of glaziers’s seat is Port Vannick. The GG was founded in 1690 by Joram Pell and counts 75 people.",
    "node_2",
)
REPORTS = (
    extracted(
        PELL,
        "Maddon | main town | e Low Maddon | Low Maddon is the main town of Maddon",
        "Captain Joram Pell | place of birth | e Low Maddon | born in Low Maddon",
        "Captain Joram Pell | born in | d 1655 | born in Low Maddon in 1655",
        "Pell | occupation | t sailor | Pell was a sailor",
        "Guild of Glaziers | founder of | e J. Pell | founded by J. Pell",
        "Guild of Glaziers | founding year | d 1690 | founded by J. Pell in 1690",
        "Guild of Glaziers | number of members | n 75 | It has 75 members",
        "Guild of Glaziers | colour | t red | It has 75 members",
    ),
    extracted(
        GUILD,
        "guild of glaziers | seat | e Port Vannick | seat is Port Vannick",
        "GG | Year of the founding | d 1690 | founded in 1690",
        "The GG | founder | e Joram Pell | founded in 1690 by Joram Pell",
        "GG | number of members | n 75 | counts 75 people",
    ),
)


def stated(build: StoreBuild) -> list[tuple[str, str, str, int]]:
    """Return subject, relation, value and number of places of each fact."""
    return [
        (fact.subject, fact.relation, show_value(fact.value), len(fact.spans)) for fact in build.store.facts
    ]


@pytest.mark.promise("facts:building:merged")
def test_the_same_statement_of_two_observations_is_one_fact_with_two_spans() -> None:
    build = build_store([PELL, GUILD], REPORTS)
    assert stated(build) == [
        ("Joram Pell", "birthplace", "Low Maddon", 1),
        ("Joram Pell", "year of birth", "1655", 1),
        ("Maddon", "main town", "Low Maddon", 1),
        ("Joram Pell", "profession", "sailor", 1),
        ("Guild of Glaziers", "founder", "Joram Pell", 2),
        ("Guild of Glaziers", "year of foundation", "1690", 2),
        ("Guild of Glaziers", "number of members", "75", 2),
        ("Guild of Glaziers", "seat", "Port Vannick", 1),
    ]
    assert [fault.kind for fault in build.faults] == [FaultKind.VALUE_NOT_STATED]
    assert build.pairs == ()
    assert build.store.canonical("GG") == build.store.canonical("guild of glaziers") == "Guild of Glaziers"
    assert build.store.canonical("Pell") == "Joram Pell"
    for fact in build.store.facts:
        for span in fact.spans:
            text = (PELL if span.node == "node_1" else GUILD).observation.text
            assert text[span.value_start : span.value_end] in text[span.start : span.end] != ""


@pytest.mark.promise("facts:building:order")
def test_the_store_does_not_depend_on_the_order_of_the_reports() -> None:
    split = [
        extracted(node, line)
        for node, lines in (
            (
                PELL,
                [
                    "Pell | occupation | t sailor | Pell was a sailor",
                    "J. Pell | profession | t sailor | Pell was a sailor",
                ],
            ),
            (
                GUILD,
                [
                    "GG | seat | e Port Vannick | seat is Port Vannick",
                    "GG | founded in | d 1690 | founded in 1690",
                ],
            ),
        )
        for line in lines
    ]
    builds = [build_store([PELL, GUILD], order) for order in permutations([*REPORTS, *split[:2]])]
    assert all(build.store.facts == builds[0].store.facts for build in builds)
    assert all(
        build.pairs == builds[0].pairs and build.store.aliases == builds[0].store.aliases for build in builds
    )
    assert all(build.faults == builds[0].faults for build in builds)


@pytest.mark.promise("facts:building:aliases")
@pytest.mark.parametrize(
    ("text", "one", "other", "same"),
    [
        ("The Pilots’ Guild met. pilots' guild is old.", "The Pilots’ Guild", "pilots' guild", True),
        ("Dr. Ada Mary Holm came. Ada Mary Holm left.", "Dr. Ada Mary Holm", "Ada Mary Holm", True),
        ("Zoë Ørn came. Zoe Orn left.", "Zoë Ørn", "Zoe Orn", True),
        ("A. Holm came. Ada Holm left.", "A. Holm", "Ada Holm", True),
        ("The Harbour Board (HB) met. HB is old.", "Harbour Board", "HB", True),
        ("A. Holm came. Ada Holm and Anna Holm left.", "A. Holm", "Ada Holm", None),
        ("Ossel is an island. Port Ossel is a town.", "Ossel", "Port Ossel", None),
        ("Skyreach is far. Sky Reach is near.", "Skyreach", "Sky Reach", None),
        ("Ada Holm came. Bram Oster left.", "Ada Holm", "Bram Oster", False),
        ("B. Holm came. Ada Holm left.", "B. Holm", "Ada Holm", False),
        ("The Grey Gull sank. The Grey Tern sailed.", "Grey Gull", "Grey Tern", False),
    ],
)  # fmt: skip
def test_names_are_merged_by_rule_or_left_to_a_judgement(
    text: str, one: str, other: str, same: bool | None
) -> None:
    node = observed(text)
    lines = [f"{name} | mark | t {text.split()[-1].strip('.')} | {text}" for name in (one, other)]
    if "Anna" in text:
        lines.append(f"Anna Holm | mark | t left | {text}")
    build = build_store([node], [extracted(node, *lines)])
    assert not build.faults
    merged = build.store.canonical(one.removeprefix("The ")) == build.store.canonical(other)
    assert merged is (same is True)
    asked = [{pair.first, pair.second} for pair in build.pairs]
    assert ({one, other} in asked) is (same is None), build.pairs
    assert all(pair.first_context and pair.second_context for pair in build.pairs)


@pytest.mark.promise("facts:building:judged")
def test_doubtful_names_are_merged_as_judged() -> None:
    node = observed(
        "Skyreach is far. Sky Reach was founded in 1709. Ossel is an island. Port Ossel is a town."
    )
    build = build_store(
        [node],
        [
            extracted(
                node,
                "Skyreach | distance | t far | Skyreach is far",
                "Sky Reach | founded in | d 1709 | founded in 1709",
                "Ossel | rank | t island | Ossel is an island",
                "Port Ossel | rank | t town | Port Ossel is a town",
            )
        ],
    )
    assert [(pair.first, pair.second) for pair in build.pairs] == [
        ("Skyreach", "Sky Reach"),
        ("Ossel", "Port Ossel"),
    ]
    merged = merge_aliases(build, AliasJudgement((True, False)))
    assert {fact.subject for fact in merged.store.facts} == {"Sky Reach", "Ossel", "Port Ossel"}
    assert merged.store.canonical("Skyreach") == "Sky Reach"
    assert merged.pairs == ()
    assert build.store.canonical("Skyreach") == "Skyreach"
    # A judgement of another length is used as far as it goes.
    assert merge_aliases(build, AliasJudgement(())).store.facts == build.store.facts
    assert merge_aliases(build, AliasJudgement((True,) * 9)).store.canonical("Ossel") == "Port Ossel"


def test_a_thing_is_not_merged_with_what_it_is_related_to_or_another_kind() -> None:
    node = observed("Low Maddon is the main town of Maddon. Brenn is an island. Brenn Light is a lighthouse.")
    build = build_store(
        [node],
        [
            extracted(
                node,
                "Maddon | main town | e Low Maddon | Low Maddon is the main town of Maddon",
                "Brenn | kind | t island | Brenn is an island",
                "Brenn Light | kind | t lighthouse | Brenn Light is a lighthouse",
            )
        ],
    )
    assert build.pairs == () and not build.store.aliases


def test_a_surname_means_another_person_in_another_observation() -> None:
    first = observed("Joram Pell was born in Ossel. Pell sailed in 1700.", "node_1")
    second = observed("Mira Pell was born in Brenn. Pell sailed in 1800.", "node_2")
    reports = [
        extracted(
            first,
            "Joram Pell | birthplace | e Ossel | born in Ossel",
            "Pell | year of sailing | d 1700 | sailed in 1700",
        ),
        extracted(
            second,
            "Mira Pell | birthplace | e Brenn | born in Brenn",
            "Pell | year of sailing | d 1800 | sailed in 1800",
        ),
    ]
    build = build_store([first, second], reports)
    assert ("Joram Pell", "year of sailing", "1700", 1) in stated(build)
    assert ("Mira Pell", "year of sailing", "1800", 1) in stated(build)
    assert "Pell" not in build.store.aliases


def test_numbers_with_equal_units_and_without_a_unit_are_one_fact() -> None:
    node = observed(
        "Brenn Light is 34 m tall. Brenn Light: 34 metres. Brenn Light, height 34. Brenn Light is 0.034 km."
    )
    lines = [
        f"Brenn Light | height | n {value} | {value}" for value in ("34 m", "34 metres", "34", "0.034 km")
    ]
    build = build_store([node], [extracted(node, *lines)])
    assert len(build.store.facts) == 1
    assert len(build.store.facts[0].spans) >= 3
    other = observed("Brenn Light is 34 m tall. Brenn Light: 34 feet. Brenn Light, height 35.")
    lines = [f"Brenn Light | height | n {value} | {value}" for value in ("34 m", "34 feet", "35")]
    assert len(build_store([other], [extracted(other, *lines)]).store.facts) == 3


@pytest.mark.promise("facts:building:new")
def test_only_new_observations_count() -> None:
    nodes = [observed(PELL.observation.text, "node_1", verdict=Verdict.OFF_TOPIC), GUILD]
    build = build_store(nodes, REPORTS)
    assert {span.node for fact in build.store.facts for span in fact.spans} == {"node_2"}
    assert build_store([], REPORTS).store.facts == ()


def test_reported_sets_have_canonical_members() -> None:
    node = observed("The two glaziers are A. Holm and Bram Oster. Ada Holm was born in 1700.")
    listed = ExtractedSet(
        "glaziers", ("A. Holm", "Bram Oster"), "The two glaziers are A. Holm and Bram Oster"
    )
    build = build_store(
        [node], [extracted(node, "Ada Holm | born in | d 1700 | born in 1700", sets=(listed,))]
    )
    assert [one.members for one in build.store.sets.values()] in (
        [("A. Holm", "Bram Oster")],
        [("Ada Holm", "Bram Oster")],
    )


@pytest.mark.promise("facts:building:bounded")
def test_a_flood_of_names_is_bounded() -> None:
    names = [f"Port {chr(65 + one)}{chr(97 + two)}x" for one in range(26) for two in range(26)]
    text = ". ".join(f"{name} and {name[5:]} lie far" for name in names[:60])
    node = observed(text[:11_900])
    lines = [
        f"{part} | place | t far | {name} and {name[5:]} lie far"
        for name in names[:60]
        for part in (name, name[5:])
    ]
    build = build_store([node], [extracted(node, *lines)])
    assert len(build.pairs) == MAX_ALIAS_PAIRS
    flood = build_store([node], [extracted(node, *(lines * 10))])
    assert FaultKind.TOO_MANY in [fault.kind for fault in flood.faults]


@given(st.data())
def test_any_reports_give_the_same_store_in_any_order(data: st.DataObject) -> None:
    names = ["Ada Holm", "A. Holm", "Holm", "Brenn", "Port Brenn", "the Gull", "Gull", "GG"]
    nodes: list[Node] = []
    reports: list[ChunkExtraction] = []
    for index in range(data.draw(st.integers(1, 3))):
        words = data.draw(
            st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), min_size=1, max_size=5)
        )
        sentences = [f"{one} met {other} in 1700." for one, other in words]
        node = observed(" ".join(sentences), f"node_{index}")
        nodes.append(node)
        reports += [
            extracted(node, f"{one} | friend | e {other} | {one} met {other}") for one, other in words
        ]
        reports += [
            extracted(node, f"{one} | born in | d 1700 | {said}")
            for (one, _), said in zip(words, sentences, strict=True)
        ]
    build = build_store(nodes, reports)
    random.Random(data.draw(st.integers(0, 99))).shuffle(reports)
    again = build_store(nodes, reports)
    assert (again.store.facts, again.pairs, again.faults) == (build.store.facts, build.pairs, build.faults)
    assert len({fact.id for fact in build.store.facts}) == len(build.store.facts)
    assert all(fact.subject == build.store.canonical(fact.subject) for fact in build.store.facts)


def test_a_description_is_an_alias_only_where_it_is_used() -> None:
    nodes = [
        observed(f"The {name} is a ship. The ship sank in {year}.", name)
        for name, year in (("Gull", 1700), ("Tern", 1800))
    ]
    reports: list[ChunkExtraction] = []
    for node, year in zip(nodes, (1700, 1800), strict=True):
        fact = reported(f"{node.id} | year of sinking | d {year} | The ship sank in {year}")
        (chunk,) = chunks_of(node.observation.text)
        reports.append(ChunkExtraction(node.id, chunk, Extraction((replace(fact, aliases=("the ship",)),))))
    build = build_store(nodes, reports)
    assert [(fact.subject, show_value(fact.value)) for fact in build.store.facts] == [
        ("Gull", "1700"),
        ("Tern", "1800"),
    ]
    assert (build.pairs, build.faults) == ((), ())
