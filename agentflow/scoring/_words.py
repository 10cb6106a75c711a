"""Metrics on words: exact match, F1, containing, likeness."""

from collections import Counter
from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from agentflow.text import normalise_squad, whole_tokens

__all__ = ["contains_answer", "exact_match", "f1_score", "likeness"]


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction is one of the references, as SQuAD normalises them."""
    said = normalise_squad(prediction)
    return float(any(said == normalise_squad(reference) for reference in references))


def f1_score(prediction: str, references: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, as SQuAD counts them; the best over all references."""
    said = normalise_squad(prediction).split()
    return max((_f1(said, normalise_squad(reference).split()) for reference in references), default=0.0)


def contains_answer(prediction: str, references: Sequence[str]) -> float:
    """1 if all words of a reference stand in the prediction, next to each other. A reference that says nothing does not."""
    said = whole_tokens(prediction)
    return float(any(_stands(_without_article(whole_tokens(reference)), said) for reference in references))


def likeness(prediction: str, references: Sequence[str]) -> float:
    """How alike two texts are by the fewest edits that make one the other, as a share of the longer one."""
    said = normalise_squad(prediction)
    return max(
        (Levenshtein.normalized_similarity(said, normalise_squad(reference)) for reference in references),
        default=0.0,
    )


def _f1(said: list[str], right: list[str]) -> float:
    if not said or not right:
        return float(said == right)
    common = sum((Counter(said) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(right)
    return 2 * precision * recall / (precision + recall)


def _without_article(words: list[str]) -> list[str]:
    return words[1:] if len(words) > 1 and words[0] in {"a", "an", "the"} else words


def _stands(words: list[str], text: list[str]) -> bool:
    count = len(words)
    return bool(words) and any(text[at : at + count] == words for at in range(len(text) - count + 1))
