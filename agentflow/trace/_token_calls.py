"""Inputs and outputs of a token tree."""

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from agentflow.trace._node import AnswerTokens, Tokens, tokens_of
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


def calls_of_answer(id: str, answer: AnswerTokens, voice: Voice) -> Iterator[TokenCall]:
    """Yield the calls that led to an answer; see `tokens_of`. Unusable ones are `ID/unusable/1`, …

    See docs/tokens.md.
    """
    for number, tokens in enumerate(tokens_of(answer), 1):
        name = f"{id}/unusable/{number}" if number <= len(answer.unusable) else id
        yield TokenCall(id=name, voice=voice, tokens=tokens)


def calls_of(episode: Episode, *, name: str = "", roles: Collection[str] = ("planner",)) -> list[TokenCall]:
    """Return the calls of the given roles whose tokens are known, in order.

    Truncated and unusable answers are included; an unusable answer comes before its retry. See docs/tokens.md.

    :param name: episode name, to tell the episodes of one task apart; by default the task's id.
    :param roles: roles that are trained.
    """
    name = name or episode.task.id
    return [
        call
        for exchange in episode.exchanges
        if exchange.role in roles
        for call in calls_of_answer(
            f"{name}/{exchange.key}", exchange, Voice(role=exchange.role, episode=name)
        )
    ]
