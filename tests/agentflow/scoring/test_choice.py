"""Multiple choice."""

import pytest

from agentflow.scoring import score

OPTIONS = {"A": "0.9", "B": "1.2", "C": "Paris", "D": "Paris, Texas"}


@pytest.mark.promise("scoring:choice")
@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("A", "A. 0.9", 1),
        ("a)", "A", 1),
        ("(B)", "1.2", 1),
        ("**B**", "B", 1),
        ("B. 1.2", "B", 1),
        ("1.2", "B", 1),
        ("The answer is (C)", "C", 1),
        ("The correct option is B because it fits", "B", 1),
        ("Answer: C) Paris", "C", 1),
        (r"\boxed{C}", "C", 1),
        ("<answer>D</answer>", "D", 1),
        ("It is Paris, Texas.", "D", 1),
        ("Paris", "C", 1),
        ("Paris", "D", 0),
        ("B. 0.9", "B", 0),
        ("B. 0.9", "A", 0),
        ("A man walks", "A", 0),
        ("I think 0.9 or 1.2", "A", 0),
        ("(A) or (B)", "A", 0),
        ("E", "A", 0),
        ("", "A", 0),
        ("B", "A", 0),
    ],
)
def test_a_choice_may_be_a_letter_a_text_or_both(prediction: str, reference: str, expected: float) -> None:
    assert score("multiple_choice", prediction, reference, options=OPTIONS) == expected


@pytest.mark.promise("scoring:choice")
def test_options_may_be_a_list_or_unknown() -> None:
    assert score("multiple_choice", "red", "B", options=["green", "red"]) == 1.0
    assert score("multiple_choice", "(B)", "B") == 1.0
    assert score("multiple_choice", "red", "Red.") == 1.0
    assert score("multiple_choice", "green", "red") == 0.0
