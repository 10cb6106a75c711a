import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentflow.facts import (
    HIDDEN,
    ChunkExtraction,
    DateValue,
    Extraction,
    Fact,
    FactSpan,
    FactStore,
    StoreBuild,
    TreePassages,
    build_store,
    chunks_of,
    hide_facts,
    passages_for,
    show_value,
)
from agentflow.trajectory import Blob, Node, Region, Verdict
from tests.agentflow.facts._observations import extracted, observed, reported

SHIP = observed(
    "[1] Grey Petrel (grey-petrel)\nThe Grey Petrel was launched in 1711. Her captain was Ilsa Venn. "
    "She sank in 1744. In 1744 the Grey Petrel had 58 sailors.\n\nNobody saw the Grey Petrel after Ilsa Venn left.",
    "node_1",
)
PERSON = observed(
    "Ilsa Venn (ilsa-venn)\nIlsa Venn was born in Low Maddon in 1680. She was the captain of the Grey Petrel. "
    "As Venn wrote, the Petrel was launched in 1711.",
    "node_2",
)
TABLE = observed(
    "Ships:\n\nShip | Masts | Guns | Captain\nGrey Petrel | 3 | 3 | Ilsa Venn\nCopper Heron | 2 | 8 | Ada Holm",
    "node_3",
)
OTHERS = [
    observed(
        f"The ship Number {number} of the fleet carried oak and rope in the year {1600 + number}.",
        f"node_{number}",
    )
    for number in range(10, 18)
]
NODES = [SHIP, PERSON, TABLE, *OTHERS]


def known() -> StoreBuild:
    return build_store(
        NODES,
        [
            extracted(
                SHIP,
                "Grey Petrel | year of launch | d 1711 | The Grey Petrel was launched in 1711",
                "Grey Petrel | captain | e Ilsa Venn | Her captain was Ilsa Venn",
                "Grey Petrel | year of sinking | d 1744 | She sank in 1744",
                "Grey Petrel | number of sailors | n 58 | had 58 sailors",
            ),
            extracted(
                PERSON,
                "Ilsa Venn | birthplace | e Low Maddon | born in Low Maddon",
                "Ilsa Venn | year of birth | d 1680 | born in Low Maddon in 1680",
                "Venn | profession | t captain | She was the captain of the Grey Petrel",
            ),
        ],
    )


BUILD = known()


def fact(subject: str, relation: str) -> Fact:
    (found,) = BUILD.store.of(subject, relation)
    return found


CAPTAIN, LAUNCH = fact("Grey Petrel", "captain"), fact("Grey Petrel", "year of launch")
BIRTHPLACE, MASTS = fact("Ilsa Venn", "birthplace"), fact("Grey Petrel", "number of masts")


def texts(*hidden: Fact, facts: tuple[Fact, ...] = (CAPTAIN, BIRTHPLACE)) -> dict[str, str]:
    """Return the text of each passage by its node."""
    support = ("node_1", "node_2", "node_3")
    found = passages_for(BUILD.store, NODES, facts, hidden=hidden, support=support, question="q")
    return {passage.node: passage.text for passage in found}


@pytest.mark.promise("facts:passages:hidden")
def test_a_hidden_fact_is_hidden_wherever_it_is_stated() -> None:
    shown = texts(CAPTAIN)
    assert "Her captain was […]." in shown["node_1"]
    assert "Nobody saw the Grey Petrel after […] left." in shown["node_1"]
    assert "She was the captain of the […]." in shown["node_2"]
    assert "Grey Petrel | 3 | 3 | […]\nCopper Heron | 2 | 8 | Ada Holm" in shown["node_3"]
    # Other facts stay.
    assert "The Grey Petrel was launched in 1711." in shown["node_1"]
    assert "Ilsa Venn was born in Low Maddon in 1680." in shown["node_2"]


@pytest.mark.promise("facts:passages:hidden")
def test_a_hidden_date_is_hidden_in_sentences_that_nobody_reported() -> None:
    shown = texts(fact("Grey Petrel", "year of sinking"))["node_1"]
    assert "She sank in […]. In […] the Grey Petrel had 58 sailors." in shown
    assert "launched in 1711" in shown


@pytest.mark.promise("facts:passages:hidden")
def test_an_equal_number_of_another_column_stays() -> None:
    assert "Grey Petrel | […] | 3 | Ilsa Venn" in texts(MASTS)["node_3"]


def test_the_name_within_a_longer_name_stays() -> None:
    node = observed("Low Maddon is the main town of Maddon. Maddon is low. Low Maddon lies on Maddon.")
    line = "Low Maddon | island | e Maddon | Low Maddon lies on Maddon"
    build = build_store([node], [extracted(node, line)])
    (passage,) = passages_for(build.store, [node], build.store.facts, hidden=build.store.facts)
    assert passage.text == "Low Maddon is the main town of […]. Maddon is low. Low Maddon lies on […]."


def test_a_hidden_truth_is_hidden_with_its_whole_quote() -> None:
    node = observed("Ilsa Venn was not a member of the guild. Ilsa Venn was tall.")
    build = build_store(
        [node],
        [extracted(node, "Ilsa Venn | membership of the guild | b no | was not a member of the guild")],
    )
    (passage,) = passages_for(build.store, [node], build.store.facts, hidden=build.store.facts)
    assert passage.text == "Ilsa Venn […]. Ilsa Venn was tall."


@pytest.mark.promise("facts:passages:same")
def test_hiding_changes_neither_the_choice_nor_the_order_of_passages() -> None:
    def layout(*hidden: Fact) -> list[tuple[int, str]]:
        found = passages_for(BUILD.store, NODES, [CAPTAIN, BIRTHPLACE], hidden=hidden, question="q")
        return [(passage.number, passage.node) for passage in found]

    assert layout() == layout(CAPTAIN) == layout(BIRTHPLACE, LAUNCH)
    assert [number for number, _ in layout()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.promise("facts:passages:distractors")
def test_distractors_state_none_of_the_facts_and_are_mixed_with_the_support() -> None:
    orders = set[tuple[bool, ...]]()
    for question in "abcdefgh":
        found = passages_for(BUILD.store, NODES, [LAUNCH], support=["node_1"], question=question)
        assert len(found) == 5
        assert {passage.node for passage in found}.isdisjoint({"node_2"}), "it states the launch"
        orders.add(tuple(passage.node == "node_1" for passage in found))
    assert len(orders) > 2
    few = passages_for(BUILD.store, NODES, [LAUNCH], distractors=0)
    assert [passage.node for passage in few] == ["node_1"]
    dropped = [observed(node.observation.text, node.id, verdict=Verdict.REPEATS) for node in OTHERS]
    assert len(passages_for(BUILD.store, [SHIP, *dropped], [LAUNCH])) == 1


FILLER = "Nothing of note happened on that quiet grey day in the harbour. " * 60


@pytest.mark.promise("facts:passages:windows")
def test_a_long_observation_is_shown_as_windows_around_its_facts() -> None:
    text = (
        f"Brenn Light\n\n{FILLER}Brenn Light was built in 1648. {FILLER * 3}Its keeper was Ada Holm. {FILLER}"
    )
    node = observed(text, "node_1")
    lines = (
        "Brenn Light | built in | d 1648 | Brenn Light was built in 1648",
        "Brenn Light | keeper | e Ada Holm | Its keeper was Ada Holm",
    )
    (chunk,) = [extracted(observed(text[:11_000], "node_1"), lines[0])]

    reports = [
        ChunkExtraction("node_1", one, Extraction(tuple(map(reported, lines)))) for one in chunks_of(text)
    ]
    build = build_store([node], [chunk, *reports])
    assert len(build.store.facts) == 2
    (passage,) = passages_for(build.store, [node], build.store.facts, budget=2_000)
    assert len(passage.text) < 2_100
    assert passage.text.startswith("Brenn Light\n")
    assert "Brenn Light was built in 1648." in passage.text and "Its keeper was Ada Holm." in passage.text
    for piece in passage.pieces:
        size = piece.end - piece.start
        assert passage.text[piece.start : piece.end] == text[piece.source : piece.source + size]
    place = passage.source_of("keeper was  Ada Holm")
    assert place is not None and text[place.start : place.end] == "keeper was Ada Holm"
    assert passage.source_of("keeper was Bram Oster") is None
    # Cited spans are shown even if the budget is too small.
    (small,) = passages_for(build.store, [node], build.store.facts, budget=1)
    assert "built in 1648" in small.text and "keeper was Ada Holm" in small.text
    (masked,) = passages_for(
        build.store, [node], build.store.facts, budget=2_000, hidden=build.store.facts[:1]
    )
    assert "built in […]." in masked.text
    assert masked.source_of("built in […].") is None
    mapped = masked.source_of("Its keeper was Ada Holm")
    assert mapped is not None and text[mapped.start : mapped.end] == "Its keeper was Ada Holm"


def test_a_window_in_a_table_has_its_header_and_one_in_a_long_line_is_cut() -> None:
    rows = "\n".join(f"Tower {number} | {number} | {1000 + number}" for number in range(900))
    node = observed(f"Towers:\n\nTower | Height (m) | Built\n{rows}", "node_1")
    build = build_store([node])
    (one,) = build.store.of("Tower 700", "height")
    (passage,) = passages_for(build.store, [node], [one], budget=900)
    assert "Tower | Height (m) | Built\n" in passage.text and "Tower 700 | 700 | 1700" in passage.text
    line = observed("x " * 40_000 + "Brenn Light has 41 steps " + "y " * 40_000, "node_1")

    facts = Extraction((reported("Brenn Light | number of steps | n 41 | Brenn Light has 41 steps"),))
    built = build_store(
        [line], [ChunkExtraction("node_1", chunk, facts) for chunk in chunks_of(line.observation.text)]
    )
    (passage,) = passages_for(built.store, [line], built.store.facts, budget=2_000)
    assert "Brenn Light has 41 steps" in passage.text and len(passage.text) < 3_000


def test_an_image_that_states_a_hidden_fact_is_not_shown() -> None:

    image = Blob.of(b"png", "image/png")
    node = observed("Figure 1", images=(image,))
    fact = replace(reported("Brenn Light | height | n 41 | Height: 41 m"), region=Region(1, 0, 0, 1, 1))
    build = build_store([node], [ChunkExtraction(node.id, chunks_of("Figure 1")[0], Extraction((fact,)))])
    (shown,) = passages_for(build.store, [node], build.store.facts)
    (masked,) = passages_for(build.store, [node], build.store.facts, hidden=build.store.facts)
    assert (shown.shown.images, masked.shown.images) == ((image,), ())


@pytest.mark.promise("facts:passages:hidden")
@given(st.data())
def test_hiding_leaves_no_span_that_states_a_fact(data: st.DataObject) -> None:
    names = ["Ada Holm", "Bram Oster", "Brenn Light", "Grey Petrel"]
    years = ["1700", "12 May 1711", "1744"]
    nodes: list[Node] = []
    reports: list[ChunkExtraction] = []
    for index in range(data.draw(st.integers(1, 3))):
        told = data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from(names), st.sampled_from([*names, *years]), st.booleans(), st.booleans()
                ),
                min_size=1,
                max_size=6,
            )
        )
        sentences = [
            f"It{' ' if space else chr(10)}knew {value} well."
            if pronoun and place
            else f"{name} knew {value} well."
            for place, (name, value, pronoun, space) in enumerate(told)
        ]
        node = observed(" ".join(sentences), f"node_{index}")
        nodes.append(node)
        for (name, value, *_), said in zip(told, sentences, strict=True):
            if said.startswith(name) and value != name and data.draw(st.booleans()):
                kind = "d" if value[0].isdigit() else "e"
                reports.append(extracted(node, f"{name} | friend | {kind} {value} | {said}"))
    build = build_store(nodes, reports)
    for hidden in build.store.facts:
        for passage in passages_for(build.store, nodes, build.store.facts, hidden=[hidden], distractors=9):
            for sentence in passage.text.split("."):
                value = show_value(hidden.value)
                assert not (hidden.subject in sentence and value in sentence), (hidden, passage.text)


def test_a_closed_set_is_shown_whole_and_choices_are_made_once() -> None:
    rows = "\n".join(f"Tower {number} | {number}" for number in range(200))
    node = observed(f"{FILLER}\n\nTowers:\n\nTower | Height (m)\n{rows}\n\n{FILLER}", "node_1")
    build = build_store([node, *OTHERS])
    (towers,) = build.store.sets.values()
    (tallest,) = build.store.of("Tower 199", "height")
    tree = TreePassages(build.store, [node, *OTHERS])
    shown = tree.passages([tallest], sets=[towers], budget=6_000)
    (whole,) = [passage.text for passage in shown if passage.node == "node_1"]
    assert rows in whole and len(whole) < len(node.observation.text)
    (hidden,) = [
        one.text
        for one in tree.passages([tallest], sets=[towers], hidden=[tallest], budget=6_000)
        if one.node == "node_1"
    ]
    assert hidden == whole.replace("Tower 199 | 199", "Tower 199 | […]")


def test_hidden_spans_are_merged_and_clipped() -> None:
    assert hide_facts("abcdef", [(1, 3), (2, 4), (5, 99), (7, 8)]) == f"a{HIDDEN}e{HIDDEN}"
    assert hide_facts("abc", []) == "abc"
    assert hide_facts("", [(0, 0)]) == ""


@pytest.mark.promise("facts:passages:windows")
@given(
    st.lists(
        st.sampled_from(["Ada Holm ", "left in 1700. ", "It was late.", "\n\n", "a | b\n", "é “x” ", "\r\n"]),
        max_size=60,
    ),
    st.integers(1, 2_000),
)
def test_pieces_of_a_passage_are_verbatim_in_the_observation(parts: list[str], budget: int) -> None:
    text = "Ada Holm left in 1700. " + "".join(parts) * 20
    node = observed(text, "node_1")
    start = text.rindex("1700")
    fact = replace(
        LAUNCH, subject="Ada Holm", value=DateValue(1700), spans=(FactSpan("node_1", start, start + 4),)
    )
    store = FactStore([fact])
    for hidden in ([], [fact]):
        (passage,) = passages_for(store, [node], [fact], hidden=hidden, budget=budget)
        for piece in passage.pieces:
            shown = passage.text[piece.start : piece.end]
            assert shown and shown == text[piece.source : piece.source + len(shown)]
        assert ("1700" in passage.text) >= (not hidden)
