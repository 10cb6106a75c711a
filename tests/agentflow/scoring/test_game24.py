"""The Game of 24."""

import pytest

from agentflow.scoring import score


@pytest.mark.promise("scoring:game24")
@pytest.mark.parametrize(
    ("prediction", "numbers", "expected"),
    [
        ("(1+1+4)*4", "1 1 4 4", 1),
        ("(6-4)*(1+11) = 24", "1 4 6 11", 1),
        ("So we have it.\nAnswer: (6 - 4) × (1 + 11) = 24", "1 4 6 11", 1),
        ("<answer>(6 - 4) x (1 + 11)</answer>", "1 4 6 11", 1),
        ("8/(3-8/3)", "3 3 8 8", 1),
        (r"\boxed{\frac{8}{3-\frac{8}{3}}}", "3 3 8 8", 1),
        ("(6-4)*(1+11)", "(11+1)*(6-4) = 24", 1),
        ("(6-4)*(1+11), (11+1)*(6-4)", "1 4 6 11", 1),
        ("(6-4)*(1+11) or 6*4", "1 4 6 11", 0),
        ("6*4", "1 4 6 1", 0),
        ("6*4*1", "1 4 6 1", 0),
        ("6*4*1*1", "1 4 6 11", 0),
        ("24", "1 4 6 11", 0),
        ("(6-4)*(1+11) = 25", "1 4 6 11", 0),
        ("1+4+6+11 = 24", "1 4 6 11", 0),
        ("8/(3-3)*8", "3 3 8 8", 0),
        ("3 3+8+8", "3 3 8 8", 0),
        ("33-8-(8/8)", "3 3 8 8", 0),
        ("4!*(2-1)^1", "4 2 1 1", 0),
        ("9^9^9^9", "9 9 9 9", 0),
        ("__import__('os')", "3 3 8 8", 0),
        ("", "3 3 8 8", 0),
        ("(1+1+4)*4", "", 0),
    ],
)
def test_a_solution_uses_each_number_once_and_equals_24(
    prediction: str, numbers: str, expected: float
) -> None:
    assert score("game24", prediction, numbers) == expected


@pytest.mark.promise("scoring:game24")
def test_numbers_and_target_can_be_given() -> None:
    assert score("game24", "1+2+3", [], numbers=[3, 2, 1], target=6) == 1.0
    assert score("game24", "1+2+3", [], numbers=[3, 2, 1]) == 0.0
