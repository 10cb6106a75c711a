"""Splitting texts into terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.rag._terms import prose_analyzer, split_terms

ODD = (
    "",
    " a ",
    "It\u2019s an e-mail: x\u00b2 + \u00bd, snake_case; na\u00efve caf\u00e9s.",
    "\u6771\u4eac\u5927\u5b66\u3067\u3001\u97d3\uad6d\uc5b4 \u0e40\u0e0a\u0e35\u0e22\u0e07\u0e43\u0e2b\u0e21\u0e48 \u0915\u0930\u094d\u092e",
    "\U0001f600\U0001f3fdsmile\U0001f600 \U0001f1e9\U0001f1ea \u24b6\u2460 \U0001d4b3y \U0001f170",
    "e\u0301 \u0345 \u00df\ufb01 \u0130stanbul \u01c5 \u2167",
    "a" * 79 + " " + "a" * 80 + " " + "a" * 81 + " " + "\u00e9" * 40 + " " + "\u00e9" * 39 + " end",
    "line\none\r\ntwo\x00three\u00a0four\u2028five\ttabs",
)


def cut_by_the_analyzer(text: str) -> list[tuple[str, int, int]]:
    tokens = prose_analyzer().pre_tokenize(text).tokens
    return [(token.text, token.char_offset_from, token.char_offset_to) for token in tokens]


def cut_by_us(text: str) -> list[tuple[str, int, int]]:
    terms, ends = split_terms(text)
    starts = [0, *(end + 1 for end in ends)]
    return [entry for entry in zip(terms, starts, ends, strict=False) if entry[0]]


@pytest.mark.promise("rag:search")
@pytest.mark.parametrize("text", ODD)
def test_odd_texts_are_cut_as_they_are_for_the_index(text: str) -> None:
    assert cut_by_us(text) == cut_by_the_analyzer(text)


@pytest.mark.promise("rag:search")
@given(st.text(max_size=300) | st.lists(st.sampled_from(ODD) | st.text(max_size=9)).map("".join))
def test_every_text_is_cut_as_it_is_for_the_index(text: str) -> None:
    assert cut_by_us(text) == cut_by_the_analyzer(text)


def test_every_character_is_in_a_word_or_between_words_as_for_the_index() -> None:
    for first in range(0, 0x20000, 0x1000):
        characters = (chr(code) for code in range(first, first + 0x1000) if not 0xD800 <= code < 0xE000)
        text = " ".join(characters)
        assert cut_by_us(text) == cut_by_the_analyzer(text)
