"""Score of the documents that an episode has read, against those that its task needs."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import UNSET

from agentflow.trace import Episode, NeededDocument, SourceSpan, needed_documents

_READ_CHARS: Final = 1_000
"""Characters of a document from which it counts as read, in a result that shows several."""
_READ_SHARE: Final = 0.5
"""Share of a document from which it counts as read there."""
_SECTION_CHARS: Final = 40
"""Characters that each section has at least, so that a part that begins within them shows it."""
_SECTION: Final = re.compile(r"(.+)#(\d{1,12})", re.DOTALL)


def evidence_score(episode: Episode, beta: float = 2.0) -> float | None:
    """Return the F-beta of the documents that an episode has read.

    It is `None` if its task names none that it needs, or a turn does not tell what it has shown. See docs/training.md.

    :param beta: weight of recall against precision.
    """
    needed = needed_documents(episode.task)
    shown = [turn.sources for turn in episode.turns if turn.sources is not UNSET]
    if not needed or len(shown) < len(episode.turns):
        return None
    names = _DocumentNames(needed)
    read = {name for sources in shown for name in names.read_in(sources)}
    found = len(read.intersection(document.id for document in needed))
    return (1 + beta**2) * found / (beta**2 * len(needed) + len(read))


class _DocumentNames:
    """Names of the needed documents: their ids, their copies, and sections of one document, `ID#START`."""

    def __init__(self, needed: Sequence[NeededDocument]) -> None:
        self._ids = {document.id: document.id for document in needed}
        self._sections: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for document in needed:
            for copy in document.copies:
                self._ids.setdefault(copy, document.id)
            if section := _SECTION.fullmatch(document.id):
                self._sections[section[1]].append((int(section[2]), document.id))

    def read_in(self, sources: Iterable[SourceSpan]) -> Iterator[str]:
        """Yield the documents that are read by one result: needed ones by their id, others by any name."""
        parts: defaultdict[str, list[SourceSpan]] = defaultdict(list)
        for source in sources:
            parts[source.document].append(source)
        for document, shown in parts.items():
            if len(parts) == 1 or _is_read(shown):
                yield from self._named(document, shown)

    def _named(self, document: str, shown: Sequence[SourceSpan]) -> Iterator[str]:
        if document in self._ids or document not in self._sections:
            yield self._ids.get(document, document)
            return
        for part in shown:
            first, end = part.offset - _SECTION_CHARS, part.offset + part.end - part.start
            sections = [id for start, id in self._sections[document] if first < start < end]
            yield from sections if sections and part.offset >= 0 else [f"{document}#{part.offset}"]


def _is_read(shown: Sequence[SourceSpan]) -> bool:
    """Return whether so much of a document is shown that it is more than an entry of a listing."""
    characters = sum(length for _, length in {(part.offset, part.end - part.start) for part in shown})
    length = max(part.length for part in shown)
    return characters >= _READ_CHARS or 0 < length * _READ_SHARE <= characters
