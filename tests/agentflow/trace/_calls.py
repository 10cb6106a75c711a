"""Calls with letters as tokens, for readable tests."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentflow.trace import ForkReason, TokenRow, Tokens, TokenTree, Voice

PLANNER = Voice(role="planner")
OTHER = Voice(role="verifier")


class Made(NamedTuple):
    """A call, as the tree adds it."""

    id: str
    tokens: Tokens
    voice: Voice = PLANNER
    parent: str = ""


def tokens(prompt: str, sampled: str, *, logprob: float = -0.5, finish: str = "stop") -> Tokens:
    return Tokens(
        prompt=tuple(map(ord, prompt)),
        sampled=tuple(map(ord, sampled)),
        logprobs=tuple(logprob - place for place in range(len(sampled))),
        finish=finish,
    )


def call(
    id: str,
    prompt: str,
    sampled: str,
    voice: Voice = PLANNER,
    *,
    parent: str = "",
    logprob: float = -0.5,
    finish: str = "stop",
) -> Made:
    return Made(id, tokens(prompt, sampled, logprob=logprob, finish=finish), voice, parent)


def tree_of(calls: Iterable[Made]) -> TokenTree:
    tree = TokenTree()
    for one in calls:
        tree.add(*one)
    return tree


def made(tree: TokenTree) -> dict[str, Made]:
    """Return the calls of a tree by id."""
    return {one.id: Made(one.id, one.tokens, one.voice, one.parent) for one in tree.calls()}


def text(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def shown(row: TokenRow) -> str:
    """Render a row with its trained parts in brackets."""
    said = list(text(row.ids))
    for one in row.trained:
        said[one.start] = f"[{said[one.start]}"
        said[one.stop - 1] += "]"
    return "".join(said)


def rows(tree: TokenTree) -> list[str]:
    return sorted(map(shown, tree.rows()))


def reasons(tree: TokenTree) -> list[ForkReason]:
    return [fork.reason for fork in tree.forks(text)]
