"""Search for phrases and quotes, and comparison of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.text import (
    contains_phrase,
    content_word_pairs,
    find_quote,
    quantities,
    quantity,
    same_quantity,
    word_count,
)
from agentflow.values import texts_agree


@pytest.mark.promise("synthesis:words:whole")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It took 5 ships.", "5"),
        ("It took (5).", "5"),
        ("It is 5km away.", "5 km"),
        ("It is 5 km away.", "5km"),
        ("There are 1,500 of them", "1500"),
        ("Say no.", "No"),
        ("Der STRASSE entlang", "straße"),
        ("Cafe\u0301 Brenn", "Café Brenn"),
        ("the “Gull”", '"Gull"'),
        ("东京是日本的首都", "东京"),
        ("in 东京Tower", "tower"),
        ("Jean‑Luc came", "Jean-Luc"),
        ("It grew by 12 per cent", "12 percent"),
        ("It has the answer", "  the answer. "),
    ],
)
def test_words_are_found_where_they_stand_as_whole_words(text: str, words: str) -> None:
    assert contains_phrase(text, words)


@pytest.mark.promise("synthesis:words:whole")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It took 50 ships.", "5"),
        ("It took 15 ships.", "5"),
        ("It weighs 5.2 tonnes", "5"),
        ("It weighs 2.5 tonnes", "5"),
        ("There are 1,500 of them", "500"),
        ("There are 1,500 of them", "1"),
        ("It is -5 degrees", "5"),
        ("He left a note", "no"),
        ("It was yesterday", "yes"),
        ("Brennholt", "Brenn"),
        ("Cafe\u0301", "Caf"),
        ("x_5", "5"),
        ("It is 5kmh", "5 km"),
        ("anything", ""),
        ("anything", " ?! "),
    ],
)
def test_a_part_of_a_word_or_number_is_not_found(text: str, words: str) -> None:
    assert not contains_phrase(text, words)


@pytest.mark.promise("synthesis:words:quotes")
@pytest.mark.parametrize(
    ("text", "quote", "span"),
    [
        ("The Gull sails.", "Gull sails", "Gull sails"),
        ("The  “Gull”\n  sails.", 'The "Gull" sails.', "The  “Gull”\n  sails."),
        ("A cafe\u0301 in Brenn", "café in", "cafe\u0301 in"),
        ("A café in Brenn", "cafe\u0301", "café"),
        ("1914–1918", "1914-1918", "1914–1918"),
        ("ﬁsh and ﬂags", "fish and flags", "ﬁsh and ﬂags"),
        ("50 and 5", "5", "5"),
        ("東京は首都です", "首都", "首都"),
        ("Text", " Text \n", "Text"),
    ],
)
def test_a_quote_is_found_in_the_original_text(text: str, quote: str, span: str) -> None:
    found = find_quote(text, quote)
    assert found is not None
    assert text[slice(*found)] == span


@pytest.mark.promise("synthesis:words:quotes")
@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("The Gull sails.", "The gull sails."),
        ("The Gull sails.", "The Gull … sails."),
        ("It took 50 ships", "5"),
        ("A cafe\u0301", "A cafe"),
        ("The Gull sails.", ""),
        ("The Gull sails.", " \n"),
        ("", "The Gull"),
    ],
)
def test_what_a_text_does_not_say_is_no_quote(text: str, quote: str) -> None:
    assert find_quote(text, quote) is None


@given(st.text(), st.integers(0, 50), st.integers(0, 50))
def test_a_span_that_is_found_is_inside_the_text(text: str, start: int, length: int) -> None:
    found = find_quote(text, text[start : start + length])
    if found is not None:
        first, last = found
        assert 0 <= first < last <= len(text)


@given(st.text(alphabet="ab 1.é東", max_size=30), st.text(alphabet="ab 1.é東", max_size=5))
def test_text_between_spaces_is_found(before: str, words: str) -> None:
    if any(character.isalnum() for character in words):
        assert contains_phrase(f"{before} # {words} # {before}", words)


@pytest.mark.promise("synthesis:words:numbers")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,500", "1500"),
        ("1500.0", "1,500"),
        ("5 km", "5km"),
        ("5 km", "5 kilometres"),
        ("12%", "12 percent"),
        ("12 per cent", "12 %"),
        ("3 million", "3,000,000"),
        ("$29.17 trillion", "29.17 trillion dollars"),
        ("-5", "−5"),
        ("66 years", "66"),
        ("about 66", "66"),
    ],
)
def test_numbers_are_the_same_however_they_are_written(one: str, other: str) -> None:
    left, right = quantity(one), quantity(other)
    assert left is not None
    assert right is not None
    assert same_quantity(left, right)
    assert texts_agree(one, other)


@pytest.mark.promise("synthesis:words:numbers")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5", "50"),
        ("5 km", "5 kg"),
        ("12%", "12"),
        ("5", "-5"),
        ("66 years", "66 ships"),
        ("3 million", "3 billion"),
    ],
)
def test_other_numbers_and_other_units_are_not_the_same(one: str, other: str) -> None:
    left, right = quantity(one), quantity(other)
    assert left is not None
    assert right is not None
    assert not same_quantity(left, right)


def test_numbers_are_read_from_prose() -> None:
    text = "It cost $3.5 million and 12 percent of it, v2.1.3 and A5 aside, in 1,500 metres of rope."
    assert [(number.value * number.factor, number.kind) for number in quantities(text)] == [
        (3.5e6, "usd"),
        (pytest.approx(0.12), "percent"),
        (1500, "length"),
    ]


@pytest.mark.parametrize(
    ("answer", "other", "same"),
    [
        ("Jorun Pike", "jorun pike.", True),
        ("the lighthouse of Brenn", "lighthouse of Brenn", True),
        ("Jorun Pike", "Ada Pike", False),
        ("Jorun Pike", "", False),
        ("", "", False),
        ("5", "50", False),
    ],
)
def test_answers_agree_in_words(answer: str, other: str, same: bool) -> None:
    assert texts_agree(answer, other) is same


def test_two_characters_of_a_script_without_spaces_count_as_a_word() -> None:
    assert word_count("Who built it?") == 3
    assert word_count("谁建造了灯塔") == 3


@given(st.text())
def test_what_a_text_says_is_the_same_for_all_writings_of_its_spaces(text: str) -> None:
    assert content_word_pairs(text) == content_word_pairs(f"  {text}\n")


@pytest.mark.promise("synthesis:words:numbers")
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("5 km", "5,000 metres", True),
        ("1\u202f500 km", "1500 km", True),
        ("90 minutes", "1.5 h", True),
        ("forty-two", "42", True),
        ("the 3rd", "3", False),
        ("12 %", "12", False),
        ("5 km", "5 h", False),
    ],
)
def test_quantities_are_compared_by_what_they_measure(one: str, other: str, same: bool) -> None:
    left, right = quantities(one)[0], quantities(other)[0]
    assert same_quantity(left, right) is same


@given(st.integers(0, 10**9), st.sampled_from(["", " km", " %", " bridges"]))
def test_a_number_is_the_same_with_and_without_separators(value: int, unit: str) -> None:
    left, right = quantity(f"{value:,}{unit}"), quantity(f"{value}{unit}")
    assert left is not None
    assert left == right
