"""Snippets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.rag._terms import MAX_SNIPPET, snippet_of, terms_of

FILLER = "Nothing of any interest is said in this sentence here. "


def shown(text: str, query: str) -> str:
    found = snippet_of(text, terms_of(query).single)
    return text[found.start : found.end]


@pytest.mark.promise("rag:search")
def test_the_sentences_with_the_most_words_of_the_query_are_shown() -> None:
    text = FILLER * 20 + "Anna sails. The sloop is Anna's. " + FILLER * 20
    found = shown(text, "Anna's sloop")
    assert "Anna sails. The sloop is Anna's." in found
    assert found.startswith(("Nothing", "Anna"))
    assert found.endswith(".")
    assert len(found) <= MAX_SNIPPET


def test_a_short_text_is_shown_whole_and_without_blanks_around_it() -> None:
    assert shown("  One. Two.\n", "two") == "One. Two."


def test_closing_quotes_stay_with_their_sentence() -> None:
    text = "He said “go.” " + FILLER * 12
    assert shown(text, "go").startswith("He said “go.” Nothing")


def test_a_long_sentence_is_cut_between_words_around_the_match() -> None:
    text = "word " * 300 + "needle " + "word " * 300
    found = shown(text, "needle")
    assert "needle" in found
    assert len(found) <= MAX_SNIPPET
    assert set(found.split()) == {"word", "needle"}
    assert shown("x" * 2000, "x") == "x" * MAX_SNIPPET


def test_of_equal_places_the_first_is_shown() -> None:
    text = "Here is gold. " + FILLER * 20 + "Here is gold. "
    assert snippet_of(text, ["gold"]).start == 0


@given(st.text(alphabet="ab .!?\n”", max_size=3000), st.text(alphabet="ab ", max_size=20))
def test_a_snippet_and_its_highlights_lie_in_the_text(text: str, query: str) -> None:
    found = snippet_of(text, terms_of(query).single)
    assert 0 <= found.start <= found.end <= len(text)
    assert found.end - found.start <= MAX_SNIPPET
    assert found.highlights == sorted(found.highlights)
    assert all(found.start <= start < end <= found.end for start, end in found.highlights)
    assert bool(text.strip()) == (found.start < found.end)
