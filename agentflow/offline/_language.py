"""Plain text analysis: passages, sentences, names, content words; made for English, with minimal support for others."""

import re
from functools import lru_cache
from typing import NamedTuple

from agentflow.offline._words import STOP

_UPPER = "A-ZÀ-ÖØ-Þ"
NAME = (
    rf"[{_UPPER}][\w'’\-]*"
    rf"(?:(?: of the| of| de| van| von)? (?:[{_UPPER}][\w'’\-]*)|(?<=\w) of [12]\d{{3}}\b)*"
)
"""A capitalised phrase: `Race of the Five Capes`, `Pilots' Guild`, `Great Flood of 1712`."""
NUMBER = r"\d[\d,]*(?:\.\d+)?"
"""A number as written: `1,093`, `3.5`."""

_MAX_TEXT = 40_000
_MAX_SENTENCE = 400
_HEADING = re.compile(r"(?:\[\d+\] )?(?P<title>\S.{0,120}?) \((?P<id>[\w./:\-]{1,120})\)")
_END = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]?[^\Wa-z_])|(?<=[。！？])")
_ABBREVIATION = re.compile(
    rf"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|Capt|Gen|vs|etc|cf|No|Vol|Fig|e\.g|i\.e|approx|c)|\b[{_UPPER}])\.$"
)
_NAME = re.compile(NAME)
_WORD = re.compile(r"[^\W\d_][\w'’\-]*|\d[\w,.]*\w|\d")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,8}")


class TopicPassage(NamedTuple):
    """Part of a text about one topic."""

    topic: str
    """Its heading; empty without one."""
    id: str
    """Id of its document; empty without one."""
    sentences: tuple[str, ...]
    """Its sentences, verbatim."""


@lru_cache(maxsize=512)
def passages(text: str) -> tuple[TopicPassage, ...]:
    """Split an observation into passages. A line like `[1] Title (doc-id)` starts a new one."""
    parts: list[tuple[str, str, list[str]]] = [("", "", [])]
    for line in text[:_MAX_TEXT].splitlines():
        stripped = line.strip()
        heading = _HEADING.fullmatch(stripped)
        if heading is not None:
            parts.append((heading["title"], heading["id"], []))
        elif stripped:
            parts[-1][2].extend(_sentences(stripped))
    return tuple(
        TopicPassage(topic, id_, tuple(sentences)) for topic, id_, sentences in parts if sentences or topic
    )


def _sentences(line: str) -> list[str]:
    sentences: list[str] = []
    start = 0
    for end in _END.finditer(line):
        piece = line[start : end.start()]
        if _ABBREVIATION.search(piece) and end.group():
            continue
        # A closing quotation mark belongs to the sentence.
        closing = end.group().rstrip()
        sentences.append((piece + closing).strip())
        start = end.end()
    sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence and len(sentence) <= _MAX_SENTENCE]


@lru_cache(maxsize=1024)
def names(text: str) -> tuple[str, ...]:
    """Return the capitalised phrases of a text in order, each once, without words that merely start a sentence."""
    phrases: dict[str, bool] = {}
    cut = text[:_MAX_TEXT]
    for match in _NAME.finditer(cut):
        name = bare(match[0])
        if len(name) > 2 and name.lower() not in STOP:
            inner = " " in name or cut[max(0, match.start() - 2) : match.start()].rstrip()[-1:].isalnum()
            phrases[name] = phrases.get(name, False) or inner
    return tuple(name for name, inner in phrases.items() if inner)


def bare(name: str) -> str:
    """Return a name without a leading article or other stop words, and without a possessive `'s`."""
    words = name.strip().split(" ")
    while len(words) > 1 and words[0].lower() in STOP:
        words.pop(0)
    joined = " ".join(words)
    return re.sub(r"['’]s$", "", joined).rstrip("-’'") if not joined.endswith("s'") else joined.rstrip("'")


@lru_cache(maxsize=512)
def terms(text: str) -> tuple[str, ...]:
    """Return the content words of a text in lower case and in order, each once."""
    words: dict[str, None] = {}
    cut = text[:_MAX_TEXT]
    for match in _WORD.finditer(cut):
        word = match[0].lower().removesuffix("'s").removesuffix("’s").strip("'’-")
        if len(word) > 2 and word not in STOP and not _WIDE.search(word):
            words.setdefault(word)
    for match in _WIDE.finditer(cut):
        words.setdefault(match[0])
    return tuple(words)


def bounded(needle: str, text: str) -> bool:
    """Return true if a text contains these words as whole words, in any case."""
    return re.search(rf"(?<!\w){re.escape(needle)}(?!\w)", text, re.IGNORECASE) is not None
