"""Metrics on words."""

import re
import string
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.scoring import score


def squad_normalised(text: str) -> str:
    """As SQuAD's evaluation describes it: lower, no punctuation, no articles, single spaces."""
    kept = "".join(each for each in text.lower() if each not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def squad_f1(prediction: str, reference: str) -> float:
    mine, right = squad_normalised(prediction).split(), squad_normalised(reference).split()
    if len(mine) == 0 or len(right) == 0:
        return float(mine == right)
    same = sum(min(count, Counter(right)[word]) for word, count in Counter(mine).items())
    if same == 0:
        return 0.0
    precision, recall = same / len(mine), same / len(right)
    return 2 * precision * recall / (precision + recall)


WORDS = str.maketrans({"1": " the ", "2": " cat ", "3": " an ", "4": " it's ", "5": " U.S. ", "6": " A "})
TEXTS = st.text(alphabet="123456aTc .,!-é—\u00a0", max_size=12).map(lambda text: text.translate(WORDS))


@pytest.mark.promise("scoring:squad")
@settings(max_examples=1000, deadline=None, derandomize=True)
@given(prediction=TEXTS, references=st.lists(TEXTS, min_size=1, max_size=2))
def test_exact_match_and_f1_are_those_of_squad(prediction: str, references: list[str]) -> None:
    same = [squad_normalised(prediction) == squad_normalised(each) for each in references]
    assert score("exact_match", prediction, references) == float(any(same))
    best = max(squad_f1(prediction, each) for each in references)
    assert score("f1_score", prediction, references) == pytest.approx(best, abs=1e-12)


@pytest.mark.promise("scoring:squad")
@pytest.mark.parametrize(
    ("metric", "prediction", "references", "expected"),
    [
        ("exact_match", "The Paris!", "paris", 1),
        ("exact_match", "in Paris", "Paris", 0),
        ("exact_match", "Lutetia", ["Paris", "Lutetia"], 1),
        ("exact_match", "Paris", [], 0),
        ("f1_score", "the cat sat", "cat sat down", 4 / 5),
        ("f1_score", "cat cat", "cat", 2 / 3),
        ("f1_score", "dog", ["cat", "a dog"], 1),
        ("f1_score", "dog", "cat", 0),
        ("f1_score", "dog", [], 0),
    ],
)
def test_words_are_scored_like_squad(
    metric: str, prediction: str, references: str | list[str], expected: float
) -> None:
    assert score(metric, prediction, references) == pytest.approx(expected)


@pytest.mark.promise("scoring:contains")
@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("It was in Paris, France.", "Paris", 1),
        ("It was in the New York of old", "New York", 1),
        ("York is new", "New York", 0),
        ("a party", "art", 0),
        ("5.2 of them", "5", 0),
        ("50 of them", "5", 0),
        ("the 1,500 men", "1500", 1),
        ("東京です", "東京", 1),
        ("anything", "", 0),
        ("", "Paris", 0),
        ("vitamin A", "A", 1),
    ],
)
def test_containment_compares_whole_words(prediction: str, reference: str, expected: float) -> None:
    assert score("contains_answer", prediction, reference) == expected


@pytest.mark.promise("scoring:similarity")
@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [("listen", "silent", 1 / 3), ("The colour", "color", 5 / 6), ("same", "Same.", 1), ("abc", "xyz", 0)],
)
def test_similarity_is_the_edit_distance(prediction: str, reference: str, expected: float) -> None:
    assert score("similarity", prediction, reference) == pytest.approx(expected)
