"""Calls with letters as tokens, for readable tests."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentflow.trace import ForkReason, Piece, TokenCall, Tokens, TokenTree, Voice

PLANNER = Voice(role="planner")
OTHER = Voice(role="verifier")


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
) -> TokenCall:
    told = tokens(prompt, sampled, logprob=logprob, finish=finish)
    return TokenCall(id=id, voice=voice, tokens=told, parent=parent)


def text(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def shown(row: Iterable[Piece]) -> str:
    """Render a row with its trained pieces in brackets."""
    return "".join(f"[{text(piece.ids)}]" if piece.kind == "trained" else text(piece.ids) for piece in row)


class TrainedPiece(NamedTuple):
    """Tokens that a row trains."""

    call: str
    read: tuple[int, ...]
    """All tokens before them."""
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def trained(tree: TokenTree) -> list[TrainedPiece]:
    """Return the trained tokens of all rows."""
    found: list[TrainedPiece] = []
    for row in tree.rows().values():
        read: tuple[int, ...] = ()
        for piece in row:
            if piece.kind == "trained":
                found.append(TrainedPiece(piece.call, read, piece.ids, piece.logprobs))
            read += piece.ids
    return found


def rows(tree: TokenTree) -> list[str]:
    return sorted(map(shown, tree.rows().values()))


def reasons(tree: TokenTree) -> list[ForkReason]:
    return [fork.reason for fork in tree.forks(text)]
