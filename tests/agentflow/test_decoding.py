"""JSON from outside is a value that every part of the program can use, or an error of one line."""

import json
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow._decoding import DECODE_ERRORS, JsonError, decode_json, decode_reason
from agentflow._typeguards import is_list, is_object

HOSTILE = {
    "digits": ("9" * 5000, "a number of 5,000 digits; 250 are the most"),
    "a large integer": ("-" + "9" * 300, "a number of 301 digits; 250 are the most"),
    "a large float": ("[1e999]", "the number 1e999 is out of range"),
    "lists": ("[" * 101 + "]" * 101, "nested deeper than 100 levels; write it flatter"),
    "objects": ('{"a":' * 101 + "1" + "}" * 101, "nested deeper than 100 levels; write it flatter"),
    "a deep nest": ("[" * 100_000, "nested deeper than 100 levels; write it flatter"),
    "NaN": ("[NaN]", "not JSON: NaN is no number; write null, or leave it out"),
    "Infinity": ('{"a": -Infinity}', "not JSON: -Infinity is no number; write null, or leave it out"),
    "half a surrogate pair": (r'["\ud800"]', "a text has half of a surrogate pair; write the whole sign"),
    "half a pair as a key": (r'{"\uDFFF": 1}', "a text has half of a surrogate pair; write the whole sign"),
    "NUL": ('["\0"]', "not JSON: Invalid control character"),
    "no UTF-8": (b'["\xff"]', "not UTF-8 text; save it as UTF-8"),
    "UTF-16": ("[1]".encode("utf-16"), "not UTF-8 text; save it as UTF-8"),
    "nothing": ("", "not JSON: Expecting value"),
    "more": ("[1] [2]", "not JSON: Extra data"),
    "a key twice": ('[{"a": 1, "a": 2}]', "a is given twice; remove one of them"),
}


@pytest.mark.promise("project:values")
@pytest.mark.parametrize("kind", HOSTILE)
def test_json_that_would_fail_later_is_refused_in_one_line(kind: str) -> None:
    text, message = HOSTILE[kind]
    with pytest.raises(JsonError) as refused:
        decode_json(text, unique_keys=True)
    assert str(refused.value) == message


@pytest.mark.promise("project:values")
def test_an_error_of_syntax_has_its_line() -> None:
    with pytest.raises(JsonError) as refused:
        decode_json('{\n"a": 1,\n"b": }')
    assert refused.value.line == 3


@pytest.mark.promise("project:values")
def test_values_at_the_limits_are_decoded() -> None:
    deep = "[" * 100 + "]" * 100
    flat = json.dumps([{"[": [[], {}]}] * 200)
    pair = r'"\ud83d\ude00"'
    for text in (deep, flat, pair, "9" * 250, "1.7e308", "-0", "\ufeff[]", '  {"a": null}\r\n'):
        assert decode_json(text) == json.loads(text.removeprefix("\ufeff"))
    assert decode_json('{"a": 1, "a": 2}') == {"a": 2}


def numbers(value: object) -> Iterator[float]:
    """Yield all numbers in a value, as floats."""
    if is_object(value):
        for inner in value.values():
            yield from numbers(inner)
    elif is_list(value):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, int | float):
        yield float(value)


PIECES = st.sampled_from(
    [
        *'[]{},:"',
        "\\",
        r"\ud83d",
        r"\ude00",
        "null",
        "NaN",
        "Infinity",
        '"a":',
        "1e308",
        "1e309",
        "\0",
        "\ufeff",
        "é",
    ]
)
TEXTS = st.one_of(
    st.lists(PIECES | st.integers(1, 400).map(lambda count: "7" * count), max_size=12).map("".join),
    st.integers(1, 400).map(lambda depth: "[" * depth + "1" + "]" * depth),
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
    ).map(json.dumps),
)


@pytest.mark.promise("project:values")
@given(TEXTS)
def test_what_is_decoded_can_be_printed_encoded_and_compared(text: str) -> None:
    try:
        value = decode_json(text)
    except JsonError as error:
        assert "\n" not in str(error) and 0 < len(str(error)) < 200
    else:
        assert msgspec.json.decode(msgspec.json.encode(value)) == json.loads(str(json.dumps(value))) == value
        assert str(value)
        assert all(number - number == 0 for number in numbers(value))


@pytest.mark.promise("project:values")
@given(TEXTS | st.binary(max_size=50))
def test_each_decoder_fails_only_with_errors_that_have_a_line(text: str | bytes) -> None:
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    for decode in (json.loads, msgspec.json.decode, msgspec.msgpack.decode):
        try:
            decode(data)
        except DECODE_ERRORS as error:
            assert "\n" not in decode_reason(error) and decode_reason(error)
