"""The quasi exact match of GAIA."""

import pytest

from agentflow.scoring import score


@pytest.mark.promise("scoring:gaia")
@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("17", "17", 1),
        ("17.0", "17", 1),
        ("$1,200", "1200", 1),
        ("89%", "89", 1),
        ("eighteen", "18", 0),
        ("17 and more", "17", 0),
        ("St. Petersburg!", "stpetersburg", 1),
        ("sea gull", "seagull", 1),
        ("The seagull", "seagull", 0),
        ("a, 2.0; c", "A,2,C", 1),
        ("a, c", "a, b", 0),
        ("b, a", "a, b", 0),
        ("a", "a, b", 0),
        ("", "17", 0),
    ],
)
def test_numbers_lists_and_words_are_compared_as_gaia_does(
    prediction: str, reference: str, expected: float
) -> None:
    assert score("gaia", prediction, reference) == expected
