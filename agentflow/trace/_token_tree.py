"""The token tree. Calls are added in one of three ways; everything else is a view."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from agentflow.trace._node import Tokens
from agentflow.trace._token_calls import (
    CallFork,
    ForkReason,
    Piece,
    TokenCall,
    TokenRow,
    TrainedSlice,
    TreeFigures,
    Voice,
)
from agentflow.trace._token_spans import (
    WIDTH,
    CallLink,
    StoredCall,
    TokenSpan,
    chains_of,
    grow,
    ids_of,
    links_of,
    packed,
    path_ids,
    shared_size,
)


class _Seen:
    """Everything one voice has read and sampled so far."""

    def __init__(self) -> None:
        self.spans: set[TokenSpan] = set()
        self.asked: set[TokenSpan] = set()
        self.answering: dict[TokenSpan, list[StoredCall]] = defaultdict(list)
        """Calls by the spans after which their answers begin or continue."""

    def deepest(self, call: StoredCall) -> TokenSpan | None:
        """Return the last span of the call's prompt that the voice has read or sampled."""
        return next((span for span in call.asked.upwards() if span in self.spans), None)

    def add(self, call: StoredCall) -> None:
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


def forks_of(
    root: TokenSpan, calls: Sequence[StoredCall], decode: Callable[[Sequence[int]], str] | None
) -> list[CallFork]:
    """Return the relation of each call to the calls before it.

    :param calls: in the order in which they were added.
    """
    links = {link.call.id: link for link in links_of(root, calls)}
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
    link: CallLink, seen: _Seen, continued: bool, decode: Callable[[Sequence[int]], str] | None
) -> CallFork:
    call, parent = link.call, link.parent
    deepest = seen.deepest(call)
    changed = _changed(link, seen, deepest) if deepest is not None else []
    lost: StoredCall | None = None
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


def _changed(link: CallLink, seen: _Seen, deepest: TokenSpan) -> list[StoredCall]:
    """Return calls after the parent whose answers are changed or missing in the prompt."""
    after = 0 if link.parent is None else link.parent.end.stop
    if deepest is link.call.asked:
        return []
    return [other for other in seen.answering.get(deepest, ()) if other.asked.stop >= after]


def _lost(
    call: StoredCall, changed: list[StoredCall], decode: Callable[[Sequence[int]], str] | None
) -> tuple[ForkReason, StoredCall]:
    """Return the reason for a changed answer, and the call that sampled it."""
    if decode is not None:
        prompt = path_ids(call.asked)
        for other in changed:
            text = decode(ids_of(path_ids(other.end, other.asked)))
            if decode(ids_of(prompt[other.asked.stop * WIDTH :])).startswith(text):
                return ForkReason.DRIFT, other
    cut = next((other for other in changed if other.finish == "length"), None)
    return (ForkReason.REWRITTEN, changed[0]) if cut is None else (ForkReason.TRUNCATED, cut)


_CACHED_PATHS = 256
"""Voices whose last path is kept as bytes. A prompt of any other voice is looked up from the root."""


class TokenTree:
    """Model calls with their tokens, each shared prefix stored once.

    Example::

        tree = TokenTree()
        tree.add(TokenCall(id="1", tokens=Tokens(prompt=(1, 2), sampled=(3,), logprobs=(-0.5,))))
        assert tree.path("1").sampled == (3,)
    """

    def __init__(self) -> None:
        self._root = TokenSpan(None, 0, b"")
        self._calls: dict[str, StoredCall] = {}
        self._context: dict[str, StoredCall] = {}
        """Calls that are only continued."""
        self._last_paths: dict[Voice, tuple[bytes, TokenSpan]] = {}

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
        end = grow(asked, sampled)
        self._listed(listed)[call.id] = StoredCall(call, asked, end)
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
        asked = grow(before.end, prompt)
        self._listed(listed)[id] = StoredCall(call, asked, grow(asked, sampled))

    def insert(self, ids: Iterable[int] | bytes) -> TokenSpan:
        """Add a path of tokens without a call, and return its last span; `walk` sorts such paths.

        :param ids: token ids, or the same as native unsigned 32-bit integers.
        :raises ValueError: if one of them is not an unsigned 32-bit integer.
        """
        path = ids if isinstance(ids, bytes) else packed(ids)
        end = self._insert(_NO_VOICE, path)
        self._keep_path(_NO_VOICE, path, end)
        return end

    def path(self, id: str) -> Tokens:
        """Return the exact prompt and sampled tokens of a call.

        :raises KeyError: if there is no such call.
        """
        return self._calls[id].tokens()

    def calls(self, trained: Callable[[Voice], bool] | None = None) -> list[TokenCall]:
        """Return every call in the order in which it was added, one row for each.

        :param trained: selects voices; by default all.
        """
        return [
            TokenCall(id=call.id, voice=call.voice, tokens=call.tokens(), parent=call.parent)
            for call in self._calls.values()
            if trained is None or trained(call.voice)
        ]

    def rows(self, trained: Callable[[Voice], bool] | None = None) -> list[TokenRow]:
        """Return calls that continue each other as one row; each sampled token is trained in exactly one of them.

        :param trained: selects voices; by default all.
        """
        links = links_of(self._root, self._calls.values())
        return [_row(chain) for chain in chains_of(links) if trained is None or trained(chain[0].voice)]

    def forks(self, decode: Callable[[Sequence[int]], str] | None = None) -> list[CallFork]:
        """Return the relation of each call to the calls added before it.

        :param decode: converts tokens to text; without it `DRIFT` is reported as `REWRITTEN`.
        """
        return forks_of(self._root, list(self._calls.values()), decode)

    def figures(
        self,
        trained: Callable[[Voice], bool] | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> TreeFigures:
        """Return statistics of the tree."""
        rows = self.rows(trained)
        spans, unique = self._count()
        calls = self._calls.values()
        return TreeFigures(
            calls=len(calls),
            spans=spans,
            unique=unique,
            flat=sum(call.end.stop for call in calls),
            merged=sum(len(row.ids) for row in rows),
            rows=len(rows),
            sampled=sum(call.end.stop - call.asked.stop for call in calls),
            trained=sum(part.stop - part.start for row in rows for part in row.trained),
            forks=dict(sorted(Counter(fork.reason.value for fork in self.forks(decode)).items())),
        )

    def pieces(self, id: str) -> list[Piece]:
        """Return the tokens of a call, split by the call that sampled them.

        :raises KeyError: if there is no such call.
        """
        return _pieces(self._root, self._calls[id], self._calls.values())

    def _listed(self, listed: bool) -> dict[str, StoredCall]:
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
            return packed(tokens.prompt), packed(tokens.sampled)
        except ValueError as error:
            raise ValueError(f"call {call.id!r}: {error}") from None

    def _insert(self, voice: Voice, path: bytes) -> TokenSpan:
        """Add a path and return its last span.

        A prompt usually continues the last call of its voice, so that path is compared first, at once.
        """
        last, span = self._last_paths.get(voice, (b"", self._root))
        size = shared_size(last, path)
        while span.parent is not None and span.stop * WIDTH > size:
            span = span.parent
        return grow(span, path[span.stop * WIDTH :])

    def _keep_path(self, voice: Voice, path: bytes, end: TokenSpan) -> None:
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


_NO_VOICE = Voice()


def _row(chain: list[StoredCall]) -> TokenRow:
    last = chain[-1]
    return TokenRow(
        call=last.id,
        voice=last.voice,
        ids=ids_of(path_ids(last.end)),
        trained=tuple(TrainedSlice(call.id, call.asked.stop, call.end.stop) for call in chain),
        logprobs=tuple(logprob for call in chain for logprob in call.logprobs),
    )


def _pieces(root: TokenSpan, call: StoredCall, calls: Collection[StoredCall]) -> list[Piece]:
    """Return the tokens of a call; adjacent spans of one call and kind are joined."""
    path = [*call.end.upwards(root)][::-1]
    samplers = _samplers(path, call, root, calls)
    pieces: list[Piece] = []
    for span in path:
        sampler = samplers.get(span)
        kind = "context" if sampler is None else "trained" if sampler.voice == call.voice else "other"
        by = "" if sampler is None else sampler.id
        ids, logprobs = ids_of(span.ids), ()
        if sampler is not None and kind == "trained":
            start = span.start - sampler.asked.stop
            logprobs = tuple(sampler.logprobs[start : start + len(ids)])
        if pieces and (pieces[-1].kind, pieces[-1].call) == (kind, by):
            before = pieces.pop()
            ids, logprobs = before.ids + ids, before.logprobs + logprobs
        pieces.append(Piece(kind=kind, call=by, ids=ids, logprobs=logprobs))
    return pieces


def _samplers(
    path: list[TokenSpan], call: StoredCall, root: TokenSpan, calls: Collection[StoredCall]
) -> dict[TokenSpan, StoredCall]:
    """Return the call that sampled each span of the path; the call itself and those it continues take precedence."""
    samplers: dict[TokenSpan, StoredCall] = {}
    on_path = set(path)
    for other in calls:
        if other.voice != call.voice and other.end in on_path:
            samplers.update(dict.fromkeys(other.end.upwards(other.asked), other))
    parents = {link.call.id: link.parent for link in links_of(root, calls)}
    step: StoredCall | None = call
    while step is not None:
        samplers.update(dict.fromkeys(step.end.upwards(step.asked), step))
        step = parents[step.id]
    return samplers
