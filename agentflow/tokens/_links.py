"""Which call goes on from which: a function of the set of calls."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from msgspec import Struct

from agentflow.tokens._calls import Voice
from agentflow.tokens._held import Held
from agentflow.tokens._spans import Span

__all__ = ["Link", "lines_of", "links_of"]


class Link(Struct, frozen=True):
    """What a call goes on from."""

    call: Held
    """The call."""
    parent: Held | None = None
    """The call that it goes on from."""
    rivals: tuple[Held, ...] = ()
    """Several that it may go on from, where that can't be told."""


def links_of(root: Span, calls: Collection[Held]) -> list[Link]:
    """Where each call comes from; parents before children, siblings by their tokens."""
    asked: dict[Span, list[Held]] = defaultdict(list)
    ended: dict[Span, list[Held]] = defaultdict(list)
    for call in calls:
        asked[call.asked].append(call)
        if call.drew:
            ended[call.end].append(call)
    above: dict[Voice, list[list[Held]]] = defaultdict(list)
    found: list[Link] = []
    for span, leaving in _walk(root):
        for voice, group in _by_voice(ended.get(span, ())).items():
            if leaving:
                above[voice].pop()
            else:
                above[voice].append(group)
        if not leaving and span in asked:
            found += [_link(call, above[call.voice]) for call in sorted(asked[span], key=_order)]
    return found


def lines_of(links: list[Link]) -> list[list[Held]]:
    """Calls that go on from each other, each in one line: a call goes on in the line of its parent if it is the first to."""
    heirs: dict[str, Held] = {}
    begins: list[Held] = []
    for link in links:
        parent = link.parent
        if parent is None or parent.id in heirs or not link.call.drew:
            begins.append(link.call)
        else:
            heirs[parent.id] = link.call
    lines: list[list[Held]] = []
    for call in begins:
        if call.drew:
            line = [call]
            while (heir := heirs.get(line[-1].id)) is not None:
                line.append(heir)
            lines.append(line)
    return lines


def _walk(root: Span) -> Iterator[tuple[Span, bool]]:
    """Every span twice: when it is entered, and when all below it was seen."""
    todo = [(root, False)]
    while todo:
        span, leaving = todo.pop()
        yield span, leaving
        if not leaving:
            todo.append((span, True))
            todo += [(span.children[first], False) for first in sorted(span.children, reverse=True)]


def _by_voice(calls: Collection[Held]) -> dict[Voice, list[Held]]:
    groups: dict[Voice, list[Held]] = defaultdict(list)
    for call in calls:
        groups[call.voice].append(call)
    return groups


def _link(call: Held, above: list[list[Held]]) -> Link:
    if not above:
        return Link(call)
    nearest = above[-1]
    if len(nearest) == 1:
        return Link(call, nearest[0])
    named = next((one for one in nearest if one.id == call.parent), None)
    return Link(call, named) if named is not None else Link(call, None, tuple(sorted(nearest, key=_order)))


def _order(call: Held) -> tuple[int, tuple[float, ...], str, str]:
    return call.order
