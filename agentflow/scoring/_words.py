"""Metrics on words: exact match, F1, containing, likeness."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rapidfuzz.distance import Levenshtein

__all__ = ["contains_answer", "exact_match", "f1_score", "likeness", "normal"]

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN: Final = re.compile(rf"\d+(?:[.,]\d+)*|[{_CJK}]|[^\W\d_{_CJK}]+")
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def normal(text: str) -> str:
    """The text as SQuAD compares it: lower case, without punctuation and articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction is one of the references, as SQuAD normalises them."""
    said = normal(prediction)
    return float(any(said == normal(reference) for reference in references))


def f1_score(prediction: str, references: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, as SQuAD counts them; the best over all references."""
    said = normal(prediction).split()
    return max((_f1(said, normal(reference).split()) for reference in references), default=0.0)


def contains_answer(prediction: str, references: Sequence[str]) -> float:
    """1 if all words of a reference stand in the prediction, next to each other. A reference that says nothing does not."""
    said = _tokens(prediction)
    return float(any(_stands(_without_article(_tokens(reference)), said) for reference in references))


def likeness(prediction: str, references: Sequence[str]) -> float:
    """How alike two texts are by the fewest edits that make one the other, as a share of the longer one."""
    said = normal(prediction)
    return max(
        (Levenshtein.normalized_similarity(said, normal(reference)) for reference in references), default=0.0
    )


def _f1(said: list[str], right: list[str]) -> float:
    if not said or not right:
        return float(said == right)
    common = sum((Counter(said) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(right)
    return 2 * precision * recall / (precision + recall)


def _tokens(text: str) -> list[str]:
    """Words and whole numbers: 5 does not stand in 5.2, nor art in party."""
    return _TOKEN.findall(_THOUSANDS.sub("", unicodedata.normalize("NFKC", text).casefold()))


def _without_article(words: list[str]) -> list[str]:
    return words[1:] if len(words) > 1 and words[0] in {"a", "an", "the"} else words


def _stands(words: list[str], text: list[str]) -> bool:
    count = len(words)
    return bool(words) and any(text[at : at + count] == words for at in range(len(text) - count + 1))
