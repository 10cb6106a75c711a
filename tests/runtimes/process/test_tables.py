"""Tables are bounded and always serializable as JSON, whatever their values."""

import datetime
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from runtimes.process.inside._evaluate import printable
from runtimes.process.inside._tables import build_table

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals(),
    st.text(st.characters(), max_size=20),
    st.binary(max_size=20),
    st.datetimes(),
    st.timedeltas(),
    st.complex_numbers(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


def cells(values: Sequence[object]) -> list[object]:
    table = build_table([("a", "object")], [[value] for value in values], 100, None)
    return [row[0] for row in cast("list[list[object]]", table["rows"])]


@given(st.lists(st.lists(VALUES, min_size=2, max_size=2), max_size=12), st.integers(1, 10))
def test_any_values_give_a_bounded_table_of_plain_json(rows: list[list[object]], limit: int) -> None:
    table = build_table([("a", "x"), ("b", "y")], rows, limit, None)
    assert len(cast("list[object]", table["rows"])) == min(len(rows), limit)
    assert table["total_rows"] == (len(rows) if len(rows) <= limit else None)
    json.dumps(table, allow_nan=False).encode()


def test_values_keep_their_meaning() -> None:
    day = datetime.date(2026, 1, 2)
    assert cells([True, 2**62, 2**80, 0.5, float("nan"), float("inf")]) == [
        True,
        2**62,
        str(2**80),
        0.5,
        None,
        "inf",
    ]
    assert cells([Decimal("1.50"), Decimal("0.1234567890123456789"), Decimal("NaN")]) == [
        1.5,
        "0.1234567890123456789",
        "NaN",
    ]
    assert cells([day, b"\x00\xff", (1, [2]), {1: None}]) == ["2026-01-02", "00 ff", [1, [2]], {"1": None}]


def test_long_and_deep_values_are_truncated() -> None:
    (text,) = cells(["x" * 5000])
    assert text == "x" * 2000 + "… (5000 characters)"
    deep: list[object] = []
    for _ in range(50):
        deep = [deep]
    assert len(json.dumps(cells([deep]))) < 300
    assert len(cast("list[object]", cells([list(range(10_000))])[0])) == 50


@given(st.text(st.characters(), max_size=300), st.integers(10, 100))
def test_printable_text_is_valid_and_keeps_both_ends(text: str, limit: int) -> None:
    made = printable(text, limit)
    made.encode()
    if len(text) <= limit:
        assert made == text.encode("utf-8", "backslashreplace").decode()
    else:
        assert "characters left out" in made
        assert made.startswith(text[: limit // 2].encode("utf-8", "backslashreplace").decode())
