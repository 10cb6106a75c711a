"""Inputs and outputs of a token tree, and their rendering for a terminal or as an HTML page."""

import html
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from agentflow._terminal import printable
from agentflow.trajectory import Episode, Tokens

if TYPE_CHECKING:
    from rich.text import Text

_STYLES = {"trained": "green", "context": "dim", "other": "blue"}
_UNLIKELY = -3.0
_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px/1.5 monospace; white-space: pre-wrap; }}
.context {{ color: #888; }}
.other {{ color: #06c; }}
.trained {{ background: rgba(0, 160, 60, var(--p)); }}
</style>
{body}
"""


class Voice(Struct, frozen=True, kw_only=True):
    """Author of a call. Calls of different voices never continue each other, even if their tokens are equal."""

    role: str = ""
    """`planner`, `verifier`, …"""
    agent: str = ""
    """Name of the agent, if there are several."""
    tools: str = ""
    """Digest of the tools offered to it."""
    episode: str = ""
    """Episode of the call."""


class TokenCall(Struct, frozen=True, kw_only=True):
    """One model call."""

    id: str
    """Id, unique in the tree."""
    voice: Voice = Voice()
    """Author of the call."""
    tokens: Tokens
    """Prompt and sampled tokens."""
    parent: str = ""
    """Id of the call it continues, if known; it chooses among several with the same tokens. Empty: derived from the tokens."""


class TrainedSlice(Struct, frozen=True):
    """The tokens of one call that a row trains."""

    call: str
    """Id of the call that sampled them."""
    start: int
    """Index of the first token in the row."""
    stop: int
    """Index after the last one."""


class TokenRow(Struct, frozen=True, kw_only=True):
    """Calls that continue each other, as one row of tokens."""

    call: str
    """Id of the last call."""
    voice: Voice
    """Author of the calls."""
    ids: tuple[int, ...]
    """All tokens, up to the end of the last call."""
    trained: tuple[TrainedSlice, ...]
    """Trained tokens, in order. Everything else is context, including tokens that another row trains."""
    logprobs: tuple[float, ...]
    """Log-probability of each trained token, in order."""

    @property
    def mask(self) -> tuple[bool, ...]:
        """True at each trained token."""
        mask = [False] * len(self.ids)
        for one in self.trained:
            mask[one.start : one.stop] = [True] * (one.stop - one.start)
        return tuple(mask)


class Piece(Struct, frozen=True, kw_only=True):
    """Consecutive tokens of a call's path with the same origin."""

    kind: Literal["context", "trained", "other"]
    """`trained`: sampled by the call or one that it continues; `other`: sampled by another voice; `context`: the rest."""
    call: str = ""
    """Id of the call that sampled them; empty for context."""
    ids: tuple[int, ...]
    """The tokens."""
    logprobs: tuple[float, ...] = ()
    """Their log-probabilities, if they are trained."""


class ForkReason(StrEnum):
    """Relation of a call to the earlier calls of its voice."""

    OPENING = "opening"
    """First call of its voice."""
    SUB_AGENT = "sub_agent"
    """First call of its voice, in an episode that another agent started."""
    APPEND = "append"
    """Continues a call that no other call had continued."""
    BRANCH = "branch"
    """Continues a call that another call had continued: parallel calls, different tool results."""
    RETRY = "retry"
    """Repeats an earlier prompt."""
    COMPACTION = "compaction"
    """Diverges after a common prefix: the history was summarised or shortened."""
    TRUNCATED = "truncated"
    """An answer cut at its token limit is changed or missing in the prompt."""
    DRIFT = "drift"
    """An answer is in the prompt as the same text in different tokens."""
    REWRITTEN = "rewritten"
    """An answer is changed or missing in the prompt."""
    AMBIGUOUS = "ambiguous"
    """Several calls sampled the tokens that the prompt continues; the call gets a row of its own."""


class CallFork(Struct, frozen=True, kw_only=True):
    """Relation of a call to earlier ones."""

    call: str
    """Id of the call."""
    reason: ForkReason
    """Kind of relation."""
    parent: str = ""
    """Id of the call it continues; empty: none."""
    left: str = ""
    """Id of the call whose answer is changed or missing in the prompt; empty: none."""
    rivals: tuple[str, ...] = ()
    """Ids of the calls it may continue, if that is ambiguous."""
    shared: int
    """Number of its first tokens that its voice had read or sampled before."""


class TreeFigures(Struct, frozen=True, kw_only=True):
    """Statistics of a token tree."""

    calls: int
    """Number of calls."""
    spans: int
    """Number of spans in the tree."""
    unique: int
    """Number of stored tokens; a shared prefix counts once."""
    flat: int
    """Number of tokens in one row per call."""
    merged: int
    """Number of tokens in the rows."""
    rows: int
    """Number of rows."""
    sampled: int
    """Number of sampled tokens."""
    trained: int
    """Number of sampled tokens that the rows train; fewer than `sampled` only if a voice is not trained."""
    forks: dict[str, int]
    """Number of calls by fork reason."""

    @property
    def saved(self) -> float:
        """Tokens of one row per call, divided by stored tokens."""
        return self.flat / self.unique if self.unique else 1.0

    @property
    def trained_fraction(self) -> float:
        """Fraction of the rows' tokens that are trained."""
        return self.trained / self.merged if self.merged else 0.0

    @property
    def coverage(self) -> float:
        """Fraction of the sampled tokens that are trained."""
        return self.trained / self.sampled if self.sampled else 1.0


def calls_of(episode: Episode, *, name: str = "", roles: Collection[str] = ("planner",)) -> list[TokenCall]:
    """Return the calls of the given roles whose tokens are known, in order.

    Truncated and unusable answers are included; an unusable answer comes before its retry. See docs/tokens.md.

    :param name: episode name, to tell the episodes of one task apart; by default the task's id.
    :param roles: roles that are trained.
    """
    known = name or episode.task.id
    calls: list[TokenCall] = []
    for exchange in episode.exchanges:
        if exchange.role in roles and exchange.tokens is not None:
            voice, id = Voice(role=exchange.role, episode=known), f"{known}/{exchange.key}"
            for number, tokens in enumerate(exchange.unusable, 1):
                calls.append(TokenCall(id=f"{id}/unusable/{number}", voice=voice, tokens=tokens))
            calls.append(TokenCall(id=id, voice=voice, tokens=exchange.tokens))
    return calls


def coloured(pieces: Sequence[Piece], decode: Callable[[Sequence[int]], str]) -> "Text":
    """Render pieces for a terminal: trained tokens green (underlined below a log-probability of -3), other voices blue.

    See docs/tokens.md.

    :param decode: converts tokens to text.
    """
    from rich.text import Text

    text = Text()
    for piece in pieces:
        style = _STYLES[piece.kind]
        if piece.kind != "trained":
            text.append(printable(decode(piece.ids)), style)
            continue
        for part, logprob in _decoded(piece, decode):
            text.append(printable(part), f"{style} underline" if logprob < _UNLIKELY else style)
    return text


def as_html(pieces: Sequence[Piece], decode: Callable[[Sequence[int]], str], *, title: str = "") -> str:
    """Render pieces as a standalone HTML page: trained tokens green, darker if likelier, log-probability as a tooltip.

    See docs/tokens.md.

    :param decode: converts tokens to text.
    """
    spans: list[str] = []
    for piece in pieces:
        if piece.kind != "trained":
            by = f' title="{html.escape(piece.call)}"' if piece.call else ""
            spans.append(f'<span class="{piece.kind}"{by}>{html.escape(printable(decode(piece.ids)))}</span>')
            continue
        for part, logprob in _decoded(piece, decode):
            depth = max(0.1, min(0.6, 0.6 + logprob / 10))
            title_text = html.escape(f"{piece.call}: {logprob:.3f}")
            spans.append(
                f'<span class="trained" style="--p:{depth:.2f}" title="{title_text}">{html.escape(printable(part))}</span>'
            )
    return _PAGE.format(title=html.escape(title), body="".join(spans))


def _decoded(piece: Piece, decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[str, float]]:
    """Yield the text and log-probability of each token; tokens that form one character are joined."""
    pending: list[int] = []
    logprob = 0.0
    for place, (id, own) in enumerate(zip(piece.ids, piece.logprobs, strict=True), 1):
        pending.append(id)
        logprob += own
        part = decode(pending)
        if not part.endswith("\N{REPLACEMENT CHARACTER}") or place == len(piece.ids):
            yield part, logprob
            pending, logprob = [], 0.0
