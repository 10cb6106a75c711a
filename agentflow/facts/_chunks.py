"""Chunks of long texts, with overlap."""

import re
from typing import Final

from msgspec import Struct

from agentflow.facts._table_parsing import table_lines

_SENTENCE_END: Final = re.compile(r"[.!?。！？][\"'”’)\]]*(?:\s|(?<=[。！？]))")
_MAX_HEADER: Final = 1_000
"""Characters of a table's header that are repeated."""


class TextChunk(Struct, frozen=True, omit_defaults=True):
    """A part of a text. Of a table that began earlier, the header line is shown again."""

    start: int
    """Start in the text."""
    end: int
    """End in the text."""
    text: str
    """The part."""
    header: str = ""
    """Header line of the table in which the part begins."""
    header_start: int = 0
    """Start of the header line in the text."""

    @property
    def shown(self) -> str:
        """The part as a role sees it, with the header line before it."""
        return f"{self.header}\n{self.text}" if self.header else self.text


def chunks_of(text: str, size: int = 12_000, overlap: int = 600) -> tuple[TextChunk, ...]:
    """Cut a whole text into chunks that end at paragraphs, lines, sentences or words, in this order.

    :param size: maximum number of characters of a chunk.
    :param overlap: number of characters that neighbouring chunks share, at most; at most a quarter of `size`.

    >>> [(one.start, one.text) for one in chunks_of("First sentence. Second one.", size=16, overlap=0)]
    [(0, 'First sentence. '), (16, 'Second one.')]
    """
    if len(text) <= size:
        return (TextChunk(0, len(text), text),) if text else ()
    size = max(size, 4)
    overlap = min(overlap, size // 4)
    tables = table_lines(text)
    found: list[TextChunk] = []
    start = table = 0
    while True:
        end = len(text) if len(text) - start <= size else _boundary(text, start + size // 2, start + size)
        while table < len(tables) and tables[table][2] <= start:
            table += 1
        header = ("", 0)
        if table < len(tables) and tables[table][1] < start:
            first, last, _ = tables[table]
            header = (text[first:last], first) if last - first <= _MAX_HEADER else header
        found.append(TextChunk(start, end, text[start:end], *header))
        if end == len(text):
            return tuple(found)
        start = _beginning(text, end - overlap, end) if overlap else end


def _boundary(text: str, low: int, high: int) -> int:
    """Return the last good place to cut after `low` and up to `high`."""
    for mark in ("\n\n", "\n"):
        found = text.rfind(mark, low, high)
        if found >= 0:
            return found + len(mark)
    ends = [found.end() for found in _SENTENCE_END.finditer(text, low, high)]
    if ends:
        return ends[-1]
    space = text.rfind(" ", low, high)
    return high if space < 0 else space + 1


def _beginning(text: str, low: int, high: int) -> int:
    """Return the first good place to begin from `low` on, before `high`."""
    line = text.find("\n", low - 1, high - 1)
    if line >= 0:
        return line + 1
    sentence = _SENTENCE_END.search(text, low, high - 1)
    if sentence:
        return sentence.end()
    space = text.find(" ", low, high - 1)
    return low if space < 0 else space + 1
