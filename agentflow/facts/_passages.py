"""Passages that a reader is shown for a question, with some facts hidden."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from agentflow.facts._facts import ClosedSet, Fact, FactSpan
from agentflow.facts._hiding import HIDDEN, stating_spans, visible_parts
from agentflow.facts._mentions import (
    Span,
    sentence_spans,
    span_at,
)
from agentflow.facts._requests import EvidencePassage
from agentflow.facts._store import FactStore
from agentflow.facts._table_parsing import table_lines
from agentflow.facts._values import show_value
from agentflow.text import find_quote, is_content_word, word_set
from agentflow.trajectory import Blob, Node, Verdict, digest

_GAP: Final = "\n…\n"
"""Mark between two windows."""
_NEAR: Final = 40
"""Characters between two windows that are shown rather than left out."""
_MAX_SENTENCE: Final = 1_500
"""Characters of the longest sentence that a window shows whole."""
_AROUND: Final = 500
"""Characters around a span in a longer sentence."""
_MAX_TITLE: Final = 200
_MIN_SHARE: Final = 800
"""Characters that each passage may have at least."""


class PassagePiece(NamedTuple):
    """A part of a passage that is verbatim in the observation."""

    start: int
    """Start in the passage."""
    end: int
    """End in the passage."""
    source: int
    """Start in the observation's text."""


class ReaderPassage(Struct, frozen=True, kw_only=True):
    """Windows of an observation, as a reader is shown them."""

    number: int
    """Number, from 1."""
    node: str
    """Id of the node with the observation."""
    text: str
    """Text with marks for gaps and hidden spans."""
    pieces: tuple[PassagePiece, ...]
    """Parts that are verbatim in the observation, in order."""
    images: tuple[Blob, ...] = ()
    """Images of the observation; none that states a hidden fact."""

    @property
    def shown(self) -> EvidencePassage:
        """The passage as part of an `EvidenceRequest`."""
        return EvidencePassage(self.number, self.text, self.images)

    def source_of(self, quote: str) -> FactSpan | None:
        """Return the place of a quote in the observation; none if it contains a mark or is not in the passage."""
        found = find_quote(self.text, quote)
        if found is None:
            return None
        for piece in self.pieces:
            if piece.start <= found[0] and found[1] <= piece.end:
                shift = piece.source - piece.start
                return FactSpan(self.node, found[0] + shift, found[1] + shift)
        return None


class TreePassages:
    """Observations of a tree, from which readers are shown passages. Choices are made once for each question."""

    def __init__(self, store: FactStore, nodes: Sequence[Node]) -> None:
        """Use the observations with the verdict `new`.

        :param nodes: nodes of the tree, in path order.
        """
        self._store = store
        self._nodes = {
            node.id: node for node in nodes if node.verdict is Verdict.NEW and node.action is not None
        }
        self._chosen: dict[tuple[object, ...], list[tuple[Node, list[Span]]]] = {}
        self._stating: dict[str, frozenset[str]] = {}

    def stating(self, fact: Fact) -> frozenset[str]:
        """Return the ids of the nodes whose text states a fact, also where it was not extracted.

        See docs/facts.md.
        """
        if fact.id not in self._stating:
            extracted = {span.node for span in fact.spans}
            self._stating[fact.id] = frozenset(
                node.id
                for node in self._nodes.values()
                if node.id in extracted or stating_spans(self._store, [fact], node.id, node.observation.text)
            )
        return self._stating[fact.id]

    def alone(self, node: str, question: str, budget: int = 24_000) -> ReaderPassage:
        """Return the passage of one observation only, with the parts that are on the topic of a question.

        See docs/facts.md.
        """
        only = self._nodes[node]
        windows = _windows(only.observation.text, (), _topic(question, ()), budget)
        return _passage(self._store, 1, only, windows, ())

    def passages(
        self,
        facts: Sequence[Fact],
        *,
        sets: Sequence[ClosedSet] = (),
        support: Collection[str] = (),
        hidden: Collection[Fact] = (),
        question: str = "",
        distractors: int = 4,
        budget: int = 24_000,
    ) -> tuple[ReaderPassage, ...]:
        """Return the passages for a question: windows around its facts, and of similar observations without them.

        The choice and order of the passages depend neither on `hidden` nor on which of them support the answer.

        See docs/facts.md.

        :param facts: facts that the answer rests on.
        :param sets: closed sets that it rests on.
        :param support: ids of the nodes that support it; by default the first one that states each fact and set.
        :param hidden: facts of which no passage states any.
        :param distractors: number of passages that do not support it, at most.
        :param budget: number of characters of all passages; cited spans are shown even if they need more.
        """
        wanted = tuple(sorted({*support} or {stated.spans[0].node for stated in (*facts, *sets)}))
        key = (question, tuple(one.id for one in (*facts, *sets)), wanted, distractors, budget)
        if key not in self._chosen:
            self._chosen[key] = self._choose(facts, sets, wanted, question, distractors, budget)
        return tuple(
            _passage(self._store, number, node, windows, hidden)
            for number, (node, windows) in enumerate(self._chosen[key], 1)
        )

    def _choose(
        self,
        facts: Sequence[Fact],
        sets: Sequence[ClosedSet],
        wanted: Collection[str],
        question: str,
        distractors: int,
        budget: int,
    ) -> list[tuple[Node, list[Span]]]:
        """Return the observations in the order in which they are shown, with their windows."""
        topic = _topic(question, facts)
        chosen = [node for id, node in self._nodes.items() if id in wanted]
        others = [node for id, node in self._nodes.items() if id not in wanted]
        listing = {span.node for one in sets for span in one.spans}
        chosen += _distractors(
            self._store, [node for node in others if node.id not in listing], facts, topic, distractors
        )
        ids = sorted(one.id for one in (*facts, *sets))
        chosen.sort(key=lambda node: digest([question, ids, node.id]))
        share = max(budget // max(len(chosen), 1), _MIN_SHARE)
        cited = [span for one in (*facts, *sets) for span in one.spans]
        return [
            (
                node,
                _windows(
                    node.observation.text,
                    [span for span in cited if span.node == node.id and node.id in wanted],
                    topic,
                    share,
                ),
            )
            for node in chosen
        ]


def passages_for(
    store: FactStore,
    nodes: Sequence[Node],
    facts: Sequence[Fact],
    *,
    sets: Sequence[ClosedSet] = (),
    support: Collection[str] = (),
    hidden: Collection[Fact] = (),
    question: str = "",
    distractors: int = 4,
    budget: int = 24_000,
) -> tuple[ReaderPassage, ...]:
    """Return the passages for a single question; see `TreePassages.passages`.

    See docs/facts.md.
    """
    return TreePassages(store, nodes).passages(
        facts,
        sets=sets,
        support=support,
        hidden=hidden,
        question=question,
        distractors=distractors,
        budget=budget,
    )


def _topic(question: str, facts: Iterable[Fact]) -> frozenset[str]:
    """Return the words that a passage on the same topic has."""
    said = " ".join(
        [question, *(f"{fact.subject} {fact.relation} {show_value(fact.value)}" for fact in facts)]
    )
    return frozenset(filter(is_content_word, word_set(said)))


def _distractors(
    store: FactStore, nodes: Sequence[Node], facts: Sequence[Fact], topic: frozenset[str], count: int
) -> list[Node]:
    """Return the observations most similar to the topic that state none of the facts."""
    scored = sorted(
        (
            (-len(topic & word_set(node.observation.text)), digest(node.id), index)
            for index, node in enumerate(nodes)
        )
    )
    stating = {span.node for fact in facts for span in fact.spans}
    found: list[Node] = []
    for _, _, index in scored:
        node = nodes[index]
        if len(found) == count:
            break
        if node.id in stating or not node.observation.text.strip():
            continue
        if not stating_spans(store, facts, node.id, node.observation.text):
            found.append(node)
    return found


def _windows(text: str, spans: Sequence[FactSpan], topic: frozenset[str], share: int) -> list[Span]:
    """Return the parts of a text to show: whole sentences with the spans, and as many around them as fit."""
    if len(text) <= share:
        return [(0, len(text))]
    sentences = sentence_spans(text)
    chosen, windows = _needed(text, sentences, spans)
    size = sum(end - start for start, end in windows)
    for index in _order(text, sentences, chosen, topic):
        start, end = sentences[index]
        if end - start > _MAX_SENTENCE:
            if size:
                continue
            end = start + min(_MAX_SENTENCE, share)
        if size + end - start > share:
            break
        windows.append((start, end))
        size += end - start
    return _joined(windows)


def _needed(text: str, sentences: Sequence[Span], spans: Sequence[FactSpan]) -> tuple[set[int], list[Span]]:
    """Return the sentences with the cited spans, the title, and the headers of their tables."""
    chosen: set[int] = set()
    windows: list[Span] = []
    tables = table_lines(text)
    for span in spans:
        if span.image:
            continue
        first, last = span_at(sentences, span.start), span_at(sentences, max(span.end - 1, span.start))
        for index in range(max(first, 0), last + 1):
            start, end = sentences[index]
            if end - start > _MAX_SENTENCE:
                start, end = max(start, span.start - _AROUND), min(end, span.end + _AROUND)
            chosen.add(index)
            windows.append((start, end))
        table = span_at([(start, end) for start, _, end in tables], span.start)
        if table >= 0 and span.start < tables[table][2]:
            windows.append(tables[table][:2])
    if sentences and sentences[0][1] - sentences[0][0] <= _MAX_TITLE:
        chosen.add(0)
        windows.append(sentences[0])
    return chosen, list(_joined(windows, near=0))


def _order(
    text: str, sentences: Sequence[Span], chosen: Collection[int], topic: frozenset[str]
) -> Iterator[int]:
    """Yield further sentences: those around the chosen ones, nearest first; without any, those on the topic."""
    left = [index for index in range(len(sentences)) if index not in chosen]
    anchors = sorted(chosen - {0} if isinstance(chosen, set) else chosen)
    if anchors:
        pairs = [(index, index) for index in anchors]
        distance: dict[int, int] = {}
        for index in left:
            at = span_at(pairs, index)
            near = [abs(index - anchors[each]) for each in (at, at + 1) if 0 <= each < len(anchors)]
            distance[index] = min(near)
        yield from sorted(left, key=lambda index: (distance[index], index))
    else:
        yield from sorted(
            left, key=lambda index: (-len(topic & word_set(text[slice(*sentences[index])])), index)
        )


def _joined(windows: Iterable[Span], near: int = _NEAR) -> list[Span]:
    """Return windows in order; those with little between them become one."""
    found: list[Span] = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1] + near:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _passage(
    store: FactStore, number: int, node: Node, windows: Sequence[Span], hidden: Collection[Fact]
) -> ReaderPassage:
    text = node.observation.text
    parts: list[str] = []
    pieces: list[PassagePiece] = []
    length = 0
    for start, end in windows:
        if parts:
            parts.append(_GAP)
            length += len(_GAP)
        part = text[start:end]
        spans = stating_spans(store, hidden, node.id, part, start) if hidden else ()
        for shown, source in visible_parts(part, 0, len(part), spans):
            if source >= 0:
                pieces.append(PassagePiece(length, length + len(shown), source + start))
            parts.append(shown if source >= 0 else HIDDEN)
            length += len(parts[-1])
    images = {span.image for fact in hidden for span in fact.spans if span.node == node.id and span.image}
    return ReaderPassage(
        number=number,
        node=node.id,
        text="".join(parts),
        pieces=tuple(pieces),
        images=tuple(blob for blob in node.observation.blobs if blob.hash not in images),
    )
