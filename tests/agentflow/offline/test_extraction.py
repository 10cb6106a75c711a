"""Typed facts and complete enumerations extracted by the offline engine."""

import pytest

from agentflow.facts import AliasJudgement, AliasPair, AliasRequest, ExtractionRequest, ValueKind, parse_value
from agentflow.offline import answer
from agentflow.offline._extraction import extracted
from agentflow.trajectory import Action
from tests.agentflow.offline._walks import documents

SENTENCES = {
    "Alba was founded in 1204 by Ida Holt.": {
        ("Alba", "year of foundation", "1204", "", "Alba was founded in 1204"),
        ("Alba", "founder", "Ida Holt", "", "Alba was founded in 1204 by Ida Holt"),
    },
    "The Grey Petrel was launched in 1711 and was built at the Old Yard, of oak.": {
        ("Grey Petrel", "year of launch", "1711", "", "The Grey Petrel was launched in 1711"),
        ("Grey Petrel", "place of construction", "Old Yard", "", "was built at the Old Yard"),
    },
    "The Grey Petrel measured 34 metres and carried 1,058 sailors.": {
        ("Grey Petrel", "length", "34", "metres", "The Grey Petrel measured 34 metres"),
        ("Grey Petrel", "number of sailors", "1,058", "sailors", "carried 1,058 sailors"),
    },
    "Ida Holt was born in Alba in 1170.": {
        ("Ida Holt", "birthplace", "Alba", "", "Ida Holt was born in Alba"),
        ("Ida Holt", "year of birth", "1170", "", "Ida Holt was born in Alba in 1170"),
    },
    "Low Fern is the main town of Fern.": {
        ("Low Fern", "kind", "town", "", "Low Fern is the main town"),
        ("Fern", "main town", "Low Fern", "", "Low Fern is the main town of Fern"),
    },
    "The first keeper of Fern Light was Ida Holt, a retired pirate.": {
        ("Fern Light", "first keeper", "Ida Holt", "", "The first keeper of Fern Light was Ida Holt"),
    },
    "Fern Light is a white lighthouse.": {
        ("Fern Light", "kind", "lighthouse", "", "Fern Light is a white lighthouse"),
    },
    "Quill lies 8 leagues west of Alba.": set[tuple[str, ...]](),
    "She discovered the Lantern Comet.": set[tuple[str, ...]](),
    "The captain of the ship was old.": set[tuple[str, ...]](),
    "Nobody was founded.": set[tuple[str, ...]](),
}


@pytest.mark.promise("offline:extraction")
@pytest.mark.parametrize("text", SENTENCES)
def test_a_sentence_states_typed_facts(text: str) -> None:
    found = {
        (fact.subject, fact.relation, fact.value, fact.unit, fact.quote) for fact in extracted(text).facts
    }
    assert found == SENTENCES[text]


@pytest.mark.promise("offline:extraction")
def test_pronouns_and_parts_refer_to_the_topic() -> None:
    text = "Fern Light (fern)\nFern Light is a lighthouse. The tower stands 43 metres tall and has 212 steps."
    facts = {(fact.subject, fact.relation, fact.value) for fact in extracted(text).facts}
    assert facts == {
        ("Fern Light", "kind", "lighthouse"),
        ("Fern Light", "height", "43"),
        ("Fern Light", "number of steps", "212"),
    }


@pytest.mark.promise("offline:extraction")
def test_every_fact_of_the_corpus_has_a_quote_with_its_value() -> None:
    count = 0
    for document in documents():
        for fact in extracted(f"{document.title} ({document.id})\n{document.text}").facts:
            count += 1
            assert fact.quote in document.text
            assert fact.value in fact.quote
            assert parse_value(fact.value, fact.kind, fact.unit) is not None
            assert (fact.kind is ValueKind.NUMBER) == bool(fact.unit)
    assert count > 350


@pytest.mark.promise("offline:extraction")
def test_an_enumeration_is_complete_if_its_number_fits() -> None:
    text = "The three main islands of the Fern Isles are Alba, the Low Isle and Quill."
    (found,) = extracted(text).sets
    assert found.description == "three main islands of the Fern Isles"
    assert found.members == ("Alba", "Low Isle", "Quill")
    assert extracted(text.replace("three", "four")).sets == ()
    assert extracted("Islands such as Alba, Fern and Quill are low.").sets == ()


@pytest.mark.promise("offline:extraction")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0",
        "奥塞尔岛有31000名居民。",
        "def read(path): return open(path).read()  # 12 files",
        '{"name": "Alba", "founded": 1204, "tags": ["a", "b"]}',
        "A was B in 1204 by " * 5_000,
        "The " * 25_000,
        "," * 100_000,
        "The one of the " * 6_000 + ".",
    ],
)
def test_text_of_other_shapes_has_no_facts(text: str) -> None:
    request = ExtractionRequest(seed="", action=Action("read", {}), text=text)
    assert answer(request) == extracted("")


@pytest.mark.promise("offline:extraction")
def test_only_longer_forms_of_a_name_mean_the_same_thing() -> None:
    def same(first: str, second: str) -> bool:
        said = f"The storm was called {first} or {second}."
        request = AliasRequest(pairs=(AliasPair(first, second, said, said),))
        return answer(request) == AliasJudgement((True,))

    assert same("Great Flood of 1712", "Great Flood")
    assert same("the Grey Petrel", "Grey Petrel")
    assert not same("Guild of Glaziers", "Guild of Clockmakers")
    assert not same("Maddon", "Low Maddon")
    assert not same("Ida Holt", "Holt")
