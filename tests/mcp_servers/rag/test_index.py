"""Search without scoring all documents."""

import itertools
import random
from pathlib import Path

import pytest

from mcp_servers.rag._index import WordIndex
from mcp_servers.rag._index_update import index_in_memory
from mcp_servers.rag._terms import Terms
from tests.mcp_servers.rag._library import write_lines

WORDS = [f"{onset}{vowel}k" for onset, vowel in itertools.product("bdfgklmnprst", "aeiou")]
WEIGHTS = [1 / (rank + 2) for rank in range(len(WORDS))]


def documents(folder: Path, count: int) -> WordIndex:
    """Documents of words of which some are frequent and most are rare."""
    chance = random.Random(3)
    lines = (
        {
            "id": f"d{number:04}",
            "title": " ".join(chance.choices(WORDS, WEIGHTS, k=2)),
            "text": " ".join(chance.choices(WORDS, WEIGHTS, k=chance.randint(3, 30))),
        }
        for number in range(count)
    )
    return index_in_memory(write_lines(folder / "words.jsonl", lines))


def ranking(index: WordIndex, terms: Terms, count: int) -> list[tuple[str, float]]:
    return [(match.document.id, match.score) for match in index.search(terms, count)]


@pytest.mark.promise("rag:best")
def test_no_unscored_document_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = documents(tmp_path, 800)
    monkeypatch.setattr("mcp_servers.rag._index._SCORED_AT_LEAST", 1)
    choosing = documents(tmp_path, 800)
    chance = random.Random(4)
    for _ in range(300):
        single = tuple(dict.fromkeys(chance.choices(WORDS, k=chance.randint(1, 6))))
        pairs = tuple(itertools.pairwise(single))
        count = chance.choice((1, 5, 20))
        expected = ranking(everything, Terms(single, pairs), count)
        actual = ranking(choosing, Terms(single, pairs), count)
        assert [score for _, score in actual] == pytest.approx([score for _, score in expected], abs=2e-4)
        least = expected[-1][1] if expected else 0.0
        clear = {name for name, score in expected if score > least + 1e-3}
        assert clear <= {name for name, _ in actual}


@pytest.mark.promise("rag:best")
def test_a_pair_of_words_that_most_documents_have_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"id": f"d{n}", "text": f"old and new word{n}"} for n in range(40)]
    lines += [{"id": "apart", "text": "new and old word"}, {"id": "near", "text": "old new and word"}]
    source = write_lines(tmp_path / "a.jsonl", lines)
    terms = Terms(("old", "new", "word"), (("old", "new"),))
    (near,) = index_in_memory(source).search(terms, 1)
    assert near.document.id == "near"
    monkeypatch.setattr("mcp_servers.rag._index._COMMON", 3)
    apart, near = index_in_memory(source).search(terms, 2)
    assert (apart.document.id, near.document.id) == ("apart", "near")
    assert apart.score == near.score
