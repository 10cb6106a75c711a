"""What a token tree takes in and gives out."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from agentflow.trajectory import Tokens

__all__ = ["Delivered", "Figures", "Fork", "ForkReason", "Piece", "TokenCall", "TokenRow", "Voice"]


class Voice(Struct, frozen=True, kw_only=True):
    """Who reads and writes. Calls of different voices never go on from each other, even where their tokens are equal."""

    role: str = ""
    """`planner`, `verifier`, …"""
    agent: str = ""
    """Which one, where there are several."""
    tools: str = ""
    """A digest of the tools that it is offered."""
    episode: str = ""
    """The episode that it speaks in."""


class TokenCall(Struct, frozen=True, kw_only=True):
    """One call of a model."""

    id: str
    """Of its own among all calls of the tree."""
    voice: Voice = Voice()
    """Whose call it is."""
    tokens: Tokens
    """What was read and written."""
    parent: str = ""
    """The call that it goes on from, where that is known: it decides between several with the same tokens. Empty: the
    tokens tell."""


class Delivered(Struct, frozen=True):
    """The tokens of one call in a row."""

    call: str
    """The call that drew them."""
    start: int
    """The first of them, counted in the row."""
    stop: int
    """Where they end: the first that is none of them."""


class TokenRow(Struct, frozen=True, kw_only=True):
    """Calls that go on from each other, as one row of tokens."""

    call: str
    """The last of them."""
    voice: Voice
    """Whose they are."""
    ids: tuple[int, ...]
    """All that was read and written, to the end of the last call."""
    delivered: tuple[Delivered, ...]
    """What is delivered here, in order; all else is context, also what calls drew that are delivered in other rows."""
    logprobs: tuple[float, ...]
    """The log-probability of each token that is delivered here, in order."""

    @property
    def mask(self) -> tuple[bool, ...]:
        """Which of the tokens are delivered here."""
        mask = [False] * len(self.ids)
        for one in self.delivered:
            mask[one.start : one.stop] = [True] * (one.stop - one.start)
        return tuple(mask)


class Piece(Struct, frozen=True, kw_only=True):
    """Consecutive tokens of one call's path that are alike."""

    kind: Literal["context", "trained", "other"]
    """`trained`: drawn by the call, or one that it goes on from; `other`: drawn by another voice; `context`: the rest."""
    call: str = ""
    """Who drew them; empty: nobody."""
    ids: tuple[int, ...]
    """The tokens."""
    logprobs: tuple[float, ...] = ()
    """Their log-probabilities, where they are trained."""


class ForkReason(StrEnum):
    """How a call stands to those of its voice that came before it."""

    OPENING = "opening"
    """The first one of its voice."""
    SUB_AGENT = "sub_agent"
    """The first one of its voice, in an episode in which another agent had spoken."""
    APPEND = "append"
    """It goes on from a call that nothing had gone on from."""
    BRANCH = "branch"
    """It goes on from a call that another had gone on from: parallel calls, other results."""
    RETRY = "retry"
    """Its prompt was read before: the same is asked again."""
    COMPACTION = "compaction"
    """It begins anew after the first tokens: what was said was put in short, or left out."""
    TRUNCATED = "truncated"
    """An answer that was cut at its limit stands otherwise in its prompt, or not at all."""
    DRIFT = "drift"
    """An answer stands in its prompt with the same text in other tokens."""
    REWRITTEN = "rewritten"
    """An answer stands otherwise in its prompt, or not at all."""
    AMBIGUOUS = "ambiguous"
    """Several calls drew the tokens that its prompt goes on from; it is set apart."""


class Fork(Struct, frozen=True, kw_only=True):
    """How a call stands to those before it."""

    call: str
    """The call."""
    reason: ForkReason
    """Why it stands where it stands."""
    parent: str = ""
    """The call that it goes on from; empty: there is none."""
    left: str = ""
    """The call whose answer its prompt has otherwise, or not at all; empty: none."""
    rivals: tuple[str, ...] = ()
    """The calls that it may go on from, where that can't be told."""
    shared: int
    """So many of its first tokens were read or written by its voice before."""


class Figures(Struct, frozen=True, kw_only=True):
    """A token tree in figures."""

    calls: int
    """Calls."""
    spans: int
    """Pieces that the tree is made of."""
    unique: int
    """Tokens that are kept: each that several calls begin with is one."""
    flat: int
    """Tokens of one row for each call."""
    merged: int
    """Tokens of the rows."""
    rows: int
    """Rows."""
    sampled: int
    """Tokens that were drawn."""
    delivered: int
    """Those of them that are delivered; less only where a voice is not trained."""
    forks: dict[str, int]
    """How calls stand to those before them: reason -> calls."""

    @property
    def saved(self) -> float:
        """Tokens of one row for each call, over those that are kept."""
        return self.flat / self.unique if self.unique else 1.0

    @property
    def trained_fraction(self) -> float:
        """The share of the rows' tokens that is delivered."""
        return self.delivered / self.merged if self.merged else 0.0

    @property
    def delivered_fraction(self) -> float:
        """The share of the drawn tokens that is delivered."""
        return self.delivered / self.sampled if self.sampled else 1.0
