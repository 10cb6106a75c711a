"""Calls with letters as tokens, for readable tests."""

from collections.abc import Iterable, Sequence

from agentflow.trace import ForkReason, TokenCall, TokenRow, Tokens, TokenTree, Voice

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


def tree_of(calls: Iterable[TokenCall]) -> TokenTree:
    tree = TokenTree()
    for one in calls:
        tree.add(one)
    return tree


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
