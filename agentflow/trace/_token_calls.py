"""Inputs and outputs of a token tree."""

from collections.abc import Collection
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from agentflow.trace._node import Tokens
from agentflow.trace._task import Episode


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

    kind: Literal["context", "trained", "left_out", "other"]
    """`trained`: sampled by the call or one that it continues; `left_out`: likewise, but not in the loss; `other`: sampled
    by another voice; `context`: the rest.
    """
    call: str = ""
    """Id of the call that sampled them; empty for context."""
    ids: tuple[int, ...]
    """The tokens."""
    logprobs: tuple[float, ...] = ()
    """Their log-probabilities, if they are trained or left out."""
    trainer_logprobs: tuple[float, ...] = ()
    """Their log-probabilities in the trainer's loss, before the step changed the weights; empty if unknown."""
    version: str = ""
    """Version of the weights that sampled them; empty if unknown."""
    advantage: float | None = None
    """Their advantage; `None` if unknown."""
    texts: tuple[str, ...] = ()
    """Text of each token; empty without a tokenizer."""

    @property
    def is_sampled(self) -> bool:
        """True if the call, or one that it continues, sampled them."""
        return self.kind in ("trained", "left_out")


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
