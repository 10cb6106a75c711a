"""Choice of the pairs that are written: duplicates and quotas, decided in seed order."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Final, NamedTuple, Protocol

from agentflow.synthesis._config import QuotaSettings
from agentflow.synthesis._seed_result import Pair
from agentflow.text import quantity_of, tokens
from agentflow.values import BoolValue, NumberValue, Value, normalise_name, show_value, values_agree

MIN_OF_KIND: Final = 5
"""Pairs of a kind that a file may have, however small it is."""
MIN_OF_ANSWER: Final = 2
"""Pairs with an answer that a file may have, however small it is."""
_HASHES: Final = 128
_BANDS: Final = 16
"""Few candidates: thousands of similar questions share most of their words."""
_MORE_BANDS: Final = 32
"""More candidates, for a low similarity threshold."""
_ALIKE: Final = 0.7


class Surplus(StrEnum):
    """Reason that an accepted pair is not in the file of pairs. The set is closed: reports count by it."""

    DUPLICATE = "duplicate"
    """An earlier question is nearly the same, or has the same answer from the same documents."""
    KIND = "kind"
    """There are enough pairs of its kind."""
    ANSWER = "answer"
    """There are enough pairs with its answer."""


class PairKey(NamedTuple):
    """Everything about a pair that decides about its place in the file."""

    id: str
    question: str
    answer: Value
    kind: str
    documents: frozenset[str]

    @classmethod
    def of(cls, pair: Pair) -> "PairKey":
        """Return the key of a pair."""
        documents = frozenset(document.id for document in pair.documents)
        return cls(pair.id, pair.question, pair.value, pair.kind, documents)


def surplus_of(pairs: Sequence[PairKey], asked: "QuestionIndex", quotas: QuotaSettings) -> dict[int, Surplus]:
    """Return the places of the pairs that are not written, with the reasons.

    Duplicates of earlier ones are removed first. Quotas are shares of the pairs that are left in the end; where too many have
    something in common, the earlier ones stay.

    :param asked: index of the questions asked before; those that stay are added.
    """
    reasons: dict[int, Surplus] = {}
    left: list[int] = []
    for place, pair in enumerate(pairs):
        if asked.before(pair.question, pair.answer, pair.documents) is not None:
            reasons[place] = Surplus.DUPLICATE
        else:
            asked.add(pair.question, pair.answer, pair.id, pair.documents)
            left.append(place)
    total = len(left)
    while True:
        over = _over_quotas([pairs[place] for place in left], quotas, total)
        if len(left) - len(over) >= total:
            break
        total = len(left) - len(over)
    return {**reasons, **{left[place]: reason for place, reason in over.items()}}


def _over_quotas(pairs: Sequence[PairKey], quotas: QuotaSettings, total: int) -> dict[int, Surplus]:
    """Return the places of the pairs that exceed a share of a total, with the reasons."""
    kinds, answers = Counter[str](), Counter[str]()
    of_kind = max(MIN_OF_KIND, int(quotas.kind * total))
    of_answer = max(MIN_OF_ANSWER, int(quotas.answer * total))
    # With three kinds, one of them always has more than a quarter.
    if quotas.kind * len({pair.kind for pair in pairs}) < 1:
        of_kind = len(pairs)
    over: dict[int, Surplus] = {}
    for place, pair in enumerate(pairs):
        answer = "" if isinstance(pair.answer, BoolValue) else normalise_name(show_value(pair.answer))
        if kinds[pair.kind] >= of_kind:
            over[place] = Surplus.KIND
        elif answer and answers[answer] >= of_answer:
            over[place] = Surplus.ANSWER
        else:
            kinds[pair.kind] += 1
            answers[answer] += 1
    return over


class _Sketch(Protocol):
    """MinHash sketch of a set of words."""

    def update(self, items: Iterable[str]) -> None: ...


class _Index(Protocol):
    """LSH index of sketches."""

    def insert(self, key: int, minhash: _Sketch) -> None: ...
    def query(self, minhash: _Sketch) -> list[int]: ...


class _Asked(NamedTuple):
    words: list[str]
    answer: Value
    id: str


class QuestionIndex:
    """Index of the accepted questions of a run, by their words, and by their answers and documents."""

    def __init__(self, similarity: float) -> None:
        """Start an empty index.

        :param similarity: similarity of words from which two questions with the same answer are duplicates.
        """
        rensa = import_module("rensa")  # it has no types
        bands = _BANDS if similarity >= _ALIKE else _MORE_BANDS
        self._worded: _Index = rensa.RMinHashLSH(similarity, _HASHES, bands)
        self._new_sketch: Callable[[int, int], _Sketch] = rensa.RMinHash
        self._similarity = similarity
        self._known: list[_Asked] = []
        self._verbatim: dict[str, str] = {}
        self._based: dict[tuple[str, frozenset[str]], str] = {}

    def before(self, question: str, answer: Value, documents: Collection[str] = ()) -> str | None:
        """Return the id of an earlier duplicate: equal words, similar words and the same answer, or the same answer and documents.

        :param documents: ids of the documents that it needs.
        """
        from rapidfuzz import fuzz

        words = tokens(question)
        verbatim = self._verbatim.get(" ".join(words))
        if verbatim is not None:
            return verbatim
        if documents and (based := self._based.get(_base(answer, documents))) is not None:
            return based
        for key in sorted(self._worded.query(self._worded_sketch(words, answer))):
            known = self._known[key]
            if fuzz.ratio(known.words, words) >= 100 * self._similarity and values_agree(
                answer, known.answer
            ):
                return known.id
        return None

    def add(self, question: str, answer: Value, own: str, documents: Collection[str] = ()) -> None:
        """Add a question. See `before`."""
        words = tokens(question)
        self._verbatim.setdefault(" ".join(words), own)
        if documents:
            self._based.setdefault(_base(answer, documents), own)
        self._worded.insert(len(self._known), self._worded_sketch(words, answer))
        self._known.append(_Asked(words, answer, own))

    def _worded_sketch(self, words: list[str], answer: Value) -> _Sketch:
        """Return a sketch that is half question and half answer, so that other answers give no candidates."""
        said = " ".join(tokens(show_value(answer)))
        if isinstance(answer, NumberValue):  # 12 km is 12,000 metres
            quantity = quantity_of(answer.amount, answer.unit)
            said = f"{quantity.size.normalize()} {quantity.kind}"
        return self._sketch({*words, *(f"{said} {number}" for number in range(len(words)))})

    def _sketch(self, items: Collection[str]) -> _Sketch:
        sketch = self._new_sketch(_HASHES, 1)
        sketch.update(sorted(items))
        return sketch


def _base(answer: Value, documents: Collection[str]) -> tuple[str, frozenset[str]]:
    return normalise_name(show_value(answer)), frozenset(documents)
