"""Relations of calls to the earlier calls of their voice."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from agentflow.tokens._calls import CallFork, ForkReason, Voice
from agentflow.tokens._links import CallLink, StoredCall, links_of
from agentflow.tokens._spans import WIDTH, TokenSpan, ids_of, path_ids


class _Seen:
    """Everything one voice has read and sampled so far."""

    def __init__(self) -> None:
        self.spans: set[TokenSpan] = set()
        self.asked: set[TokenSpan] = set()
        self.answering: dict[TokenSpan, list[StoredCall]] = defaultdict(list)
        """Calls by the spans after which their answers begin or continue."""

    def deepest(self, call: StoredCall) -> TokenSpan | None:
        """Return the last span of the call's prompt that the voice has read or sampled."""
        step: TokenSpan | None = call.asked
        while step is not None and step not in self.spans:
            step = step.parent
        return step

    def add(self, call: StoredCall) -> None:
        """Add a call."""
        self.asked.add(call.asked)
        step: TokenSpan | None = call.end
        while step is not None and step not in self.spans:
            self.spans.add(step)
            step = step.parent
        step = call.end.parent
        if call.has_answer:
            while step is not None and step.stop >= call.asked.stop:
                self.answering[step].append(call)
                step = step.parent


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
