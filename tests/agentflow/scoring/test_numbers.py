"""Numbers with their units."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.scoring import score

RIGHT = [
    ("1,234", "1234"), ("1234", "1,234"), ("1 234 567 is wrong, 1,234,567 right", "1 234 567 wrong 1234567"),
    ("50%", "0.5"), ("0.5", "50 percent"), ("50 per cent", "50%"), ("about 3.2 million people in 1990", "3,200,000"),
    ("5 million", "5,000,000"), ("5 km", "5000 m"), ("5 minutes", "300 seconds"), ("3 + 4 = 7", "7"),
    ("The tower (built 1889) is 330 m tall", "330 m"), ("It has 2 lakes and 330 km of roads", "330 km"),
    ("forty-two", "42"), ("two hundred and five days", "205"), ("$5M", "5 million dollars"), ("€20", "20 euros"),
    ("1.2×10^5", "120000"), ("3.2e6", "3200000"), ("3.15", "3.14159"), ("-5 °C", "−5 °C"), ("5-10", "5 to 10"),
    ("1/2", "0.5"), ("½", "0.5"), ("the year 1999 saw 12 of them", "12"), ("1990", "in 1990"),
    ("12 in 2001 and 13 in 2002", "12 in 2001, 13 in 2002"), ("99.5", "100"), (".5", "0.5"),
]  # fmt: skip
WRONG = [
    ("1 and 234", "1,234"), ("5%", "5"), ("5", "5%"), ("5 million", "3 million"), ("In 1990, 5 million", "3.2 million in 1990"),
    ("1990", "3.2 million in 1990"), ("5 kg", "5 lb"), ("5 kg", "5 km"), ("$5", "€5"), ("either 330 or 5 km", "5 km"), ("1990", "1991"),
    ("-5", "5"), ("10 to 5", "5 to 10"), ("13 in 2001 and 12 in 2002", "12 in 2001, 13 in 2002"), ("12", "12 and 13"),
    ("5, 7 or 9", "7"), ("Paris", "Paris"), ("", ""), ("7", ""), ("98", "100"), ("1/0", "1"), ("v2.3.4", "2.3"),
]  # fmt: skip


@pytest.mark.promise("scoring:numbers")
@pytest.mark.parametrize(("prediction", "reference"), RIGHT)
def test_numbers_match_in_any_notation(prediction: str, reference: str) -> None:
    assert score("numeric_match", prediction, reference) == 1.0


@pytest.mark.promise("scoring:numbers")
@pytest.mark.parametrize(("prediction", "reference"), WRONG)
def test_different_or_misplaced_numbers_do_not_match(prediction: str, reference: str) -> None:
    assert score("numeric_match", prediction, reference) == 0.0


@pytest.mark.promise("scoring:numbers")
def test_numbers_of_the_question_are_ignored_and_percent_follows_the_question() -> None:
    asked = {"question": "Of 80 birds, how many flew?"}
    assert score("numeric_match", "Of 80 birds 12 flew", "12") == 0.0
    assert score("numeric_match", "Of 80 birds 12 flew", "12", **asked) == 1.0
    assert score("numeric_match", "50", "50%", question="What percentage flew?") == 1.0


@pytest.mark.promise("scoring:numbers")
def test_tolerance_is_configurable_and_does_not_apply_to_years() -> None:
    assert score("numeric_match", "104", "100", tolerance=0.05) == 1.0
    assert score("numeric_match", "100.1", "100", tolerance=0) == 0.0
    assert score("numeric_match", "1991", "1990", tolerance=0.05) == 0.0


@pytest.mark.promise("scoring:numbers")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(min_value=-(10**12), max_value=10**12))
def test_thousands_are_read_as_one_number(value: int) -> None:
    assert score("numeric_match", f"{value:,}", str(value), tolerance=0) == 1.0


@pytest.mark.promise("scoring:bounded")
def test_a_text_full_of_numbers_is_read_in_bounded_time() -> None:
    many = " ".join("7" * 20 for _ in range(2000))
    assert score("numeric_match", many, many) in {0.0, 1.0}
    assert score("numeric_match", "9" * 100_000, "1") == 0.0
