"""Rules that compare short texts: by their words, by the rules of benchmarks, or by their numbers."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from math import inf, isclose
from typing import Final, Literal

from rapidfuzz.distance import Levenshtein

from agentflow.text import Quantity, normalise_squad, quantities, whole_tokens
from agentflow.values import ValueKind, answer_agrees, infer_value, parse_value, texts_agree

AnswerFormat = Literal["Str", "Int", "Float", "List", "None"]
"""Type of a document question's answer."""
_UNIT: Final = re.compile(r"\s*(?:miles?|million)$")
_EXACT: Final = re.compile(
    r"https?://|\.py\b|\.ipynb\b|^page\b|\d+[-\s]?\d+[-\s]?\d{4}$|\b[ap]\.?m\.?(?!\w)|^\d{4}-\d{2}(?:-\d{2})?$|\S@\S+\.\w"
)
_DOCUMENT_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,100}(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,2})?")
_NUMBER_MARKS: Final = str.maketrans("", "", "$%,")
_SEPARATORS: Final = re.compile(r"[,;]")
_YES_NO: Final = frozenset({"yes", "no", "noanswer"})
_ELEMENT: Final = re.compile(r"""\s*'([^']*)'\s*(?=,|$)|\s*"([^"]*)"\s*(?=,|$)|([^,]+)""")
_UNANSWERABLE: Final = re.compile(
    r"\b(?:not answerable|unanswerable|(?:can ?not|can't|could not) be (?:answered|determined)|fail to answer)\b",
    re.IGNORECASE,
)
_MAX_QUANTITIES: Final = 64
"""Number of quantities that are read from one text."""
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the prediction equals a reference after SQuAD's normalisation."""
    answer = normalise_squad(prediction)
    return float(any(answer == normalise_squad(reference) for reference in references))


def f1_score(prediction: str, references: Sequence[str]) -> float:
    """Return the F1 of words as SQuAD counts them, the best over references.

    `yes`, `no` and `noanswer` are right or wrong as a whole, as in HotpotQA.
    """
    answer = normalise_squad(prediction)
    return max((_f1(answer, normalise_squad(reference)) for reference in references), default=0.0)


def contains_answer(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the prediction contains the words of a reference in sequence. An empty reference is never contained."""
    answer = whole_tokens(prediction)
    return float(any(_stands(_without_article(whole_tokens(reference)), answer) for reference in references))


def likeness(prediction: str, references: Sequence[str]) -> float:
    """Return the normalised Levenshtein similarity, the best over references."""
    answer = normalise_squad(prediction)
    return max(
        (Levenshtein.normalized_similarity(answer, normalise_squad(reference)) for reference in references),
        default=0.0,
    )


def _f1(answer: str, right: str) -> float:
    if answer == right:
        return 1.0
    if _YES_NO & {answer, right}:
        return 0.0
    mine, theirs = answer.split(), right.split()
    common = sum((Counter(mine) & Counter(theirs)).values())
    if not common:
        return 0.0
    precision, recall = common / len(mine), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def _without_article(words: list[str]) -> list[str]:
    return words[1:] if len(words) > 1 and words[0] in {"a", "an", "the"} else words


def _stands(words: list[str], text: list[str]) -> bool:
    count = len(words)
    return bool(words) and any(text[at : at + count] == words for at in range(len(text) - count + 1))


def gaia_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the prediction equals a reference by the rules of GAIA's official scorer.

    The reference decides: a number is compared as a number, a text with a comma or semicolon as a list, anything else as
    words. So `1000` equals a reference `1000` as `1,000`, but a reference `1,000` is a list of two elements.
    """
    return float(any(_same(prediction, reference) for reference in references))


def _same(answer: str, right: str) -> bool:
    if (number := _float(right)) is not None:
        return _number(answer) == number
    if not _SEPARATORS.search(right):
        return _words(answer) == _words(right)
    mine, parts = _SEPARATORS.split(answer), _SEPARATORS.split(right)
    return len(mine) == len(parts) and all(map(_element, mine, parts))


def _element(answer: str, right: str) -> bool:
    if (number := _float(right)) is not None:
        return _number(answer) == number
    # Elements keep their punctuation.
    return _spaceless(answer) == _spaceless(right)


def _number(text: str) -> float:
    """Return the number of an answer without `$`, `%` and commas; infinity if it is none."""
    plain = _float(text.translate(_NUMBER_MARKS))
    return inf if plain is None else plain


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _spaceless(text: str) -> str:
    return re.sub(r"\s", "", text).lower()


def _words(text: str) -> str:
    return _spaceless(text).translate(_PUNCTUATION)


def numeric_match(
    prediction: str, references: Sequence[str], *, tolerance: float = 0.01, question: str = ""
) -> float:
    """Return 1 if the prediction has every number of a reference, in order, and no other number that could be the answer.

    Other numbers are ignored if the question gives them, if they measure something else, or if they are years and no
    year is asked for.

    :param tolerance: relative tolerance of a number; years must be equal.
    :param question: the question. If it asks for a percentage, a plain number counts as one.
    """
    percent = bool(re.search(r"%|percent", question, re.IGNORECASE))
    in_question = quantities(question, limit=_MAX_QUANTITIES)
    predicted = quantities(_result(prediction), limit=_MAX_QUANTITIES)
    expected = (quantities(reference, limit=_MAX_QUANTITIES) for reference in references)
    return float(
        any(_matches(predicted, wanted, in_question, tolerance, percent=percent) for wanted in expected)
    )


def _result(text: str) -> str:
    """Return the part after the last `=`, if it has a number."""
    _, _, result = text.rpartition("=")
    return result if any(map(str.isdigit, result)) else text


def _matches(
    predicted: list[Quantity],
    expected: list[Quantity],
    question_quantities: list[Quantity],
    tolerance: float,
    *,
    percent: bool,
) -> bool:
    """Return whether `expected` is a subsequence of `predicted` and the rest is ignorable."""
    if not expected:
        return False
    # Numbers of `expected` that may have been matched so far.
    matched = {0}
    for quantity in predicted:
        further = {
            done + 1
            for done in matched
            if done < len(expected) and _counts_as(quantity, expected[done], tolerance, percent=percent)
        }
        matched = further | (matched if _ignorable(quantity, expected, question_quantities) else set[int]())
        if not matched:
            return False
    return len(expected) in matched


def _ignorable(quantity: Quantity, expected: list[Quantity], question_quantities: list[Quantity]) -> bool:
    if any(quantity.value == other.value for other in question_quantities):
        return True
    if quantity.may_be_year and not any(other.may_be_year and not other.kind for other in expected):
        return True
    return all(other.known and quantity.kind and quantity.kind != other.kind for other in expected)


def _counts_as(predicted: Quantity, expected: Quantity, tolerance: float, *, percent: bool) -> bool:
    if predicted.known and expected.known and predicted.kind != expected.kind:
        return False
    if predicted.may_be_year and expected.may_be_year and not expected.kind:
        return predicted.value == expected.value
    if predicted.known and expected.known and predicted.kind == expected.kind:
        pairs = [(predicted.value * predicted.factor, expected.value * expected.factor)]
    elif "percent" in {predicted.kind, expected.kind}:
        # A fraction may be written as a percentage, and a requested percentage without its sign.
        pairs = [(predicted.value * predicted.factor, expected.value * expected.factor)]
        pairs += [(predicted.value, expected.value)] * percent
    else:
        # A missing unit is the other number's.
        pairs = [(predicted.value, expected.value)]
    nothing = 1e-6 if tolerance else 0.0
    return any(isclose(mine, theirs, rel_tol=tolerance, abs_tol=nothing) for mine, theirs in pairs)


def typed_match(
    prediction: str, references: Sequence[str], *, question: str = "", answer_kind: ValueKind | None = None
) -> float:
    """Return 1 if the prediction states the value of a reference and no other one, by its type.

    :param question: the question. Its names and numbers are no answers.
    :param answer_kind: type of the answer; `None` infers it from the reference.
    """
    return float(any(_states(prediction, reference, question, answer_kind) for reference in references))


def _states(prediction: str, reference: str, question: str, kind: ValueKind | None) -> bool:
    value = parse_value(reference, kind) if kind else None
    value = value or infer_value(reference)
    return answer_agrees(value, prediction, question=question) or (
        kind is None and texts_agree(reference, prediction)
    )


def anls(prediction: str, references: Sequence[str], *, threshold: float = 0.5) -> float:
    """Return the normalised Levenshtein similarity, 0 up to the threshold; the best over references.

    :param threshold: largest similarity that still counts as wrong.
    """
    answer = _folded(prediction)
    alike = [Levenshtein.normalized_similarity(answer, _folded(reference)) for reference in references]
    return max((value for value in alike if value > threshold), default=0.0)


def document_score(
    prediction: str, references: Sequence[str], *, answer_format: AnswerFormat | None = None
) -> float:
    """Compare by the rules of MMLongBench-Doc: integers equal, floats nearly equal, strings by ANLS.

    :param answer_format: type of the answer; `None` infers it from the reference.
    """
    return max(
        (_beside(prediction, reference, answer_format or _format_of(reference)) for reference in references),
        default=0.0,
    )


def is_unanswerable(answer: str) -> bool:
    """Return whether it says that the document does not answer the question."""
    return bool(_UNANSWERABLE.search(answer))


def _beside(prediction: str, reference: str, form: AnswerFormat) -> float:
    if is_unanswerable(reference) or is_unanswerable(prediction):
        return float(is_unanswerable(reference) and is_unanswerable(prediction))
    match form:
        case "Int":
            mine, right = _document_number(prediction), _document_number(reference)
            return float(mine is not None and right is not None and int(mine) == int(right))
        case "Float":
            return float(_nearly(_document_number(prediction), _document_number(reference)))
        case "List":
            return _lists(_listed(prediction), _listed(reference))
        case "Str" | "None":
            answer, right = _clean(prediction), _clean(reference)
            return float(answer == right) if _EXACT.search(right) else anls(answer, [right])


def _format_of(reference: str) -> AnswerFormat:
    if reference.strip().startswith("["):
        return "List"
    if _document_number(reference) is None:
        return "Str"
    return "Int" if re.fullmatch(r"\s*[-+]?\d+\s*", reference) else "Float"


def _lists(answer: list[str], right: list[str]) -> float:
    if len(answer) != len(right) or not right:
        return 0.0
    pairs = list(zip(sorted(map(_clean, answer)), sorted(map(_clean, right)), strict=True))
    first = pairs[0][1]
    if _document_number(first) is not None or _EXACT.search(first):
        return float(all(mine == theirs for mine, theirs in pairs))
    return min(anls(mine, [theirs]) for mine, theirs in pairs)


def _listed(text: str) -> list[str]:
    """Return the elements of a list written in Python, JSON or prose."""
    if text.strip().startswith("["):
        elements = _ELEMENT.findall(text.strip()[1:].removesuffix("]"))
        return [element.strip() for element in ("".join(groups) for groups in elements) if element.strip()]
    parts = re.split(r",\s+|;\s*|\n|\s+and\s+", text.strip().strip("[]"))
    return [part.strip() for part in parts if part.strip()]


def _document_number(text: str) -> float | None:
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", _clean(text))
    return float(plain) if _DOCUMENT_NUMBER.fullmatch(plain) else None


def _nearly(answer: float | None, right: float | None) -> bool:
    """Return whether the numbers agree within 1 %, directly or as percentages."""
    if answer is None or right is None:
        return False
    return any(isclose(answer, accepted, rel_tol=0.01) for accepted in (right / 100, right, right * 100))


def _clean(text: str) -> str:
    folded = _UNIT.sub("", _folded(text))
    if folded.endswith(")") and "(" in folded:
        folded = folded[: folded.rindex("(")].rstrip() or folded
    return folded.strip("'\" ").strip().lstrip("$").rstrip("%").strip()


def _folded(text: str) -> str:
    return " ".join(text.lower().split())
