"""Properties of typed values: comparison is reflexive and symmetric, showing and reading are inverse."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    Value,
    ValueKind,
    answer_agrees,
    infer_value,
    kind_of,
    parse_value,
    read_answer,
    show_value,
    texts_agree,
    values_agree,
)

WORDS = st.sampled_from(
    [
        "Ada",
        "Brenn",
        "Holm",
        "Light",
        "Østby",
        "Guild of Glaziers",
        "Zoë",
        "Pier 5",
        "O'Hara",
        "Li",
        "São Tomé",
    ]
)
NAMES = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
UNITS = st.sampled_from(
    ["", "metres", "km", "%", "$", "ships", "inhabitants", "years", "°C", "kg", "copper mines", "km²"]
)
AMOUNTS = st.decimals(min_value=-(10**13), max_value=10**13, places=3, allow_nan=False) | st.integers(
    -(10**13), 10**13
).map(Decimal)
NUMBERS = st.builds(NumberValue, AMOUNTS, UNITS)
YEARS = st.integers(-9999, 9999).filter(bool)
DATES = (
    st.builds(DateValue, YEARS)
    | st.builds(DateValue, YEARS, st.integers(1, 12))
    | st.builds(DateValue, YEARS, st.integers(1, 12), st.integers(1, 28))
)
ENTITIES = st.builds(EntityValue, NAMES)
TEXTS = st.builds(TextValue, NAMES)
SCALARS: st.SearchStrategy[ScalarValue] = st.one_of(
    ENTITIES, NUMBERS, DATES, TEXTS, st.builds(BoolValue, st.booleans())
)
LISTS = st.builds(ListValue, st.lists(SCALARS, min_size=1, max_size=4).map(tuple), st.booleans())
VALUES: st.SearchStrategy[Value] = SCALARS | LISTS
FULL_DATES = st.builds(DateValue, st.integers(1000, 2999), st.integers(1, 12), st.integers(1, 28))
ALIKE = (
    st.lists(ENTITIES, min_size=1, max_size=4)
    | st.lists(NUMBERS.filter(lambda each: each.unit != "copper mines"), min_size=1, max_size=4)
    | st.lists(FULL_DATES, min_size=1, max_size=4)
)
SHOWN_LISTS = st.builds(ListValue, ALIKE.map(tuple))
ANYTHING = st.text(max_size=80) | st.lists(
    st.sampled_from(
        [
            "Ada Holm",
            "34",
            "metres",
            "1841",
            "12 May",
            ",",
            ".",
            "not",
            "or",
            "(",
            "yes",
            "\n",
            "is",
            "$",
            "-",
            "1.",
            "\ue000",
            "'s",
            "½",
            "th",
            "½",
        ]
    ),
    max_size=14,
).map(" ".join)


@pytest.mark.promise("facts:values:agree")
@given(VALUES)
def test_a_value_agrees_with_itself(value: Value) -> None:
    assert values_agree(value, value)


@pytest.mark.promise("facts:values:agree")
@given(VALUES, VALUES)
def test_agreement_does_not_depend_on_the_order(first: Value, second: Value) -> None:
    assert values_agree(first, second) is values_agree(second, first)


@pytest.mark.promise("facts:values:shown")
@given(SCALARS | SHOWN_LISTS)
def test_a_value_that_is_shown_reads_as_the_same_value(value: Value) -> None:
    unit = value.unit if isinstance(value, NumberValue) else ""
    assert (read := parse_value(show_value(value), kind_of(value), unit)) is not None
    assert values_agree(read, value)
    if not isinstance(value, ListValue):
        assert read == value


@pytest.mark.promise("facts:answers:read")
@given(SCALARS)
def test_an_answer_that_shows_a_value_agrees_with_it(value: Value) -> None:
    assert answer_agrees(value, show_value(value))
    assert answer_agrees(value, f"The answer is {show_value(value)}.")


@pytest.mark.promise("facts:answers:read")
@given(NUMBERS, NUMBERS)
def test_an_answer_that_shows_another_number_does_not_agree(expected: NumberValue, said: NumberValue) -> None:
    if not values_agree(expected, said) and expected.unit == said.unit and expected.unit != "%":
        assert not answer_agrees(expected, show_value(said))


@pytest.mark.promise("facts:values:read")
@given(ANYTHING, VALUES, ANYTHING)
@settings(max_examples=300)
def test_any_text_is_read_without_an_error(text: str, like: Value, question: str) -> None:
    read = read_answer(text, like, question=question, surname=True)
    assert read is None or kind_of(read) is kind_of(like)
    for kind in ValueKind:
        parsed = parse_value(text, kind)
        assert parsed is None or show_value(parsed)
    assert values_agree(infer_value(text), infer_value(text))
    assert texts_agree(text, like.name if isinstance(like, EntityValue) else "34") in {True, False}


LIKES: list[Value] = [
    EntityValue("Ada Holm"),
    NumberValue(Decimal(34), "metres"),
    DateValue(1841, 5, 12),
    BoolValue(True),
    ListValue((EntityValue("Ada Holm"), EntityValue("Jorun Pike"))),
]


@pytest.mark.promise("facts:answers:linear")
@pytest.mark.parametrize(
    "part",
    ["word ", "Ada Holm and Jorun Pike, ", ",", "34 metres, ", "12 May 1841, ", "1", "1,111,", " ", "1. Ada Holm\n", "not ",
     "(", "A. ", "a", "and ", "-", "the answer is ", "e\u0301", "12 ", "/", "Ada ", "?\n", ". ", "May ", "$", "1-", "the "],
)  # fmt: skip
def test_a_long_answer_is_read_in_bounded_time(part: str) -> None:
    # A pattern that backtracks, or a loop over pairs, would not end.
    said = part * (20_000 // len(part)) + "x"
    for like in LIKES:
        read_answer(said, like)


@pytest.mark.promise("facts:answers:read")
@given(ENTITIES | NUMBERS | DATES, ENTITIES | NUMBERS | DATES)
def test_a_negation_or_an_alternative_never_agrees(value: ScalarValue, other: ScalarValue) -> None:
    shown, alternative = show_value(value), show_value(other)
    assert not answer_agrees(value, f"It was not {shown}.")
    assert not answer_agrees(value, f"{shown}? No.")
    assert not answer_agrees(value, f"Probably {shown}.")
    # A number may omit its unit, so numbers of different units are not told apart without them.
    units = {each.unit for each in (value, other) if isinstance(each, NumberValue)}
    if kind_of(value) is kind_of(other) and len(units) < 2 and not values_agree(value, other):
        assert not answer_agrees(value, f"{shown} or {alternative}")
        assert not answer_agrees(value, f"not {shown} but {alternative}")
