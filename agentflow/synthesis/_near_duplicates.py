"""Detection of questions that repeat an earlier one in nearly the same words."""

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

from agentflow.text import texts_agree, tokens

_HASHES = 128
_BANDS = 16
"""Few candidates: thousands of similar questions share most of their words."""
_MORE_BANDS = 32
"""More candidates, for a low similarity threshold."""
_ALIKE = 0.7


class _Sketch(Protocol):
    """MinHash sketch of a set of words."""

    def update(self, items: Iterable[str]) -> None: ...


class _Index(Protocol):
    """LSH index of sketches."""

    def insert(self, key: int, minhash: _Sketch) -> None: ...
    def query(self, minhash: _Sketch) -> list[int]: ...


class _Rensa(Protocol):
    """The used part of rensa, which has no types."""

    def RMinHash(self, num_perm: int, seed: int) -> _Sketch: ...
    def RMinHashLSH(self, threshold: float, num_perm: int, num_bands: int) -> _Index: ...


class QuestionIndex:
    """Index of the accepted questions of a run."""

    def __init__(self, similarity: float) -> None:
        """Start an empty index.

        :param similarity: word similarity from which two questions with the same answer are duplicates.
        """
        self._rensa = cast("_Rensa", import_module("rensa"))
        bands = _BANDS if similarity >= _ALIKE else _MORE_BANDS
        self._index = self._rensa.RMinHashLSH(similarity, _HASHES, bands)
        self._least = 100 * similarity
        self._known: list[tuple[list[str], str, str]] = []
        self._verbatim: dict[str, str] = {}

    def before(self, question: str, answer: str) -> str | None:
        """Return the id of an earlier duplicate: equal words, or similar words and the same answer."""
        from rapidfuzz import fuzz

        words = tokens(question)
        verbatim = self._verbatim.get(" ".join(words))
        if verbatim is not None:
            return verbatim
        for key in sorted(self._index.query(self._sketch(words, answer))):
            known, known_answer, own = self._known[key]
            if fuzz.ratio(known, words) >= self._least and texts_agree(answer, known_answer):
                return own
        return None

    def add(self, question: str, answer: str, own: str) -> None:
        """Add a question."""
        words = tokens(question)
        self._verbatim.setdefault(" ".join(words), own)
        self._index.insert(len(self._known), self._sketch(words, answer))
        self._known.append((words, answer, own))

    def _sketch(self, words: list[str], answer: str) -> _Sketch:
        """Return a sketch that is half question and half answer, so that other answers give no candidates."""
        said = " ".join(tokens(answer))
        sketch = self._rensa.RMinHash(_HASHES, 1)
        sketch.update([*sorted(set(words)), *(f"{said} {number}" for number in range(len(words)))])
        return sketch
