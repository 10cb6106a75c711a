"""Metrics of document benchmarks: ANLS, and accuracy and F1 of MMLongBench-Doc."""

import re
from collections.abc import Sequence
from math import isclose
from typing import Final, Literal

from rapidfuzz.distance import Levenshtein

AnswerFormat = Literal["Str", "Int", "Float", "List", "None"]
"""Type of a document question's answer."""

_UNIT: Final = re.compile(r"\s*(?:miles?|million)$")
_EXACT: Final = re.compile(
    r"https?://|\.py\b|\.ipynb\b|^page\b|\d+[-\s]?\d+[-\s]?\d{4}$|\b[ap]\.?m\.?(?!\w)|^\d{4}-\d{2}(?:-\d{2})?$|\S@\S+\.\w"
)
_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,100}(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,2})?")
_ELEMENT: Final = re.compile(r"""\s*'([^']*)'\s*(?=,|$)|\s*"([^"]*)"\s*(?=,|$)|([^,]+)""")
_UNANSWERABLE: Final = re.compile(
    r"\b(?:not answerable|unanswerable|(?:can ?not|can't|could not) be (?:answered|determined)|fail to answer)\b",
    re.IGNORECASE,
)


def anls(prediction: str, references: Sequence[str], *, threshold: float = 0.5) -> float:
    """Return the normalised Levenshtein similarity, 0 up to the threshold; the best over references.

    :param threshold: largest similarity that still counts as wrong.
    """
    said = _folded(prediction)
    alike = [Levenshtein.normalized_similarity(said, _folded(reference)) for reference in references]
    return max((value for value in alike if value > threshold), default=0.0)


def document_score(
    prediction: str, references: Sequence[str], *, answer_format: AnswerFormat | None = None
) -> float:
    """Compare by the rules of MMLongBench-Doc: integers equal, floats nearly equal, strings by ANLS.

    :param answer_format: type of the answer; `None` infers it from the reference.
    """
    return max(
        (_beside(prediction, each, answer_format or _format_of(each)) for each in references), default=0.0
    )


def is_unanswerable(answer: str) -> bool:
    """Return whether it says that the document does not answer the question."""
    return bool(_UNANSWERABLE.search(answer))


def _beside(prediction: str, reference: str, form: AnswerFormat) -> float:
    if is_unanswerable(reference) or is_unanswerable(prediction):
        return float(is_unanswerable(reference) and is_unanswerable(prediction))
    match form:
        case "Int":
            mine, right = _number(prediction), _number(reference)
            return float(mine is not None and right is not None and int(mine) == int(right))
        case "Float":
            return float(_nearly(_number(prediction), _number(reference)))
        case "List":
            return _lists(_listed(prediction), _listed(reference))
        case "Str" | "None":
            return _texts(_clean(prediction), _clean(reference))


def _format_of(reference: str) -> AnswerFormat:
    if reference.strip().startswith("["):
        return "List"
    if _number(reference) is None:
        return "Str"
    return "Int" if re.fullmatch(r"\s*[-+]?\d+\s*", reference) else "Float"


def _texts(said: str, right: str) -> float:
    return float(said == right) if _EXACT.search(right) else anls(said, [right])


def _lists(said: list[str], right: list[str]) -> float:
    if len(said) != len(right) or not right:
        return 0.0
    pairs = list(zip(sorted(map(_clean, said)), sorted(map(_clean, right)), strict=True))
    first = pairs[0][1]
    if _number(first) is not None or _EXACT.search(first):
        return float(all(mine == theirs for mine, theirs in pairs))
    return min(anls(mine, [theirs]) for mine, theirs in pairs)


def _listed(text: str) -> list[str]:
    """Return the elements of a list written in Python, JSON or prose."""
    if text.strip().startswith("["):
        found = _ELEMENT.findall(text.strip()[1:].removesuffix("]"))
        return [element.strip() for element in ("".join(each) for each in found) if element.strip()]
    parts = re.split(r",\s+|;\s*|\n|\s+and\s+", text.strip().strip("[]"))
    return [part.strip() for part in parts if part.strip()]


def _number(text: str) -> float | None:
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", _clean(text))
    return float(plain) if _NUMBER.fullmatch(plain) else None


def _nearly(said: float | None, right: float | None) -> bool:
    """Return whether the numbers agree within 1 %, directly or as percentages."""
    if said is None or right is None:
        return False
    return any(isclose(said, each, rel_tol=0.01) for each in (right / 100, right, right * 100))


def _clean(text: str) -> str:
    folded = _UNIT.sub("", _folded(text))
    if folded.endswith(")") and "(" in folded:
        folded = folded[: folded.rindex("(")].rstrip() or folded
    return folded.strip("'\" ").strip().lstrip("$").rstrip("%").strip()


def _folded(text: str) -> str:
    return " ".join(text.lower().split())
