"""The token tree: model calls in a radix tree over token ids, in which each run of ids is stored once.

Calls are added with their whole prompt or by their parent; everything else is a view. The call that each of them continues is a
function of the set of calls.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentflow.trace._node import Tokens
from agentflow.trace._token_calls import CallFork, ForkReason, Piece, TokenCall, TreeFigures, Voice

WIDTH = 4
"""Bytes of an id. Ids are compared as bytes, many at once."""
_CACHED_PATHS = 256
"""Voices whose last path is kept as bytes. A prompt of any other voice is looked up from the root."""


class _Span:
    """Consecutive tokens shared by every call that contains the first of them.

    A span that is split keeps its end, so calls may hold a reference to it.
    """

    __slots__ = ("children", "ids", "parent", "start")

    def __init__(self, parent: "_Span | None", start: int, ids: bytes) -> None:
        self.parent = parent
        self.start = start
        """Number of tokens before it."""
        self.ids = ids
        self.children: dict[bytes, _Span] = {}
        """Following spans by their first token."""

    @property
    def stop(self) -> int:
        """Number of tokens on the path from the root to its end."""
        return self.start + len(self.ids) // WIDTH

    def upwards(self, above: "_Span | None" = None) -> "Iterator[_Span]":
        """Iterate over this span and those before it, to the root or to the one after `above`."""
        step: _Span | None = self
        while step is not None and step is not above:
            yield step
            step = step.parent


def _packed(ids: Iterable[int]) -> bytes:
    """Return ids as bytes.

    :raises ValueError: if one of them is not an unsigned 32-bit integer.
    """
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not a token id: {error}") from None


def _ids_of(data: bytes) -> tuple[int, ...]:
    """Return bytes as ids."""
    return tuple(array("I", data))


def _shared_size(known: bytes, path: bytes, start: int = 0) -> int:
    """Return the length in bytes of the common prefix, in whole ids, of `known` and `path[start:]`."""
    if path.startswith(known, start):
        return len(known)
    low, high = 0, min(len(known), len(path) - start) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if path.startswith(known[low * WIDTH : middle * WIDTH], start + low * WIDTH):
            low = middle
        else:
            high = middle - 1
    return low * WIDTH


def _grow(at: _Span, ids: bytes) -> _Span:
    """Add ids after `at`, sharing what is already there, and return the span that ends with the last of them."""
    start = 0
    while start < len(ids):
        child = at.children.get(ids[start : start + WIDTH])
        if child is None:
            child = _Span(at, at.stop, ids[start:])
            at.children[child.ids[:WIDTH]] = child
            return child
        size = _shared_size(child.ids, ids, start)
        at = child if size == len(child.ids) else _split(child, size)
        start += size
    return at


def _path_ids(end: _Span, above: _Span | None = None) -> bytes:
    """Return all ids from the root, or from the end of `above`, to the end of a span."""
    return b"".join([span.ids for span in end.upwards(above)][::-1])


def _split(span: _Span, size: int) -> _Span:
    """Split off the first ids as a span of their own; `span` keeps the rest."""
    parent = span.parent
    assert parent is not None, "the root has no ids to split"
    upper = _Span(parent, span.start, span.ids[:size])
    parent.children[upper.ids[:WIDTH]] = upper
    span.parent = upper
    span.start = upper.stop
    span.ids = span.ids[size:]
    upper.children[span.ids[:WIDTH]] = span
    return upper


class _StoredCall(TokenCall, frozen=True, kw_only=True, eq=False):
    """A call of the tree. Its ids are in spans; `tokens` has everything else."""

    asked: _Span
    """Last span of the prompt."""
    end: _Span
    """Last span of the answer."""

    @classmethod
    def of(cls, call: TokenCall, asked: _Span, end: _Span) -> "_StoredCall":
        """Return a call whose ids are in these spans."""
        tokens = replace(call.tokens, prompt=(), sampled=())
        return cls(id=call.id, voice=call.voice, tokens=tokens, parent=call.parent, asked=asked, end=end)

    @property
    def has_answer(self) -> bool:
        """True if at least one token was sampled."""
        return self.end is not self.asked

    def whole(self) -> Tokens:
        """Return the tokens with their ids."""
        prompt, sampled = _ids_of(_path_ids(self.asked)), _ids_of(_path_ids(self.end, self.asked))
        return replace(self.tokens, prompt=prompt, sampled=sampled)


class _CallLink(Struct, frozen=True):
    """A call and the call it continues."""

    call: _StoredCall
    """The call."""
    parent: _StoredCall | None = None
    """The call it continues."""
    rivals: tuple[_StoredCall, ...] = ()
    """Calls it may continue, if that is ambiguous."""


def _links_of(root: _Span, calls: Collection[_StoredCall]) -> list[_CallLink]:
    """Return the link of each call; parents before children, siblings by their tokens."""
    asked: dict[_Span, list[_StoredCall]] = defaultdict(list)
    ended: dict[_Span, list[_StoredCall]] = defaultdict(list)
    for call in calls:
        asked[call.asked].append(call)
        if call.has_answer:
            ended[call.end].append(call)
    above: dict[Voice, list[list[_StoredCall]]] = defaultdict(list)
    links: list[_CallLink] = []
    for span, leaving in _enter_and_leave(root):
        for voice, group in _by_voice(ended.get(span, ())).items():
            if leaving:
                above[voice].pop()
            else:
                above[voice].append(group)
        if not leaving and span in asked:
            links += [_link(call, above[call.voice]) for call in sorted(asked[span], key=_order)]
    return links


def _chains_of(links: list[_CallLink]) -> list[list[_StoredCall]]:
    """Return chains of calls that continue each other; of several continuations, the first stays in its parent's chain."""
    heirs: dict[str, _StoredCall] = {}
    begins: list[_StoredCall] = []
    for link in links:
        parent = link.parent
        if parent is None or parent.id in heirs or not link.call.has_answer:
            begins.append(link.call)
        else:
            heirs[parent.id] = link.call
    chains: list[list[_StoredCall]] = [[call] for call in begins if call.has_answer]
    for chain in chains:
        while (heir := heirs.get(chain[-1].id)) is not None:
            chain.append(heir)
    return chains


def _enter_and_leave(root: _Span) -> Iterator[tuple[_Span, bool]]:
    """Yield every span twice: before and after the spans below it."""
    todo = [(root, False)]
    while todo:
        span, leaving = todo.pop()
        yield span, leaving
        if not leaving:
            todo.append((span, True))
            todo += [(span.children[first], False) for first in sorted(span.children, reverse=True)]


def _by_voice(calls: Collection[_StoredCall]) -> dict[Voice, list[_StoredCall]]:
    groups: dict[Voice, list[_StoredCall]] = defaultdict(list)
    for call in calls:
        groups[call.voice].append(call)
    return groups


def _link(call: _StoredCall, above: list[list[_StoredCall]]) -> _CallLink:
    if not above:
        return _CallLink(call)
    nearest = above[-1]
    if len(nearest) == 1:
        return _CallLink(call, nearest[0])
    named = next((rival for rival in nearest if rival.id == call.parent), None)
    return _CallLink(call, named, () if named is not None else tuple(sorted(nearest, key=_order)))


def _order(call: _StoredCall) -> tuple[int, tuple[float, ...], str, str]:
    """Sort key among calls that end with the same span; it does not depend on when they were added."""
    return call.asked.stop, call.tokens.logprobs, call.tokens.version, call.id


class _Seen:
    """Everything one voice has read and sampled so far."""

    def __init__(self) -> None:
        self.spans: set[_Span] = set()
        self.asked: set[_Span] = set()
        self.answering: dict[_Span, list[_StoredCall]] = defaultdict(list)
        """Calls by the spans after which their answers begin or continue."""

    def deepest(self, call: _StoredCall) -> _Span | None:
        """Return the last span of the call's prompt that the voice has read or sampled."""
        return next((span for span in call.asked.upwards() if span in self.spans), None)

    def add(self, call: _StoredCall) -> None:
        """Add a call."""
        self.asked.add(call.asked)
        for span in call.end.upwards():
            if span in self.spans:
                break
            self.spans.add(span)
        if call.has_answer:
            # The parent of the last span, and so on, to the last span of the prompt.
            for span in [*call.end.upwards(call.asked), call.asked][1:]:
                self.answering[span].append(call)


def _forks_of(
    root: _Span, calls: Sequence[_StoredCall], decode: Callable[[Sequence[int]], str] | None
) -> list[CallFork]:
    """Return the relation of each call to the calls before it.

    :param calls: in the order in which they were added.
    """
    links = {link.call.id: link for link in _links_of(root, calls)}
    seen: dict[Voice, _Seen] = {}
    agents: dict[str, set[str]] = defaultdict(set)
    continued: set[str] = set()
    forks: list[CallFork] = []
    for call in calls:
        voice, link = call.voice, links[call.id]
        known_agents = agents[voice.episode]
        if voice not in seen:
            reason = ForkReason.SUB_AGENT if known_agents - {voice.agent} else ForkReason.OPENING
            seen[voice] = _Seen()
            forks.append(CallFork(call=call.id, reason=reason, shared=0))
        else:
            forks.append(
                _fork(link, seen[voice], link.parent is not None and link.parent.id in continued, decode)
            )
        known_agents.add(voice.agent)
        seen[voice].add(call)
        if link.parent is not None:
            continued.add(link.parent.id)
    return forks


def _fork(
    link: _CallLink, seen: _Seen, continued: bool, decode: Callable[[Sequence[int]], str] | None
) -> CallFork:
    call, parent = link.call, link.parent
    deepest = seen.deepest(call)
    changed = _changed(link, seen, deepest) if deepest is not None else []
    lost: _StoredCall | None = None
    if link.rivals:
        reason = ForkReason.AMBIGUOUS
    elif call.asked in seen.asked:
        reason = ForkReason.RETRY
    elif changed:
        reason, lost = _lost(call, changed, decode)
    elif parent is not None:
        reason = ForkReason.BRANCH if continued else ForkReason.APPEND
    else:
        reason = ForkReason.RETRY if deepest is call.asked else ForkReason.COMPACTION
    return CallFork(
        call=call.id,
        reason=reason,
        parent="" if parent is None else parent.id,
        left="" if lost is None else lost.id,
        rivals=tuple(rival.id for rival in link.rivals),
        shared=0 if deepest is None else deepest.stop,
    )


def _changed(link: _CallLink, seen: _Seen, deepest: _Span) -> list[_StoredCall]:
    """Return calls after the parent whose answers are changed or missing in the prompt."""
    after = 0 if link.parent is None else link.parent.end.stop
    if deepest is link.call.asked:
        return []
    return [other for other in seen.answering.get(deepest, ()) if other.asked.stop >= after]


def _lost(
    call: _StoredCall, changed: list[_StoredCall], decode: Callable[[Sequence[int]], str] | None
) -> tuple[ForkReason, _StoredCall]:
    """Return the reason for a changed answer, and the call that sampled it."""
    if decode is not None:
        prompt = _path_ids(call.asked)
        for other in changed:
            text = decode(_ids_of(_path_ids(other.end, other.asked)))
            if decode(_ids_of(prompt[other.asked.stop * WIDTH :])).startswith(text):
                return ForkReason.DRIFT, other
    cut = next((other for other in changed if other.tokens.finish == "length"), None)
    return (ForkReason.REWRITTEN, changed[0]) if cut is None else (ForkReason.TRUNCATED, cut)


class TokenTree:
    """Model calls with their tokens, each shared prefix stored once.

    Example::

        tokens = Tokens(prompt=(1, 2), sampled=(3,), logprobs=(-0.5,))
        tree = TokenTree([TokenCall(id="1", tokens=tokens)])
        assert tree.path("1").sampled == (3,)
    """

    def __init__(self, calls: Iterable[TokenCall] = ()) -> None:
        """Add calls with their whole prompts.

        :raises ValueError: see `add`.
        """
        self._root = _Span(None, 0, b"")
        self._calls: dict[str, _StoredCall] = {}
        self._context: dict[str, _StoredCall] = {}
        """Calls that are only continued."""
        self._last_paths: dict[Voice, tuple[bytes, _Span]] = {}
        for call in calls:
            self.add(call)

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, id: object) -> bool:
        return id in self._calls

    def add(self, call: TokenCall, *, listed: bool = True) -> None:
        """Add a call with its whole prompt; its known prefix is found by comparison.

        :param listed: it is part of the rows and of all other views; else it can only be continued, and its tokens are context.
        :raises ValueError: if the id exists, or the tokens are inconsistent.
        """
        prompt, sampled = self._checked(call)
        asked = self._insert(call.voice, prompt)
        end = _grow(asked, sampled)
        self._listed(listed)[call.id] = _StoredCall.of(call, asked, end)
        self._keep_path(call.voice, prompt + sampled, end)

    def extend(self, parent: str, id: str, tokens: Tokens, *, listed: bool = True) -> None:
        """Add a call that continues a known one, with the same voice; costs time proportional to its new tokens.

        :param parent: id of the call it continues.
        :param tokens: their prompt holds only what follows the parent's answer.
        :param listed: as in `add`.
        :raises ValueError: if there is no such parent, the id exists, or the tokens are inconsistent.
        """
        before = self._calls.get(parent) or self._context.get(parent)
        if before is None:
            raise ValueError(f"call {id!r} continues {parent!r}, which is missing")
        call = TokenCall(id=id, voice=before.voice, tokens=tokens, parent=parent)
        prompt, sampled = self._checked(call)
        asked = _grow(before.end, prompt)
        self._listed(listed)[id] = _StoredCall.of(call, asked, _grow(asked, sampled))

    def path(self, id: str) -> Tokens:
        """Return the exact prompt and sampled tokens of a call.

        :raises KeyError: if there is no such call.
        """
        return self._calls[id].whole()

    def calls(self, trained: Callable[[Voice], bool] | None = None) -> list[TokenCall]:
        """Return every call in the order in which it was added, one row for each.

        :param trained: selects voices; by default all.
        """
        return [
            TokenCall(id=call.id, voice=call.voice, tokens=call.whole(), parent=call.parent)
            for call in self._calls.values()
            if trained is None or trained(call.voice)
        ]

    def voice(self, id: str) -> Voice:
        """Return the author of a call.

        :raises KeyError: if there is no such call.
        """
        return self._calls[id].voice

    def rows(self, trained: Callable[[Voice], bool] | None = None) -> dict[str, tuple[Piece, ...]]:
        """Return calls that continue each other as one row, by the id of its last call.

        Each sampled token is trained in exactly one row; it is context in others.

        :param trained: selects voices; by default all.
        """
        return {chain[-1].id: _row(chain) for chain in self._chains(trained)}

    def forks(self, decode: Callable[[Sequence[int]], str] | None = None) -> list[CallFork]:
        """Return the relation of each call to the calls added before it.

        :param decode: converts tokens to text; without it `DRIFT` is reported as `REWRITTEN`.
        """
        return _forks_of(self._root, list(self._calls.values()), decode)

    def figures(
        self,
        trained: Callable[[Voice], bool] | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> TreeFigures:
        """Return statistics of the tree."""
        chains = self._chains(trained)
        spans, unique = self._count()
        calls = self._calls.values()
        return TreeFigures(
            calls=len(calls),
            spans=spans,
            unique=unique,
            flat=sum(call.end.stop for call in calls),
            merged=sum(chain[-1].end.stop for chain in chains),
            rows=len(chains),
            sampled=sum(len(call.tokens.logprobs) for call in calls),
            trained=sum(len(call.tokens.logprobs) for chain in chains for call in chain),
            forks=dict(sorted(Counter(fork.reason.value for fork in self.forks(decode)).items())),
        )

    def pieces(self, id: str) -> list[Piece]:
        """Return the tokens of a call, split by the call that sampled them.

        :raises KeyError: if there is no such call.
        """
        return _pieces(self._root, self._calls[id], self._calls.values())

    def _chains(self, trained: Callable[[Voice], bool] | None) -> list[list[_StoredCall]]:
        chains = _chains_of(_links_of(self._root, self._calls.values()))
        return [chain for chain in chains if trained is None or trained(chain[0].voice)]

    def _listed(self, listed: bool) -> dict[str, _StoredCall]:
        return self._calls if listed else self._context

    def _checked(self, call: TokenCall) -> tuple[bytes, bytes]:
        """Return the prompt and the answer as bytes."""
        tokens = call.tokens
        if call.id in self._calls or call.id in self._context:
            raise ValueError(f"call {call.id!r} already exists")
        if len(tokens.sampled) != len(tokens.logprobs):
            raise ValueError(
                f"call {call.id!r}: {len(tokens.sampled)} sampled tokens and {len(tokens.logprobs)} log-probabilities"
            )
        try:
            return _packed(tokens.prompt), _packed(tokens.sampled)
        except ValueError as error:
            raise ValueError(f"call {call.id!r}: {error}") from None

    def _insert(self, voice: Voice, path: bytes) -> _Span:
        """Add a path and return its last span.

        A prompt usually continues the last call of its voice, so that path is compared first, at once.
        """
        last, span = self._last_paths.get(voice, (b"", self._root))
        size = _shared_size(last, path)
        while span.parent is not None and span.stop * WIDTH > size:
            span = span.parent
        return _grow(span, path[span.stop * WIDTH :])

    def _keep_path(self, voice: Voice, path: bytes, end: _Span) -> None:
        self._last_paths.pop(voice, None)
        self._last_paths[voice] = (path, end)
        if len(self._last_paths) > _CACHED_PATHS:
            del self._last_paths[next(iter(self._last_paths))]

    def _count(self) -> tuple[int, int]:
        """Return the number of spans and of stored tokens."""
        spans, size, todo = 0, 0, [self._root]
        while todo:
            span = todo.pop()
            spans += bool(span.ids)
            size += len(span.ids)
            todo.extend(span.children.values())
        return spans, size // WIDTH


def _row(chain: list[_StoredCall]) -> tuple[Piece, ...]:
    ids, start = _ids_of(_path_ids(chain[-1].end)), 0
    pieces: list[Piece] = []
    for call in chain:
        asked, end = call.asked.stop, call.end.stop
        if start < asked:
            pieces.append(Piece(kind="context", ids=ids[start:asked]))
        pieces.append(Piece(kind="trained", call=call.id, ids=ids[asked:end], logprobs=call.tokens.logprobs))
        start = end
    return tuple(pieces)


def _pieces(root: _Span, call: _StoredCall, calls: Collection[_StoredCall]) -> list[Piece]:
    """Return the tokens of a call; adjacent spans of one call and kind are joined."""
    path = [*call.end.upwards(root)][::-1]
    samplers = _samplers(path, call, root, calls)
    pieces: list[Piece] = []
    for span in path:
        sampler = samplers.get(span)
        kind = "context" if sampler is None else "trained" if sampler.voice == call.voice else "other"
        by = "" if sampler is None else sampler.id
        ids, logprobs = _ids_of(span.ids), ()
        if sampler is not None and kind == "trained":
            start = span.start - sampler.asked.stop
            logprobs = sampler.tokens.logprobs[start : start + len(ids)]
        if pieces and (pieces[-1].kind, pieces[-1].call) == (kind, by):
            before = pieces.pop()
            ids, logprobs = before.ids + ids, before.logprobs + logprobs
        pieces.append(Piece(kind=kind, call=by, ids=ids, logprobs=logprobs))
    return pieces


def _samplers(
    path: list[_Span], call: _StoredCall, root: _Span, calls: Collection[_StoredCall]
) -> dict[_Span, _StoredCall]:
    """Return the call that sampled each span of the path; the call itself and those it continues take precedence."""
    samplers: dict[_Span, _StoredCall] = {}
    on_path = set(path)
    for other in calls:
        if other.voice != call.voice and other.end in on_path:
            samplers.update(dict.fromkeys(other.end.upwards(other.asked), other))
    parents = {link.call.id: link.parent for link in _links_of(root, calls)}
    step: _StoredCall | None = call
    while step is not None:
        samplers.update(dict.fromkeys(step.end.upwards(step.asked), step))
        step = parents[step.id]
    return samplers
