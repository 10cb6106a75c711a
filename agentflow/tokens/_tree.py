"""The tree itself: calls go in by two doors, and everything else is a view."""

from collections import Counter
from collections.abc import Callable, Sequence

from agentflow.tokens._calls import Delivered, Figures, Fork, Piece, TokenCall, TokenRow, Voice
from agentflow.tokens._forks import forks_of
from agentflow.tokens._held import Held
from agentflow.tokens._links import lines_of, links_of
from agentflow.tokens._pieces import pieces_of
from agentflow.tokens._spans import WIDTH, Span, grow, ids_of, packed, path_ids, shared_size
from agentflow.trajectory import Tokens

__all__ = ["TokenTree"]

_TRAILS = 256
"""Voices whose last path is kept whole: of any other, the way is looked for from the root."""


class TokenTree:
    """Calls of a model, their tokens kept once."""

    def __init__(self) -> None:
        self._root = Span(None, 0, b"")
        self._calls: dict[str, Held] = {}
        self._trails: dict[Voice, tuple[bytes, Span]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, id: object) -> bool:
        return id in self._calls

    def add(self, call: TokenCall) -> None:
        """Take in a call by its whole prompt; what of it is known is found by comparing.

        :raises ValueError: if there is such a call, or its tokens do not belong together.
        """
        prompt, sampled = self._checked(call)
        at, rest = self._nearest(call.voice, prompt)
        asked = grow(at, rest)
        end = grow(asked, sampled)
        self._calls[call.id] = Held(call, asked, end)
        self._trails.pop(call.voice, None)
        self._trails[call.voice] = (prompt + sampled, end)
        if len(self._trails) > _TRAILS:
            del self._trails[next(iter(self._trails))]

    def extend(self, parent: str, id: str, tokens: Tokens) -> None:
        """Take in a call that goes on from a known one, with its voice: costs as much as what is new.

        :param parent: the call that it goes on from.
        :param tokens: its prompt is only what follows the parent's answer.
        :raises ValueError: if there is no such parent, or such a call already, or its tokens do not belong together.
        """
        if parent not in self._calls:
            raise ValueError(f"call {id!r}: there is no call {parent!r} to go on from")
        before = self._calls[parent]
        call = TokenCall(id=id, voice=before.voice, tokens=tokens, parent=parent)
        prompt, sampled = self._checked(call)
        asked = grow(before.end, prompt)
        self._calls[id] = Held(call, asked, grow(asked, sampled))

    def path(self, id: str) -> Tokens:
        """What that call read and wrote, exactly.

        :raises KeyError: if there is no such call.
        """
        return self._calls[id].tokens()

    def calls(self, trained: Callable[[Voice], bool] | None = None) -> list[TokenCall]:
        """Every call as it came, in the order in which they came: one row for each of them.

        :param trained: of which voices; by default of all.
        """
        return [
            TokenCall(id=held.id, voice=held.voice, tokens=held.tokens(), parent=held.parent)
            for held in self._calls.values()
            if trained is None or trained(held.voice)
        ]

    def rows(self, trained: Callable[[Voice], bool] | None = None) -> list[TokenRow]:
        """Calls that go on from each other in one row; each drawn token is delivered in exactly one of them.

        :param trained: of which voices; by default of all.
        """
        links = links_of(self._root, self._calls.values())
        return [_row(line) for line in lines_of(links) if trained is None or trained(line[0].voice)]

    def forks(self, decode: Callable[[Sequence[int]], str] | None = None) -> list[Fork]:
        """How each call stands to those before it, in the order in which they came.

        :param decode: tokens as text; without it, other tokens of the same text can't be told from other text.
        """
        return forks_of(self._root, list(self._calls.values()), decode)

    def figures(
        self,
        trained: Callable[[Voice], bool] | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> Figures:
        """The tree in figures."""
        rows = self.rows(trained)
        spans, unique = self._count()
        held = self._calls.values()
        return Figures(
            calls=len(held),
            spans=spans,
            unique=unique,
            flat=sum(call.end.stop for call in held),
            merged=sum(len(row.ids) for row in rows),
            rows=len(rows),
            sampled=sum(call.end.stop - call.asked.stop for call in held),
            delivered=sum(one.stop - one.start for row in rows for one in row.delivered),
            forks=dict(sorted(Counter(fork.reason.value for fork in self.forks(decode)).items())),
        )

    def pieces(self, id: str) -> list[Piece]:
        """All that a call read and wrote, by who drew it.

        :raises KeyError: if there is no such call.
        """
        return pieces_of(self._root, self._calls[id], self._calls.values())

    def _checked(self, call: TokenCall) -> tuple[bytes, bytes]:
        """Its prompt and its answer."""
        tokens = call.tokens
        if call.id in self._calls:
            raise ValueError(f"call {call.id!r} is there already")
        if len(tokens.sampled) != len(tokens.logprobs):
            drawn, told = len(tokens.sampled), len(tokens.logprobs)
            raise ValueError(f"call {call.id!r}: {drawn} drawn tokens and {told} log-probabilities")
        try:
            return packed(tokens.prompt), packed(tokens.sampled)
        except ValueError as error:
            raise ValueError(f"call {call.id!r}: {error}") from None

    def _nearest(self, voice: Voice, prompt: bytes) -> tuple[Span, bytes]:
        """A span on the way of that prompt, and what of the prompt follows it.

        Mostly a prompt goes on from what its voice said last: that is looked at first, in one comparison.
        """
        trail, span = self._trails.get(voice, (b"", self._root))
        size = shared_size(trail, prompt)
        while span.parent is not None and span.stop * WIDTH > size:
            span = span.parent
        return span, prompt[span.stop * WIDTH :]

    def _count(self) -> tuple[int, int]:
        """How many spans there are, and how many tokens they hold."""
        spans, size, todo = 0, 0, [self._root]
        while todo:
            span = todo.pop()
            spans += bool(span.ids)
            size += len(span.ids)
            todo.extend(span.children.values())
        return spans, size // WIDTH


def _row(line: list[Held]) -> TokenRow:
    last = line[-1]
    return TokenRow(
        call=last.id,
        voice=last.voice,
        ids=ids_of(path_ids(last.end)),
        delivered=tuple(Delivered(call.id, call.asked.stop, call.end.stop) for call in line),
        logprobs=tuple(logprob for call in line for logprob in call.logprobs),
    )
