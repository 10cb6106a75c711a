from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.facts import ExtractedFact, Fact, ValueKind, chunks_of, locate
from tests.agentflow.facts._observations import observed, reported

TEXTS = st.one_of(
    st.text(max_size=400),
    st.lists(
        st.sampled_from(["A b.", " ", "\n", "\n\n", "x" * 30, "a | b\n", "a,b\n", "。"]), max_size=80
    ).map("".join),
)


@pytest.mark.promise("facts:chunks:cover")
@given(TEXTS, st.integers(1, 60), st.integers(0, 30))
def test_chunks_cover_a_text_exactly(text: str, size: int, overlap: int) -> None:
    chunks = chunks_of(text, size, overlap)
    assert [text[one.start : one.end] for one in chunks] == [one.text for one in chunks]
    assert all(0 < len(one.text) <= max(size, 4) for one in chunks)
    if not text:
        assert chunks == ()
        return
    assert (chunks[0].start, chunks[-1].end) == (0, len(text))
    for before, after in pairwise(chunks):
        assert before.start < after.start <= before.end < after.end
        assert before.end - after.start <= overlap
    assert all(text[one.header_start :].startswith(one.header) for one in chunks)


@pytest.mark.promise("facts:chunks:cover")
def test_a_fact_at_character_90_000_is_in_a_chunk_and_located() -> None:
    filler = "Nothing happened in the harbour on that day, as usual. " * 2_000
    text = f"{filler[:90_000]}\n\nThe keeper of Brenn Light was Ada Holm.\n\n{filler[:10_000]}"
    node = observed(text)
    fact = reported("Brenn Light | keeper | e Ada Holm | keeper of Brenn Light was Ada Holm")
    found = [located for chunk in chunks_of(text) if isinstance(located := locate(fact, chunk, node), Fact)]
    assert found
    (span,) = found[0].spans
    assert span.start > 90_000
    assert text[span.start : span.end] == "keeper of Brenn Light was Ada Holm"
    assert text[span.value_start : span.value_end] == "Ada Holm"


@pytest.mark.promise("facts:chunks:boundaries")
def test_chunks_end_at_paragraphs_lines_sentences_or_words() -> None:
    for separator in ("\n\n", "\n", ". ", " "):
        text = separator.join(["word word"] * 200)
        chunks = chunks_of(text, 100, 0)
        assert all(one.text.endswith(separator) for one in chunks[:-1]), separator


@pytest.mark.promise("facts:chunks:boundaries")
def test_a_chunk_within_a_table_shows_its_header_line() -> None:
    rows = "".join(f"Tower {number} | {number} | 1{number:03d}\n" for number in range(400))
    text = f"Some prose.\n\nTower | Height (m) | Built\n{rows}\nMore prose."
    node = observed(text)
    first, *others = chunks_of(text, 2_000, 100)
    assert not first.header
    assert all(one.header == "Tower | Height (m) | Built" for one in others[:-1])
    assert text[others[0].header_start :].startswith(others[0].header)
    row = ExtractedFact("Tower 390", "year of construction", "1390", ValueKind.DATE, "Tower 390 | 390 | 1390")
    fact = locate(row, others[-1], node)
    assert isinstance(fact, Fact)
    assert text[fact.spans[0].start :].startswith("Tower 390 | 390 | 1390")


def test_text_without_any_boundary_is_cut_all_the_same() -> None:
    chunks = chunks_of("x" * 100_000)
    assert len(chunks) < 12
    assert "".join(one.text[: 12_000 - 600] for one in chunks[:-1]).startswith("x" * 50_000)
