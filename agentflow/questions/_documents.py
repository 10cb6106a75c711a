"""Documents that observations show: joined from searches and windows, split into numbered passages, copies dropped.

A passage is never cut inside an entry: headings, and the line that introduces a list, travel with what they belong to.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from math import fsum, log
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from agentflow.text import find_quote, is_content_word, shingles, words
from agentflow.trace import Blob, Node, Verdict, canonical, digest

PASSAGE_CHARS: Final = 900
"""Length from which a passage takes no further paragraph."""
_MAX_ENTRY: Final = 4_000
"""Length of the longest paragraph that is not cut."""
_MARKED: Final = (".md", ".markdown", ".htm", ".html", ".xhtml")
"""Ends of the names of documents whose headings are marked, so that of other lines only numbered ones are."""
_MIN_EXTRACT: Final = 1_000
"""Characters of an extract that are worth their room."""
_COPY: Final = 0.8
"""Share of a document's shingles in another one from which it is a copy."""
_TRANSLATION: Final = 0.6
"""Share of common numbers and acronyms from which texts in two languages are the same."""
_MIN_ANCHORS: Final = 12
"""Numbers and acronyms that a text needs to be recognised as a translation."""
_MAX_TERM: Final = 80
"""Length of the longest line that may name what follows."""
_SENTENCE_ENDS: Final = (".", "!", "?", ":", ";", ",", "。")
_GAP: Final = 3
"""Characters between two windows of a document that count as nothing, such as white space."""
_MIN_SECTION: Final = 40
"""Length from which a part of a document is one of its sections."""
_MARKDOWN: Final = re.compile(r"#{1,6}\s+\S")
_UNDERLINE: Final = re.compile(r"([=\-~^*+#])\1{2,}\s*$")
_NUMBERED: Final = re.compile(r"(?:[A-Z]\.)?\d+(?:\.\d+)*\.?\s+\S")
_BULLET: Final = re.compile(r"\s*(?:[-*•◦‣+]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+\S")
_ANCHOR: Final = re.compile(r"\b(?:\d[\d.]+|[A-Z]{2,}\w*)\b")
_BLANK: Final = re.compile(r"\n[ \t]*\n")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_ENGLISH: Final = frozenset(
    {"the", "of", "and", "to", "in", "is", "that", "for", "with", "was", "are", "this", "by", "as"}
)
_MIN_ENGLISH: Final = 0.08
"""Share of English function words from which a text counts as English."""


_ELLIPSIS: Final = re.compile(r"\s*(?:…|\[?\.{3}\]?)\s*")


def quoted(text: str, quote: str) -> list[tuple[int, int]]:
    """Return the places of a quote in a text, part by part if it has ellipses; case does not matter. Empty: it is not there.

    >>> quoted("The Gull sails in May, and the Tern in June.", "the gull sails … the Tern")
    [(0, 14), (27, 35)]
    """
    spans: list[tuple[int, int]] = []
    start = 0
    folded = text.casefold()
    same = len(folded) == len(text)
    for part in filter(None, _ELLIPSIS.split(quote.strip().strip("\"“”'"))):
        bare = part.strip(" \"“”'.,;:")
        span = find_quote(text[start:], bare)
        if span is None and same:
            span = find_quote(folded[start:], bare.casefold())
        if span is None:
            return []
        spans.append((start + span[0], start + span[1]))
        start += span[1]
    return spans


class VerbatimPart(NamedTuple):
    """Part of a text that is verbatim in an observation."""

    start: int
    """Start in the text."""
    end: int
    """End in the text."""
    node: str
    """Id of the node with the observation."""
    source: int
    """Start in the observation's text."""


class Passage(Struct, frozen=True, kw_only=True):
    """Part of a document, as the roles are shown it."""

    number: int
    """Number among all passages, from 1."""
    document: int
    """Number of its document, from 1."""
    heading: str
    """Headings above it, and the line that introduces its list."""
    text: str
    """Its text."""
    pieces: tuple[VerbatimPart, ...] = ()
    """Parts that are verbatim in an observation, in order."""
    image: Blob | None = None
    """Image that it consists of."""
    node: str = ""
    """Id of the node with the image."""

    def places_of(self, quote: str) -> tuple[tuple[str, int, int], ...]:
        """Return the places of a quote in observations, as node, start and end; empty if it is not in the text."""
        return tuple(
            (piece.node, piece.source + max(start, piece.start) - piece.start, piece.source + min(end, piece.end) - piece.start)
            for start, end in quoted(self.text, quote)
            for piece in self.pieces
            if piece.start < end and start < piece.end
        )  # fmt: skip


class ShownDocument(Struct, frozen=True, kw_only=True):
    """Document that a tree has seen, in passages."""

    number: int
    """Number, from 1."""
    id: str
    """Name by which the tools know it: an id, an address, a path, or the call that computed it."""
    title: str
    """Its title; may be empty."""
    complete: bool
    """Its whole text is shown."""
    computed: bool = False
    """It is the result of a call, such as a query, and no document."""
    passages: tuple[Passage, ...]
    """Its passages, in order."""
    nodes: tuple[str, ...]
    """Ids of the nodes that show it, in path order."""
    copies: tuple[str, ...] = ()
    """Other documents with the same text, or with a translation of it."""

    @property
    def text(self) -> str:
        """All that is shown of it."""
        return "\n\n".join(passage.text for passage in self.passages if passage.text)

    @property
    def images(self) -> tuple[Blob, ...]:
        """Its images."""
        return tuple(passage.image for passage in self.passages if passage.image is not None)

    @property
    def size(self) -> int:
        """Number of characters shown."""
        return sum(len(passage.text) + len(passage.heading) for passage in self.passages)


class _Window(NamedTuple):
    """Part of a document in one observation."""

    offset: int
    """Start in the document; -1 if unknown."""
    text: str
    node: str
    source: int
    """Start in the observation's text."""


class _CollectedDocument:
    """A document that is collected."""

    def __init__(self, id: str, computed: bool) -> None:
        self.id = id
        self.computed = computed
        self.title = ""
        self.length = 0
        self.windows: list[_Window] = []
        self.images: dict[str, tuple[Blob, str]] = {}


def documents_of(nodes: Iterable[Node]) -> tuple[ShownDocument, ...]:
    """Return the documents that the observations of new nodes show, in path order; copies of others are merged into them.

    A hit of a search belongs to the document that it quotes. An observation that names no document is one of its own. Where the
    tools for documents read a single one, each part that was read counts as a document, also beside results of other tools.

    See docs/questions.md.
    """
    collected_by_id: dict[str, _CollectedDocument] = {}
    tools = set[str]()
    for node in nodes:
        text, images = node.observation.text, node.observation.blobs
        if node.action is None or node.verdict is not Verdict.NEW or not (text.strip() or images):
            continue
        if not node.observation.sources:
            name = canonical(node.action)
            entry = collected_by_id.setdefault(name, _CollectedDocument(name, computed=True))
            entry.length = len(text)
            entry.windows += [_Window(0, text, node.id, 0)] if text.strip() else []
        else:
            tools.add(node.action.tool)
            entry = collected_by_id.setdefault(
                node.observation.sources[0].document,
                _CollectedDocument(node.observation.sources[0].document, computed=False),
            )
        entry.images.update((blob.hash, (blob, node.id)) for blob in images)
        for source in node.observation.sources:
            entry = collected_by_id.setdefault(
                source.document, _CollectedDocument(source.document, computed=False)
            )
            entry.title = entry.title or source.title
            entry.length = max(entry.length, source.length)
            entry.windows.append(
                _Window(source.offset, text[source.start : source.end], node.id, source.start)
            )
    alone = (
        all(tool.startswith("document_") for tool in tools)
        and sum(not entry.computed for entry in collected_by_id.values()) == 1
    )
    collected = [
        part
        for entry in collected_by_id.values()
        for part in (_sections(entry) if alone and not entry.computed else [entry])
    ]
    return numbered(without_copies([_shown(part) for part in collected]))


def _sections(document: _CollectedDocument) -> list[_CollectedDocument]:
    """Return the parts of a document that were read as documents; itself if it was read as one."""
    complete = _shown(document).complete
    sections: list[_CollectedDocument] = []
    for window in (window for stretch in _stretches(document.windows) for window in stretch):
        text = window.text.strip()
        if len(text) < _MIN_SECTION:
            continue
        part = str(window.offset) if window.offset >= 0 else digest(text)
        section = _CollectedDocument(f"{document.id}#{part}", computed=False)
        section.title = f"{document.title or document.id}: {text.splitlines()[0][:80]}"
        section.length = len(window.text) if complete else 0
        section.windows.append(window._replace(offset=0))
        sections.append(section)
    if len(sections) < 2:
        return [document]
    sections[0].images = document.images
    return sections


def documents_from(texts: Iterable[tuple[str, str, str]]) -> tuple[ShownDocument, ...]:
    """Return whole documents, each given as its id, title and text.

    See docs/questions.md.
    """
    shown: list[ShownDocument] = []
    for id, title, text in texts:
        document = _CollectedDocument(id, computed=False)
        document.title, document.length = title, len(text)
        document.windows.append(_Window(0, text, id, 0))
        shown.append(_shown(document))
    return numbered(without_copies(shown))


def numbered(documents: Iterable[ShownDocument]) -> tuple[ShownDocument, ...]:
    """Return documents with numbers from 1, and their passages with numbers from 1 over all of them.

    See docs/questions.md.
    """
    result: list[ShownDocument] = []
    passages = 0
    for number, document in enumerate(documents, 1):
        numbered_passages = tuple(
            replace(passage, number=passages + index, document=number)
            for index, passage in enumerate(document.passages, 1)
        )
        passages += len(numbered_passages)
        result.append(replace(document, number=number, passages=numbered_passages))
    return tuple(result)


def _shown(document: _CollectedDocument) -> ShownDocument:
    """Return a collected document as passages of its windows."""
    stretches = _stretches(document.windows)
    ends = [(stretch[0].offset, stretch[-1].offset + len(stretch[-1].text)) for stretch in stretches]
    complete = len(ends) == 1 and ends[0][0] <= _GAP and 0 < document.length <= ends[0][1] + _GAP
    lines = (line for window in document.windows for line in window.text.splitlines())
    marked = document.id.lower().endswith(_MARKED) or any(map(_MARKDOWN.match, lines))
    passages = tuple(passage for stretch in stretches for passage in _split(stretch, marked=marked))
    passages += tuple(
        Passage(number=0, document=0, heading="", text="", image=blob, node=node)
        for blob, node in document.images.values()
    )
    shown = (*(window.node for window in document.windows), *(node for _, node in document.images.values()))
    return ShownDocument(
        number=0,
        id=document.id,
        title=document.title,
        complete=complete,
        computed=document.computed,
        passages=passages,
        nodes=tuple(dict.fromkeys(shown)),
    )


def _stretches(windows: Sequence[_Window]) -> list[list[_Window]]:
    """Return runs of adjoining windows without what they share; those of unknown place that others contain are left out."""
    stretches: list[list[_Window]] = []
    end = -_GAP - 1
    for window in sorted(
        (window for window in windows if window.offset >= 0),
        key=lambda candidate: (candidate.offset, -len(candidate.text)),
    ):
        if window.offset + len(window.text) <= end:
            continue
        if window.offset <= end + _GAP and stretches:
            shared = max(end - window.offset, 0)
            stretches[-1].append(
                _Window(window.offset + shared, window.text[shared:], window.node, window.source + shared)
            )
        else:
            stretches.append([window])
        end = window.offset + len(window.text)
    shown = "\n".join(window.text for stretch in stretches for window in stretch)
    for window in sorted(
        (window for window in windows if window.offset < 0), key=lambda candidate: -len(candidate.text)
    ):
        if find_quote(shown, window.text) is None:
            stretches.append([window])
            shown += "\n" + window.text
    return stretches


class _Block(NamedTuple):
    """Paragraph, bullet or heading."""

    start: int
    end: int
    level: int
    """Level of a heading, from 1; 0: no heading."""
    bullet: bool


def _split(stretch: Sequence[_Window], *, marked: bool) -> Iterator[Passage]:
    """Yield the passages of a run of windows."""
    text = "".join(window.text for window in stretch)
    pieces, position = list[VerbatimPart](), 0
    for window in stretch:
        pieces.append(VerbatimPart(position, position + len(window.text), window.node, window.source))
        position += len(window.text)
    headings: list[tuple[int, str]] = []
    introduction = ""
    run: list[_Block] = []

    def passage() -> Passage:
        start, end = run[0].start, run[-1].end
        intro = introduction if run[0].bullet else ""
        parts = tuple(
            VerbatimPart(max(piece.start, start) - start, min(piece.end, end) - start, piece.node, piece.source + max(start - piece.start, 0))
            for piece in pieces
            if piece.start < end and start < piece.end
        )  # fmt: skip
        return Passage(
            number=0,
            document=0,
            heading=" > ".join(filter(None, [*(title for _, title in headings), intro])),
            text=text[start:end],
            pieces=parts,
        )

    for block in _blocks(text, marked=marked):
        content = text[block.start : block.end]
        size = run[-1].end - run[0].start if run else 0
        if run and (block.level or size + len(content) > PASSAGE_CHARS) and not _introduces(text, run, block):
            terms = 0 if block.level else _terms_at_end(text, run)
            run, waiting = run[: len(run) - terms], run[len(run) - terms :]
            yield passage()
            run = waiting
        if block.level:
            headings = [heading for heading in headings if heading[0] < block.level]
            headings.append((block.level, _title(content)))
            introduction = ""
            continue
        if not block.bullet:
            introduction = " ".join(content.split())[-200:] if content.rstrip().endswith(":") else ""
        run.append(block)
    if run and any(map(str.isalnum, text[run[0].start : run[-1].end])):
        yield passage()


def _terms_at_end(text: str, run: Sequence[_Block]) -> int:
    """Return the number of blocks at the end of a run that name what follows, such as an option before its description."""
    count = 0
    for block in reversed(run[1:]):
        line = text[block.start : block.end].rstrip()
        if block.bullet or "\n" in line or len(line) > _MAX_TERM or line.endswith(_SENTENCE_ENDS):
            break
        count += 1
    return count


def _introduces(text: str, run: Sequence[_Block], block: _Block) -> bool:
    """Return whether a run is a bullet without text, or the line that introduces a list whose first entry follows."""
    if not any(map(str.isalnum, text[run[0].start : run[-1].end])):
        return not block.level
    return block.bullet and len(run) == 1 and text[run[0].start : run[0].end].rstrip().endswith(":")


def _blocks(text: str, *, marked: bool) -> Iterator[_Block]:
    """Yield the paragraphs of a text; an entry of a list is one of its own, and a heading with nothing under it is a paragraph."""
    paragraphs = _between(_BLANK, text, 0, len(text))
    blocks = [block for start, end in paragraphs for block in _entries(text, start, end, marked=marked)]
    for block, following in zip_longest(blocks, blocks[1:]):
        empty = following is None or 0 < following.level <= block.level
        yield block._replace(level=0) if empty else block


def _between(pattern: re.Pattern[str], text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a span between matches, without white space at the ends."""
    begin = start
    for match in [*pattern.finditer(text, start, end), None]:
        stop = end if match is None else match.start()
        part = text[begin:stop]
        if part.strip():
            yield begin + len(part) - len(part.lstrip()), begin + len(part.rstrip())
        begin = end if match is None else match.end()


def _entries(text: str, start: int, end: int, *, marked: bool) -> Iterator[_Block]:
    """Yield the headings, bullets and other parts of a paragraph."""
    lines: list[tuple[int, int]] = []
    position = start
    for line in text[start:end].splitlines(keepends=True):
        lines.append((position, position + len(line.rstrip("\n"))))
        position += len(line)
    begin = start
    for index, (first, last) in enumerate(lines):
        line = text[first:last]
        level = _level(
            line,
            text[slice(*lines[index + 1])] if index + 1 < len(lines) else "",
            alone=len(lines) == 1,
            marked=marked,
        )
        bullet = bool(_BULLET.match(line))
        if not (level or bullet):
            continue
        if text[begin:first].strip():
            yield from _cut(text, begin, first)
        if level:
            underlined = index + 1 < len(lines) and _UNDERLINE.match(text[slice(*lines[index + 1])])
            stop = lines[index + 1][1] if underlined else last
            yield _Block(first, stop, level, bullet=False)
            begin = stop
        else:
            begin = first
    if text[begin:end].strip():
        yield from _cut(text, begin, end)


def _cut(text: str, start: int, end: int) -> Iterator[_Block]:
    """Yield a paragraph; an overlong one in sentences."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    end -= len(part) - len(part.rstrip())
    bullet = bool(_BULLET.match(text[start:end]))
    if end - start <= _MAX_ENTRY:
        yield _Block(start, end, 0, bullet)
        return
    begin = start
    for _, stop in _between(_SENTENCE, text, start, end):
        if stop - begin >= PASSAGE_CHARS or stop == end:
            yield _Block(begin, stop, 0, bullet and begin == start)
            begin = stop


def _level(line: str, following: str, *, alone: bool, marked: bool) -> int:
    """Return the level of a heading; 0 for another line."""
    bare = line.strip()
    if not bare or len(bare) > 120:
        return 0
    if _MARKDOWN.match(bare):
        return len(bare) - len(bare.lstrip("#"))
    if _UNDERLINE.match(following) and not _UNDERLINE.match(bare):
        return 1 + "=-~^*+#".index(following.strip()[0])
    ends = bare[-1] in ".!?,;:"
    if alone and _NUMBERED.match(bare) and not ends:
        number = bare.split()[0].rstrip(".")
        return 1 + number.count(".")
    return (
        4
        if alone
        and not (marked or ends or _BULLET.match(line))
        and len(bare.split()) <= 12
        and bare[0].isupper()
        else 0
    )


def _title(heading: str) -> str:
    return " ".join(heading.splitlines()[0].lstrip("# ").split())


class _Marks(NamedTuple):
    """Marks by which two texts are the same."""

    shingles: frozenset[tuple[str, ...]]
    anchors: frozenset[str]
    """Numbers and acronyms, which a translation keeps."""
    english: bool

    @classmethod
    def of(cls, document: ShownDocument) -> "_Marks":
        """Return the marks of a document."""
        text = document.text
        return cls(shingles(text), frozenset(_ANCHOR.findall(text)), is_english(text))

    def copies(self, other: "_Marks") -> bool:
        """Return whether this text is contained in the other one, or is a translation of it."""
        if self.shingles and len(self.shingles & other.shingles) >= _COPY * len(self.shingles):
            return True
        if self.english == other.english or len(self.anchors) < _MIN_ANCHORS:
            return False
        return len(self.anchors & other.anchors) >= _TRANSLATION * len(self.anchors | other.anchors)


def without_copies(documents: Sequence[ShownDocument]) -> list[ShownDocument]:
    """Return documents of which none is a copy or a translation of another; the largest stays, with the ids of the others."""
    kept: list[tuple[ShownDocument, _Marks]] = []
    for document in sorted(documents, key=lambda kept_document: -kept_document.size):
        marks = _Marks.of(document)
        same = next((index for index, (_, other) in enumerate(kept) if marks.copies(other)), None)
        if same is None or document.computed:
            kept.append((document, marks))
        else:
            whole, others = kept[same]
            kept[same] = replace(whole, copies=(*whole.copies, document.id)), others
    order = {document.id: index for index, document in enumerate(documents)}
    return sorted((document for document, _ in kept), key=lambda kept_document: order[kept_document.id])


def is_english(text: str) -> bool:
    """Return whether a text is English, by its function words.

    >>> is_english("The ship is in the harbour of the town."), is_english("Das Schiff ist im Hafen der Stadt.")
    (True, False)
    """
    alphabetic = [word for word in words(text) if word.isalpha()]
    return sum(word in _ENGLISH for word in alphabetic) >= _MIN_ENGLISH * max(len(alphabetic), 1)


def divided(
    documents: Sequence[ShownDocument], *, characters: int, most: int
) -> tuple[tuple[ShownDocument, ...], ...]:
    """Return groups of documents that are about the same things, none larger than a prompt may be; numbers start in each anew.

    A document larger than half of a prompt is an extract of the passages that have most in common with the group. Within a
    group, those with most in common stand last: they are the ones that checks leave out, and prompts share what comes before.

    See docs/questions.md.

    :param characters: length of all passages of a group.
    :param most: number of documents of a group.
    """
    terms = {document.id: _terms(document.text) for document in documents}
    spread = Counter(term for document_terms in terms.values() for term in document_terms)
    # A term in half of the documents connects none of them. Sums of weights are exact: sets have no order.
    weights = {
        term: log(len(documents) / count)
        for term, count in spread.items()
        if 1 < count <= max(2, len(documents) // 2)
    }
    left = [document for document in documents if document.passages]
    groups: list[tuple[ShownDocument, ...]] = []
    while left:
        group = _group(left, terms, weights, characters, most)
        groups.append(numbered(_connected_last(group, terms, weights)))
        taken = {document.id for document in group}
        left = [document for document in left if document.id not in taken]
    return tuple(groups)


def _group(
    documents: Sequence[ShownDocument],
    terms: dict[str, frozenset[str]],
    weights: dict[str, float],
    characters: int,
    most: int,
) -> list[ShownDocument]:
    """Return the documents that have most in common, beginning with the one that has most in common with all."""

    def shared(some: frozenset[str], other: frozenset[str]) -> float:
        return fsum(weights.get(term, 0.0) for term in some & other)

    everything = defaultdict[str, frozenset[str]](frozenset, terms)
    first = max(
        documents,
        key=lambda document: sum(
            shared(everything[document.id], everything[other.id])
            for other in documents
            if other is not document
        ),
    )
    group: list[ShownDocument] = []
    shared_terms: frozenset[str] = everything[first.id]
    left, room, following = list(documents), characters, first
    # A larger one would leave no room for others.
    largest = characters // 2 if len(documents) > 1 else characters
    while left and len(group) < most:
        left.remove(following)
        fitting = following if following.size <= min(room, largest) else None
        if following.size > largest and room >= min(_MIN_EXTRACT, characters):
            fitting = _extract(following, shared_terms, weights, min(room, largest))
        if fitting is not None:
            group.append(fitting)
            room -= fitting.size
            shared_terms |= everything[following.id]
        if left:
            following = max(left, key=lambda document: shared(shared_terms, everything[document.id]))
    return group or [_extract(first, shared_terms, weights, characters) or first]


def _extract(
    document: ShownDocument, wanted_terms: frozenset[str], weights: dict[str, float], room: int
) -> ShownDocument | None:
    """Return the passages of a document with most in common with known terms; `None` if none fits."""
    scored = sorted(
        document.passages,
        key=lambda passage: (
            -fsum(weights.get(term, 0.0) for term in _terms(passage.text) & wanted_terms),
            passage.number,
        ),
    )
    chosen: list[Passage] = []
    for passage in scored:
        size = len(passage.text) + len(passage.heading)
        if size <= room:
            chosen.append(passage)
            room -= size
    if not chosen:
        return None
    chosen.sort(key=lambda passage: passage.number)
    return replace(
        document, passages=tuple(chosen), complete=document.complete and len(chosen) == len(document.passages)
    )


def _connected_last(
    group: Sequence[ShownDocument], terms: dict[str, frozenset[str]], weights: dict[str, float]
) -> list[ShownDocument]:
    def connection(document: ShownDocument) -> float:
        document_terms = terms[document.id]
        return fsum(
            weights.get(term, 0.0)
            for other in group
            if other is not document
            for term in document_terms & terms[other.id]
        )

    return sorted(group, key=connection)


def _terms(text: str) -> frozenset[str]:
    return frozenset(word for word in words(text) if is_content_word(word) or any(map(str.isdigit, word)))
