"""Metrics on words: exact match, F1, containment, edit similarity."""

from collections import Counter
from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from agentflow.text import normalise_squad, whole_tokens


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the prediction equals a reference after SQuAD's normalisation."""
    said = normalise_squad(prediction)
    return float(any(said == normalise_squad(reference) for reference in references))


def f1_score(prediction: str, references: Sequence[str]) -> float:
    """Return the F1 of words as SQuAD counts them, the best over references."""
    said = normalise_squad(prediction).split()
    return max((_f1(said, normalise_squad(reference).split()) for reference in references), default=0.0)


def contains_answer(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the prediction contains the words of a reference in sequence. An empty reference is never contained."""
    said = whole_tokens(prediction)
    return float(any(_stands(_without_article(whole_tokens(reference)), said) for reference in references))


def likeness(prediction: str, references: Sequence[str]) -> float:
    """Return the normalised Levenshtein similarity, the best over references."""
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
