"""Analysis of plain text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.offline._language import bounded, names, passages, terms


@pytest.mark.promise("offline:sentences")
@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It cost 3.5 crowns. Dr. Holt paid.", ["It cost 3.5 crowns.", "Dr. Holt paid."]),
        ("J. R. Holt came, e.g. by sea. He left!", ["J. R. Holt came, e.g. by sea.", "He left!"]),
        ("“Come here.” Nobody came.", ["“Come here.”", "Nobody came."]),
        ("One line\nAnother line", ["One line", "Another line"]),
        ("灯塔建于1621年。它很高。", ["灯塔建于1621年。", "它很高。"]),
    ],
)
def test_sentences_are_split_at_their_ends(text: str, sentences: list[str]) -> None:
    assert [sentence for passage in passages(text) for sentence in passage.sentences] == sentences


@pytest.mark.promise("offline:sentences")
@given(st.text(alphabet='Aa.!?”" \n(1)。é', max_size=120))
def test_every_sentence_is_verbatim_in_the_text(text: str) -> None:
    for passage in passages(text):
        assert all(sentence in text for sentence in passage.sentences)


@pytest.mark.promise("offline:links")
def test_headings_start_passages_and_give_ids() -> None:
    text = "[1] Grey Petrel (grey-petrel)\nA ship.\n\n[2] Pilots' Guild (docs/guild.md)\nA guild."
    assert [passage.id for passage in passages(text)] == ["grey-petrel", "docs/guild.md"]
    assert [passage.topic for passage in passages(text)] == ["Grey Petrel", "Pilots' Guild"]


@pytest.mark.promise("offline:links")
def test_names_are_capitalised_phrases_not_sentence_starts() -> None:
    text = "The captain sailed the Grey Petrel to Alba. Firewood was dear. The Race of the Five Capes began in Ärla."
    assert names(text) == ("Grey Petrel", "Alba", "Race of the Five Capes", "Ärla")
    assert names("Because the Pilots' Guild and the Great Flood of 1712 met.") == (
        "Pilots' Guild",
        "Great Flood of 1712",
    )


def test_content_words_are_kept_once_in_order_in_any_script() -> None:
    assert terms("The bells of Alba, the BELLS; 1,204 of them.") == ("bells", "alba", "1,204")
    assert terms("灯塔 高") == ("灯塔",)


@pytest.mark.parametrize(
    ("needle", "text", "held"),
    [
        ("5", "50", False),
        ("5", "5 km", True),
        ("no", "note", False),
        ("No", "say no", True),
        ("a.b", "axb", False),
    ],
)
def test_words_are_matched_as_whole_words(needle: str, text: str, held: bool) -> None:
    assert bounded(needle, text) is held
