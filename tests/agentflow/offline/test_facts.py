"""Facts found by patterns."""

import pytest

from agentflow.offline._statements import SLOT, read


def asked(text: str) -> dict[str, str]:
    """Return the questions with their answers."""
    return {fact.ask.replace(SLOT, fact.shown): fact.value for fact in read(text).facts}


@pytest.mark.promise("offline:facts")
@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        ("Alba was founded in 1204 by Ida Holt.", "In which year was Alba founded?", "1204"),
        ("Alba was founded in 1204 by Ida Holt.", "Who founded Alba?", "Ida Holt"),
        ("The Song was written by Ida Holt.", "Who wrote the Song?", "Ida Holt"),
        ("The Grey Petrel was built at the Old Yard.", "Where was the Grey Petrel built?", "Old Yard"),
        ("Ida Holt was born in Alba in 1170.", "Where was Ida Holt born?", "Alba"),
        ("Ida Holt was born in Alba in 1170.", "In which year was Ida Holt born?", "1170"),
        ("Ida Holt died in 1239.", "In which year did Ida Holt die?", "1239"),
        ("Ida Holt founded Alba in 1204.", "Who founded Alba?", "Ida Holt"),
        (
            "The ship was broken up in 1803. The Old Hull was broken up in 1803.",
            "In which year was the Old Hull broken up?",
            "1803",
        ),
        (
            "The captain of the Grey Petrel was Ida Holt, a pilot.",
            "Who was the captain of the Grey Petrel?",
            "Ida Holt",
        ),
        ("Alba is the main town of Fern Island.", "What is the main town of Fern Island?", "Alba"),
        ("Fern Light stands 43 metres tall and is white.", "How tall is Fern Light?", "43 metres"),
        (
            "Fern Island lies 12 leagues north of Alba.",
            "How far north of Alba does Fern Island lie?",
            "12 leagues",
        ),
        ("The Old Bell weighs 9 tonnes.", "How much does the Old Bell weigh?", "9 tonnes"),
        ("A Holt Compass costs 85 crowns, no less.", "How many crowns does a Holt Compass cost?", "85"),
        (
            "The Grey Petrel carried 1,058 sailors and a cat.",
            "How many sailors did the Grey Petrel carry?",
            "1,058",
        ),
        (
            "The Old Garden grows 2,460 kinds of plants.",
            "How many kinds of plants does the Old Garden grow?",
            "2,460",
        ),
        ("The Spring Feast lasts for 3 nights.", "For how long does the Spring Feast last?", "3 nights"),
        ("Holt Glacier is named after Ida Holt.", "After whom or what is Holt Glacier named?", "Ida Holt"),
    ],
)
def test_a_sentence_answers_a_question(text: str, question: str, answer: str) -> None:
    assert asked(text)[question] == answer


@pytest.mark.promise("offline:facts")
def test_pronouns_and_parts_refer_to_the_topic_of_the_passage() -> None:
    text = "Fern Light (fern)\nFern Light is a lighthouse. It has 212 steps. The tower stands 43 metres tall."
    assert asked(text) == {
        "How many steps does Fern Light have?": "212",
        "How tall is the tower of Fern Light?": "43 metres",
    }
    assert {fact.naming for fact in read(text).facts} == {"Fern Light is a lighthouse."}
    assert read(text).classes == {"Fern Light": "lighthouse"}


@pytest.mark.promise("offline:facts")
@pytest.mark.parametrize(
    "text",
    [
        "It has 212 steps.",
        "Fern Light is white. Ida Holt liked it. It has 212 steps.",
        "The captain of the ship was old.",
        "The owner of Alba is the Council of the isles.",
        "Fern Light has 212 steps",
        "Nobody was founded.",
    ],
)
def test_an_ambiguous_sentence_gives_no_fact(text: str) -> None:
    assert asked(text) == {}
