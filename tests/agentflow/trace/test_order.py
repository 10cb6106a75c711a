"""Random conversations: the rows are a function of the set of calls."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.trace import TokenCall, Tokens, TokenTree, Voice
from tests.agentflow.trace._calls import TrainedPiece, trained

LETTERS = 3
"""So few that equal tokens often meet by chance."""
VOICES = (Voice(role="planner"), Voice(role="planner", agent="sub"), Voice(role="verifier"))


def conversation(random: Random, size: int) -> list[TokenCall]:
    """Return calls that continue, branch, repeat, truncate, summarise, or alter."""
    calls: list[TokenCall] = []
    for number in range(size):
        voice = random.choice(VOICES)
        before = [one for one in calls if one.voice == voice]
        prompt = _prompt(random, random.choice(before) if before and random.random() < 0.9 else None)
        sampled = _letters(random, 0, 3)
        logprobs = tuple(random.choice((-0.5, -1.0)) for _ in sampled)
        told = Tokens(prompt=prompt, sampled=sampled, logprobs=logprobs)
        calls.append(TokenCall(id=f"c{number}", voice=voice, tokens=told))
    return calls


def _letters(random: Random, least: int, most: int) -> tuple[int, ...]:
    return tuple(random.randrange(LETTERS) for _ in range(random.randint(least, most)))


def _prompt(random: Random, before: TokenCall | None) -> tuple[int, ...]:
    if before is None:
        return _letters(random, 0, 4)
    told = before.tokens
    whole = told.prompt + told.sampled
    match random.choice(("on", "on", "on", "again", "cut", "altered")):
        case "on":
            return whole + _letters(random, 0, 3)
        case "again":
            return told.prompt
        case "cut":
            return whole[: random.randint(0, len(whole))]
        case _:
            return whole[: random.randint(0, len(whole))] + _letters(random, 1, 3)


@pytest.mark.promise("tokens:once", "tokens:order", "tokens:exact")
@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 24))
def test_each_sampled_token_is_trained_once_after_its_exact_prompt_in_any_order(seed: int, size: int) -> None:
    random = Random(seed)
    calls = conversation(random, size)
    wanted = Counter(
        TrainedPiece(one.id, one.tokens.prompt, one.tokens.sampled, one.tokens.logprobs)
        for one in calls
        if one.tokens.sampled
    )
    first = TokenTree(calls)
    assert Counter(trained(first)) == wanted
    for _ in range(3):
        shuffled = random.sample(calls, len(calls))
        tree = TokenTree(shuffled)
        assert Counter(trained(tree)) == wanted
        assert [*tree.rows().items()] == [*first.rows().items()], "the rows themselves are the same, too"
        assert {one.id: one for one in tree.calls()} == {one.id: one for one in calls}
        figures = tree.figures()
        assert figures.trained == figures.sampled
        assert (figures.unique, figures.spans) == (first.figures().unique, first.figures().spans)


@pytest.mark.promise("tokens:voices")
@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_voices_never_continue_each_other(seed: int) -> None:
    calls = conversation(Random(seed), 16)
    voice_of = {one.id: one.voice for one in calls}
    tree = TokenTree(calls)
    for last, row in tree.rows().items():
        assert {voice_of[piece.call] for piece in row if piece.call} == {tree.voice(last)}
    for fork in tree.forks():
        assert not fork.parent or voice_of[fork.parent] == voice_of[fork.call]


@pytest.mark.promise("tokens:exact")
@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_add_and_extend_build_the_same_tree(seed: int) -> None:
    random = Random(seed)
    by_prompt, by_parent = TokenTree(), TokenTree()
    by_prompt.add(TokenCall(id="0", tokens=Tokens(prompt=(0,), sampled=(1,), logprobs=(-1.0,))))
    by_parent.add(TokenCall(id="0", tokens=Tokens(prompt=(0,), sampled=(1,), logprobs=(-1.0,))))
    for number in range(1, 16):
        parent = str(random.randrange(number))
        new, sampled = _letters(random, 0, 3), _letters(random, 1, 3)
        told = Tokens(prompt=new, sampled=sampled, logprobs=(-1.0,) * len(sampled))
        by_parent.extend(parent, str(number), told)
        whole = by_prompt.path(parent)
        prompt = whole.prompt + whole.sampled + new
        by_prompt.add(
            TokenCall(
                id=str(number),
                parent=parent,
                tokens=Tokens(prompt=prompt, sampled=sampled, logprobs=told.logprobs),
            )
        )
    assert by_parent.calls() == by_prompt.calls()
    assert by_parent.rows() == by_prompt.rows()
    assert by_parent.forks() == by_prompt.forks()
