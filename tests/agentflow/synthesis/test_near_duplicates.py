"""Questions that were asked before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.synthesis._files import QuestionIndex
from agentflow.values import infer_value

QUESTION = "In which year was the guild of lamplighters of Brenn founded?"


@pytest.mark.promise("synthesis:files:near-duplicates")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (QUESTION, "1874"),
        (QUESTION, "another answer"),
        ("in which YEAR was the guild of lamplighters of Brenn founded", "1874"),
        ("In what year was the guild of lamplighters of Brenn founded?", "1874."),
    ],
)
def test_the_same_question_in_nearly_the_same_words_is_found(question: str, answer: str) -> None:
    asked = QuestionIndex(0.85)
    asked.add(QUESTION, infer_value("1874"), "first")
    assert asked.before(question, infer_value(answer)) == "first"


@pytest.mark.promise("synthesis:files:near-duplicates")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("In which year was the guild of lamplighters of Hull founded?", "1901"),
        ("How many lamps has the guild of Brenn?", "1874"),
        ("Who founded the school of Vessel Bay?", "Jorun Pike"),
    ],
)
def test_a_different_question_is_not_a_duplicate(question: str, answer: str) -> None:
    asked = QuestionIndex(0.85)
    asked.add(QUESTION, infer_value("1874"), "first")
    assert asked.before(question, infer_value(answer)) is None


def test_words_in_another_order_are_another_question() -> None:
    asked = QuestionIndex(0.85)
    asked.add("Is Brenn older than Hull?", infer_value("yes"), "first")
    assert asked.before("Is Hull older than Brenn?", infer_value("no")) is None


@given(st.lists(st.text("abcd ?é東", min_size=1, max_size=20), max_size=10))
def test_a_question_in_the_same_words_is_always_found(questions: list[str]) -> None:
    asked = QuestionIndex(0.85)
    for number, question in enumerate(questions):
        asked.add(question, infer_value("a"), str(number))
    assert all(asked.before(question, infer_value("b")) is not None for question in questions)
