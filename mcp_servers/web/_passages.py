"""BM25 ranking of the passages of one text."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from mcp_servers.web._results import PagePassage

MAX_PASSAGE = 1_000
"""Maximum length of a passage in characters."""

_K1, _B = 1.2, 0.75

_PIECE = re.compile(r"\S.*?(?=\n\s*\n|\Z)", re.DOTALL)
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s)|[。！？]|\n|\Z)\s*", re.DOTALL)
_WORD = re.compile(r"[^\W_]+")
_LINK_TARGET = re.compile(r"\]\([^)\s]*\)")
_ENDINGS = ("ies", "ing", "es", "ed", "s")
# Scripts without spaces between words, which are indexed by pairs of characters.
_UNSPACED = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\u0e00-\u0eff\uf900-\ufaff]")


def best_passages(text: str, query: str, count: int) -> list[PagePassage]:
    """Return the passages of a text that match a query best (BM25 within the text), best first; only those with a query word."""
    spans = list(_spans(text))
    words = [Counter(_terms(text[start:end])) for start, end in spans]
    lengths = [counts.total() for counts in words]
    average = sum(lengths) / len(lengths) if lengths and any(lengths) else 1.0
    scores = [0.0] * len(spans)
    for term in dict.fromkeys(_terms(query)):
        holding = [place for place, counts in enumerate(words) if term in counts]
        weight = math.log(1 + (len(spans) - len(holding) + 0.5) / (len(holding) + 0.5))
        for place in holding:
            times = words[place][term]
            length = 1 - _B + _B * lengths[place] / average
            scores[place] += weight * times * (_K1 + 1) / (times + _K1 * length)
    best = sorted(
        (place for place, score in enumerate(scores) if score > 0), key=lambda place: -scores[place]
    )
    return [
        PagePassage(text[spans[place][0] : spans[place][1]], *spans[place], round(scores[place], 4))
        for place in best[:count]
    ]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield paragraphs, short ones joined with the next; a heading starts a new passage."""
    start = end = -1
    for piece in _pieces(text):
        heading = text.startswith("#", piece[0])
        if start >= 0 and (heading or piece[1] - start > MAX_PASSAGE):
            yield start, end
            start = -1
        if start < 0:
            start = piece[0]
        end = piece[1]
    if start >= 0:
        yield start, end


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield paragraphs; long ones are split into sentences, and long sentences into parts."""
    for paragraph in _PIECE.finditer(text):
        start, end = paragraph.start(), paragraph.start() + len(paragraph[0].rstrip())
        if end - start <= MAX_PASSAGE:
            yield start, end
            continue
        for sentence in _SENTENCE.finditer(text, start, end):
            for first in range(sentence.start(), sentence.end(), MAX_PASSAGE):
                last = min(first + MAX_PASSAGE, sentence.end())
                stripped = text[first:last].strip()
                if stripped:
                    begin = first + text[first:last].index(stripped)
                    yield begin, begin + len(stripped)


def _terms(text: str) -> Iterator[str]:
    plain = _LINK_TARGET.sub("]", text).casefold()
    if not plain.isascii():
        parts = unicodedata.normalize("NFKD", plain)
        plain = unicodedata.normalize("NFC", "".join(one for one in parts if not unicodedata.combining(one)))
    for word in _WORD.findall(plain):
        if _UNSPACED.search(word):
            yield from (word[place : place + 2] for place in range(max(len(word) - 1, 1)))
        else:
            yield _stem(word)


@lru_cache(maxsize=10_000)
def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word
