"""Snippets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.rag._terms import MAX_SNIPPET, snippet_of, terms_of

FILLER = "Nothing of any interest is said in this sentence here. "


def shown(text: str, query: str) -> str:
    snippet = snippet_of(text, terms_of(query).single)
    return text[snippet.start : snippet.end]


@pytest.mark.promise("rag:search")
def test_the_sentences_with_the_most_words_of_the_query_are_shown() -> None:
    text = FILLER * 20 + "Anna sails. The sloop is Anna's. " + FILLER * 20
    snippet = shown(text, "Anna's sloop")
    assert "Anna sails. The sloop is Anna's." in snippet
    assert snippet.startswith(("Nothing", "Anna"))
    assert snippet.endswith(".")
    assert len(snippet) <= MAX_SNIPPET


def test_a_short_text_is_shown_whole_and_without_blanks_around_it() -> None:
    assert shown("  One. Two.\n", "two") == "One. Two."


def test_closing_quotes_stay_with_their_sentence() -> None:
    text = "He said “go.” " + FILLER * 12
    assert shown(text, "go").startswith("He said “go.” Nothing")


def test_a_long_sentence_is_cut_between_words_around_the_match() -> None:
    text = "word " * 300 + "needle " + "word " * 300
    snippet = shown(text, "needle")
    assert "needle" in snippet
    assert len(snippet) <= MAX_SNIPPET
    assert set(snippet.split()) == {"word", "needle"}
    assert shown("x" * 2000, "x") == "x" * MAX_SNIPPET


def test_of_equal_places_the_first_is_shown() -> None:
    text = "Here is gold. " + FILLER * 20 + "Here is gold. "
    assert snippet_of(text, ["gold"]).start == 0


@given(st.text(alphabet="ab .!?\n”", max_size=3000), st.text(alphabet="ab ", max_size=20))
def test_a_snippet_and_its_highlights_lie_in_the_text(text: str, query: str) -> None:
    snippet = snippet_of(text, terms_of(query).single)
    assert 0 <= snippet.start <= snippet.end <= len(text)
    assert snippet.end - snippet.start <= MAX_SNIPPET
    assert snippet.highlights == sorted(snippet.highlights)
    assert all(snippet.start <= start < end <= snippet.end for start, end in snippet.highlights)
    assert bool(text.strip()) == (snippet.start < snippet.end)
