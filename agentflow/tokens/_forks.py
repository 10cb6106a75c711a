"""How calls stand to those of their voice that came before them."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from agentflow.tokens._calls import Fork, ForkReason, Voice
from agentflow.tokens._held import Held
from agentflow.tokens._links import Link, links_of
from agentflow.tokens._spans import WIDTH, Span, ids_of, path_ids

__all__ = ["forks_of"]


class _Seen:
    """What one voice has read and written so far."""

    def __init__(self) -> None:
        self.spans: set[Span] = set()
        self.asked: set[Span] = set()
        self.answering: dict[Span, list[Held]] = defaultdict(list)
        """Spans after which an answer begins or goes on -> the calls that it is of."""

    def deepest(self, call: Held) -> Span | None:
        """The last span of the call's prompt that the voice has read or written; `None`: none."""
        step: Span | None = call.asked
        while step is not None and step not in self.spans:
            step = step.parent
        return step

    def take(self, call: Held) -> None:
        """The call is one of those before, from now on."""
        self.asked.add(call.asked)
        step: Span | None = call.end
        while step is not None and step not in self.spans:
            self.spans.add(step)
            step = step.parent
        step = call.end.parent
        if call.drew:
            while step is not None and step.stop >= call.asked.stop:
                self.answering[step].append(call)
                step = step.parent


def forks_of(root: Span, calls: Sequence[Held], decode: Callable[[Sequence[int]], str] | None) -> list[Fork]:
    """How each call stands to those before it.

    :param calls: in the order in which they came.
    """
    links = {link.call.id: link for link in links_of(root, calls)}
    seen: dict[Voice, _Seen] = {}
    agents: dict[str, set[str]] = defaultdict(set)
    continued: set[str] = set()
    forks: list[Fork] = []
    for call in calls:
        voice, link = call.voice, links[call.id]
        spoken = agents[voice.episode]
        if voice not in seen:
            reason = ForkReason.SUB_AGENT if spoken - {voice.agent} else ForkReason.OPENING
            seen[voice] = _Seen()
            forks.append(Fork(call=call.id, reason=reason, shared=0))
        else:
            forks.append(
                _fork(link, seen[voice], link.parent is not None and link.parent.id in continued, decode)
            )
        spoken.add(voice.agent)
        seen[voice].take(call)
        if link.parent is not None:
            continued.add(link.parent.id)
    return forks


def _fork(link: Link, seen: _Seen, continued: bool, decode: Callable[[Sequence[int]], str] | None) -> Fork:
    call, parent = link.call, link.parent
    deepest = seen.deepest(call)
    left = _left(link, seen, deepest) if deepest is not None else []
    lost: Held | None = None
    if link.rivals:
        reason = ForkReason.AMBIGUOUS
    elif call.asked in seen.asked:
        reason = ForkReason.RETRY
    elif left:
        reason, lost = _lost(call, left, decode)
    elif parent is not None:
        reason = ForkReason.BRANCH if continued else ForkReason.APPEND
    else:
        reason = ForkReason.RETRY if deepest is call.asked else ForkReason.COMPACTION
    return Fork(
        call=call.id,
        reason=reason,
        parent="" if parent is None else parent.id,
        left="" if lost is None else lost.id,
        rivals=tuple(rival.id for rival in link.rivals),
        shared=0 if deepest is None else deepest.stop,
    )


def _left(link: Link, seen: _Seen, deepest: Span) -> list[Held]:
    """Calls after the parent whose answers the prompt has otherwise, or not at all."""
    after = 0 if link.parent is None else link.parent.end.stop
    if deepest is link.call.asked:
        return []
    return [other for other in seen.answering.get(deepest, ()) if other.asked.stop >= after]


def _lost(
    call: Held, left: list[Held], decode: Callable[[Sequence[int]], str] | None
) -> tuple[ForkReason, Held]:
    """Why an answer is not what follows in the prompt, and whose."""
    if decode is not None:
        prompt = path_ids(call.asked)
        for other in left:
            said = decode(ids_of(path_ids(other.end, other.asked)))
            if decode(ids_of(prompt[other.asked.stop * WIDTH :])).startswith(said):
                return ForkReason.DRIFT, other
    cut = next((other for other in left if other.finish == "length"), None)
    return (ForkReason.REWRITTEN, left[0]) if cut is None else (ForkReason.TRUNCATED, cut)
