"""The tokens of one call's path by who drew them."""

from collections.abc import Collection

from agentflow.tokens._calls import Piece
from agentflow.tokens._held import Held
from agentflow.tokens._links import links_of
from agentflow.tokens._spans import Span, ids_of

__all__ = ["pieces_of"]


def pieces_of(root: Span, call: Held, calls: Collection[Held]) -> list[Piece]:
    """From the root to the end of that call; spans of one call and kind are one piece."""
    path = _spans(root, call.end)
    drawn = _drawn(path, call, root, calls)
    pieces: list[Piece] = []
    for span in path:
        held = drawn.get(span)
        kind = "context" if held is None else "trained" if held.voice == call.voice else "other"
        by = "" if held is None else held.id
        ids, told = ids_of(span.ids), ()
        if held is not None and kind == "trained":
            start = span.start - held.asked.stop
            told = tuple(held.logprobs[start : start + len(ids)])
        if pieces and (pieces[-1].kind, pieces[-1].call) == (kind, by):
            before = pieces.pop()
            ids, told = before.ids + ids, before.logprobs + told
        pieces.append(Piece(kind=kind, call=by, ids=ids, logprobs=told))
    return pieces


def _drawn(path: list[Span], call: Held, root: Span, calls: Collection[Held]) -> dict[Span, Held]:
    """Who drew each span of the path: the call and those that it goes on from before all others."""
    drawn: dict[Span, Held] = {}
    on_path = set(path)
    for other in calls:
        if other.voice != call.voice and other.end in on_path:
            drawn.update(dict.fromkeys(_spans(other.asked, other.end), other))
    parents = {link.call.id: link.parent for link in links_of(root, calls)}
    step: Held | None = call
    while step is not None:
        drawn.update(dict.fromkeys(_spans(step.asked, step.end), step))
        step = parents[step.id]
    return drawn


def _spans(above: Span, end: Span) -> list[Span]:
    """The spans below `above`, down to `end`."""
    spans: list[Span] = []
    step: Span | None = end
    while step is not None and step is not above:
        spans.append(step)
        step = step.parent
    return spans[::-1]
