"""Adding calls to the tree, and its cost."""

import gc
import sys
from collections.abc import Callable

import pytest

from agentflow.trace import TokenCall, Tokens, TokenTree, Voice
from tests.agentflow.trace._calls import OTHER, PLANNER, call, rows, tokens


@pytest.mark.promise("tokens:exact")
def test_a_call_is_returned_exactly() -> None:
    told = Tokens(
        prompt=(1, 2_000_000_000, 3),
        sampled=(4, 5),
        logprobs=(-0.25, -1e-9),
        version="7",
        versions=(("7", 0, 1), ("8", 1, 2)),
        finish="length",
    )
    tree = TokenTree([TokenCall(id="1", voice=PLANNER, tokens=told)])
    assert tree.path("1") == told
    assert tree.calls() == [TokenCall(id="1", voice=PLANNER, tokens=told)]
    assert ("1" in tree, "2" in tree, len(tree)) == (True, False, 1)


@pytest.mark.promise("tokens:exact")
def test_a_call_may_be_added_by_its_parent_or_with_its_whole_prompt() -> None:
    whole = TokenTree([call("1", "ab", "cd"), call("2", "abcdef", "gh")])
    by_parent = TokenTree([call("1", "ab", "cd")])
    by_parent.extend("1", "2", tokens("ef", "gh"))
    assert by_parent.path("2") == whole.path("2")
    assert rows(by_parent) == rows(whole) == ["ab[cd]ef[gh]"]
    assert by_parent.figures() == whole.figures()


@pytest.mark.promise("tokens:exact", "tokens:once")
def test_the_tokens_of_an_unlisted_call_are_context() -> None:
    tree = TokenTree()
    tree.add(call("1", "ab", "cd"), listed=False)
    tree.extend("1", "2", tokens("ef", "gh"))
    assert ("1" in tree, rows(tree)) == (False, ["abcdef[gh]"])
    assert tree.path("2") == tokens("abcdef", "gh")
    with pytest.raises(ValueError, match="already exists"):
        tree.add(call("1", "x", "y"))


@pytest.mark.promise("tokens:exact")
def test_shared_tokens_are_stored_once() -> None:
    figures = TokenTree([call("1", "system ask", "x"), call("2", "system tell", "y")]).figures()
    assert (figures.unique, figures.flat) == (len("system ") + 4 + 5, 11 + 12)
    assert figures.saved == 23 / 16


@pytest.mark.promise("tokens:exact")
def test_eight_sub_agents_on_one_prompt_share_it() -> None:
    calls = [call(str(n), "p" * 1000, f"{n}" * 20, Voice(agent=str(n))) for n in range(8)]
    figures = TokenTree(calls).figures()
    assert (figures.flat, figures.unique, figures.rows) == (8 * 1020, 1000 + 8 * 20, 8)


@pytest.mark.promise("tokens:exact")
def test_hundreds_of_voices_that_take_turns_are_kept_apart() -> None:
    voices = [Voice(episode=str(number)) for number in range(300)]
    tree = TokenTree(call(f"{n}", "ask", chr(1000 + n), voice) for n, voice in enumerate(voices))
    for n, voice in enumerate(voices):
        tree.add(call(f"{n}/2", f"ask{chr(1000 + n)}more", "x", voice))
    figures = tree.figures()
    assert (figures.rows, figures.unique, figures.forks) == (
        300,
        3 + 300 * 6,
        {"append": 300, "opening": 300},
    )


@pytest.mark.promise("tokens:exact")
def test_a_call_that_ends_inside_of_another_splits_it() -> None:
    tree = TokenTree([call("1", "abcdef", "ghij"), call("2", "abc", "d"), call("3", "abcdefgh", "x")])
    for one in tree.calls():
        assert tree.path(one.id) == one.tokens
    assert rows(tree) == ["abc[d]ef[ghij]", "abcdefgh[x]"]


@pytest.mark.promise("tokens:voices")
def test_only_rows_of_trained_voices_are_given() -> None:
    tree = TokenTree([call("1", "ab", "c"), call("2", "ab", "d", OTHER)])
    assert [*tree.rows(lambda voice: voice.role == "planner")] == ["1"]
    assert [one.id for one in tree.calls(lambda voice: voice.role == "verifier")] == ["2"]
    figures = tree.figures(lambda voice: voice.role == "planner")
    assert (figures.sampled, figures.trained, figures.coverage) == (2, 1, 0.5)
    assert figures.trained_fraction == 1 / 3


@pytest.mark.promise("tokens:exact")
def test_an_empty_tree_has_nothing() -> None:
    tree = TokenTree()
    assert (tree.rows(), tree.calls(), tree.forks()) == ({}, [], [])
    figures = tree.figures()
    assert (figures.unique, figures.saved, figures.trained_fraction, figures.coverage) == (
        0,
        1.0,
        0.0,
        1.0,
    )


@pytest.mark.promise("tokens:bad")
@pytest.mark.parametrize(
    ("told", "why"),
    [
        (Tokens(prompt=(1,), sampled=(2, 3), logprobs=(-1.0,)), "2 sampled tokens and 1 log-probabilities"),
        (Tokens(prompt=(-1,), sampled=(), logprobs=()), "not a token id: "),
        (Tokens(prompt=(2**40,), sampled=(), logprobs=()), "not a token id: "),
    ],
    ids=["too few log-probabilities", "negative", "too large"],
)
def test_an_invalid_call_is_refused_in_one_line(told: Tokens, why: str) -> None:
    tree = TokenTree([call("1", "ab", "c")])
    before = tree.figures()
    with pytest.raises(ValueError, match=f"^call 'new': {why}") as refused:
        tree.add(TokenCall(id="new", voice=PLANNER, tokens=told))
    assert "\n" not in str(refused.value)
    assert tree.figures() == before


@pytest.mark.promise("tokens:bad")
def test_a_duplicate_call_or_an_unknown_parent_is_refused() -> None:
    tree = TokenTree([call("1", "ab", "c")])
    with pytest.raises(ValueError, match=r"^call '1' already exists$"):
        tree.add(call("1", "xy", "z"))
    with pytest.raises(ValueError, match=r"^call '2' continues '7', which is missing$"):
        tree.extend("7", "2", tokens("d", "e"))
    assert rows(tree) == ["ab[c]"]


def work(do: Callable[[], object]) -> int:
    """Count function calls."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    # Finalisers of other tests must not be counted.
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def chain(size: int) -> TokenTree:
    tree = TokenTree([call("0", "begin", "x")])
    for turn in range(size):
        tree.extend(str(turn), str(turn + 1), tokens("u", "s"))
    return tree


def star(size: int) -> TokenTree:
    tree = TokenTree([call("0", "begin", "x")])
    for leaf in range(size):
        tree.extend("0", str(leaf + 1), tokens(chr(1000 + leaf), "s"))
    return tree


@pytest.mark.promise("tokens:linear")
@pytest.mark.parametrize("shape", [chain, star])
def test_adding_costs_time_proportional_to_the_new_tokens(shape: Callable[[int], TokenTree]) -> None:
    small, large = (work(lambda size=size: shape(size)) for size in (50, 200))
    assert large < 4.1 * small
    few, many = shape(50), shape(200)
    for view in (TokenTree.rows, TokenTree.forks, TokenTree.figures):
        assert work(lambda view=view: view(many)) < 4.5 * work(lambda view=view: view(few))


@pytest.mark.promise("tokens:linear")
def test_adding_a_continued_prompt_costs_the_same_at_any_length() -> None:
    def costs(turns: int) -> int:
        tree, said = TokenTree([call("0", "begin", "x")]), "beginx"
        for turn in range(turns):
            tree.add(call(str(turn + 1), said + "u", "s"))
            said += "us"
        last = call("last", said + "u", "s")
        return work(lambda: tree.add(last))

    assert costs(200) == costs(20)


@pytest.mark.promise("tokens:linear")
def test_ten_thousand_turns_and_ten_thousand_leaves_are_supported() -> None:
    turns = chain(10_000)
    [row] = turns.rows().values()
    assert sum(piece.kind == "trained" for piece in row) == 10_001
    assert len(turns.path("10000").prompt) == len("beginx") + 2 * 10_000 - 1
    leaves = star(10_000)
    figures = leaves.figures()
    assert (figures.rows, figures.trained, figures.unique) == (10_000, 10_001, len("beginx") + 20_000)
