"""Extraction of the answer from a text."""

import pytest

from agentflow.scoring import extract_answer, marked_answer


@pytest.mark.promise("scoring:answers")
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>Paris</answer> and more", "Paris"),
        ("<answer>Rome</answer> no, <answer> Paris </answer>", "Paris"),
        ("I am cut short: <answer>Paris", "Paris"),
        (r"So $x = \boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{\{2\}}", r"\{2\}"),
        (r"\boxed 7", "7"),
        (r"\boxed{1} and \boxed{2", "1"),
        ("Reasoning.\nFinal answer: Paris.", "Paris"),
        ("**Final Answer:** 42\n\nBye.", "42"),
        ("Final Answer\n42", "42"),
        ("The final answer is Washington D.C.", "Washington D.C."),
        ("The answer is: Paris", "Paris"),
        ("Answer: Paris", "Paris"),
        ("It is far.\nTherefore, it is Paris.\nGood bye", "it is Paris"),
        ("Also the population is 3 million.\nParis", "Paris"),
        ("The soil is thus-named.\nParis", "Paris"),
        ("Many answers: none.\nParis", "Paris"),
        ("One line.\n\nParis\n\n", "Paris"),
        ("Paris", "Paris"),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_the_answer_is_the_marked_part_or_else_the_end_of_the_text(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.promise("scoring:answers")
@pytest.mark.parametrize(
    "text", ["Paris", "The answer is Paris", "Therefore Paris", "semifinal answers: no", ""]
)
def test_only_unambiguous_markers_count(text: str) -> None:
    assert marked_answer(text) is None
