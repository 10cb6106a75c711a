"""Calls in the tree, and the call that each of them continues: a function of the set of calls."""

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator

from msgspec import Struct

from agentflow.tokens._calls import TokenCall, Voice
from agentflow.tokens._spans import TokenSpan, ids_of, path_ids
from agentflow.trajectory import Tokens


class StoredCall:
    """A call as the tree stores it: the spans that end its prompt and its answer, and the log-probabilities."""

    __slots__ = ("asked", "end", "finish", "id", "logprobs", "parent", "version", "versions", "voice")

    def __init__(self, call: TokenCall, asked: TokenSpan, end: TokenSpan) -> None:
        self.id = call.id
        self.voice: Voice = call.voice
        self.parent = call.parent
        self.asked = asked
        """Last span of the prompt."""
        self.end = end
        """Last span of the answer."""
        self.logprobs = array("d", call.tokens.logprobs)
        self.version = call.tokens.version
        self.versions = call.tokens.versions
        self.finish = call.tokens.finish

    @property
    def has_answer(self) -> bool:
        """True if at least one token was sampled."""
        return self.end is not self.asked

    @property
    def order(self) -> tuple[int, tuple[float, ...], str, str]:
        """Sort key among calls that end with the same span; it does not depend on when they were added."""
        return self.asked.stop, tuple(self.logprobs), self.version, self.id

    def tokens(self) -> Tokens:
        """Return the prompt and the sampled tokens."""
        return Tokens(
            prompt=ids_of(path_ids(self.asked)),
            sampled=ids_of(path_ids(self.end, self.asked)),
            logprobs=tuple(self.logprobs),
            version=self.version,
            versions=self.versions,
            finish=self.finish,
        )


class CallLink(Struct, frozen=True):
    """A call and the call it continues."""

    call: StoredCall
    """The call."""
    parent: StoredCall | None = None
    """The call it continues."""
    rivals: tuple[StoredCall, ...] = ()
    """Calls it may continue, if that is ambiguous."""


def links_of(root: TokenSpan, calls: Collection[StoredCall]) -> list[CallLink]:
    """Return the link of each call; parents before children, siblings by their tokens."""
    asked: dict[TokenSpan, list[StoredCall]] = defaultdict(list)
    ended: dict[TokenSpan, list[StoredCall]] = defaultdict(list)
    for call in calls:
        asked[call.asked].append(call)
        if call.has_answer:
            ended[call.end].append(call)
    above: dict[Voice, list[list[StoredCall]]] = defaultdict(list)
    found: list[CallLink] = []
    for span, leaving in _enter_and_leave(root):
        for voice, group in _by_voice(ended.get(span, ())).items():
            if leaving:
                above[voice].pop()
            else:
                above[voice].append(group)
        if not leaving and span in asked:
            found += [_link(call, above[call.voice]) for call in sorted(asked[span], key=_order)]
    return found


def chains_of(links: list[CallLink]) -> list[list[StoredCall]]:
    """Return chains of calls that continue each other; of several continuations, the first stays in its parent's chain."""
    heirs: dict[str, StoredCall] = {}
    begins: list[StoredCall] = []
    for link in links:
        parent = link.parent
        if parent is None or parent.id in heirs or not link.call.has_answer:
            begins.append(link.call)
        else:
            heirs[parent.id] = link.call
    chains: list[list[StoredCall]] = []
    for call in begins:
        if call.has_answer:
            chain = [call]
            while (heir := heirs.get(chain[-1].id)) is not None:
                chain.append(heir)
            chains.append(chain)
    return chains


def _enter_and_leave(root: TokenSpan) -> Iterator[tuple[TokenSpan, bool]]:
    """Yield every span twice: before and after the spans below it."""
    todo = [(root, False)]
    while todo:
        span, leaving = todo.pop()
        yield span, leaving
        if not leaving:
            todo.append((span, True))
            todo += [(span.children[first], False) for first in sorted(span.children, reverse=True)]


def _by_voice(calls: Collection[StoredCall]) -> dict[Voice, list[StoredCall]]:
    groups: dict[Voice, list[StoredCall]] = defaultdict(list)
    for call in calls:
        groups[call.voice].append(call)
    return groups


def _link(call: StoredCall, above: list[list[StoredCall]]) -> CallLink:
    if not above:
        return CallLink(call)
    nearest = above[-1]
    if len(nearest) == 1:
        return CallLink(call, nearest[0])
    named = next((one for one in nearest if one.id == call.parent), None)
    return (
        CallLink(call, named)
        if named is not None
        else CallLink(call, None, tuple(sorted(nearest, key=_order)))
    )


def _order(call: StoredCall) -> tuple[int, tuple[float, ...], str, str]:
    return call.order
