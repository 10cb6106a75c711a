"""Relations of calls, and the resulting rows."""

import pytest

from agentflow.trace import ForkReason, TokenCall, TokenTree, Voice
from tests.agentflow.trace._calls import OTHER, PLANNER, call, reasons, rows

R = ForkReason

CASES: dict[str, tuple[list[TokenCall], list[ForkReason], list[str]]] = {
    "one call": ([call("1", "ab", "c")], [R.OPENING], ["ab[c]"]),
    "turns": (
        [call("1", "a", "b"), call("2", "abc", "d"), call("3", "abcde", "f")],
        [R.OPENING, R.APPEND, R.APPEND],
        ["a[b]c[d]e[f]"],
    ),
    "an answer at once after an answer": (
        [call("1", "a", "b"), call("2", "ab", "c")],
        [R.OPENING, R.APPEND],
        ["a[b][c]"],
    ),
    "parallel calls": (
        [call("1", "a", "b"), call("2", "abx", "d"), call("3", "aby", "d")],
        [R.OPENING, R.APPEND, R.BRANCH],
        ["a[b]x[d]", "aby[d]"],
    ),
    "branches that share the beginning of a result": (
        [call("1", "a", "b"), call("2", "ab<x", "d"), call("3", "ab<y", "e"), call("4", "ab<yez", "f")],
        [R.OPENING, R.APPEND, R.BRANCH, R.APPEND],
        ["a[b]<x[d]", "ab<y[e]z[f]"],
    ),
    "asked again": (
        [call("1", "a", "b"), call("2", "a", "c")],
        [R.OPENING, R.RETRY],
        ["a[b]", "a[c]"],
    ),
    "asked again, drawn alike": (
        [call("1", "a", "bc"), call("2", "a", "bc", logprob=-2)],
        [R.OPENING, R.RETRY],
        ["a[bc]", "a[bc]"],
    ),
    "asked again, one is the beginning of the other": (
        [call("1", "a", "bcd"), call("2", "a", "b")],
        [R.OPENING, R.RETRY],
        ["a[bcd]", "a[b]"],
    ),
    "asked again in the second turn": (
        [call("1", "a", "b"), call("2", "abc", "d"), call("3", "abc", "e"), call("4", "abcef", "g")],
        [R.OPENING, R.APPEND, R.RETRY, R.APPEND],
        ["a[b]c[d]", "abc[e]f[g]"],
    ),
    "asked again from an earlier place": (
        [call("1", "abc", "d"), call("2", "ab", "x")],
        [R.OPENING, R.RETRY],
        ["ab[x]", "abc[d]"],
    ),
    "drawn again from within an answer": (
        [call("1", "a", "bcd"), call("2", "abc", "x")],
        [R.OPENING, R.RETRY],
        ["a[bcd]", "abc[x]"],
    ),
    "goes on after asking again, by other tokens": (
        [call("1", "a", "b"), call("2", "a", "c"), call("3", "acx", "d")],
        [R.OPENING, R.RETRY, R.APPEND],
        ["a[b]", "a[c]x[d]"],
    ),
    "goes on from one that begins as another": (
        [call("1", "a", "bcd"), call("2", "a", "b"), call("3", "abcx", "e")],
        [R.OPENING, R.RETRY, R.APPEND],
        ["a[b]cx[e]", "a[bcd]"],
    ),
    "put in short": (
        [call("1", "sys:q", "b"), call("2", "sys:qbr", "c"), call("3", "sys:short", "d")],
        [R.OPENING, R.APPEND, R.COMPACTION],
        ["sys:q[b]r[c]", "sys:short[d]"],
    ),
    "put in short with nothing in common": (
        [call("1", "a", "b"), call("2", "xyz", "d")],
        [R.OPENING, R.COMPACTION],
        ["a[b]", "xyz[d]"],
    ),
    "put in short, and on": (
        [call("1", "sq", "b"), call("2", "st", "d"), call("3", "stde", "f")],
        [R.OPENING, R.COMPACTION, R.APPEND],
        ["sq[b]", "st[d]e[f]"],
    ),
    "a sub-agent": (
        [call("1", "a", "b", Voice(agent="main")), call("2", "abc", "d", Voice(agent="sub"))],
        [R.OPENING, R.SUB_AGENT],
        ["a[b]", "abc[d]"],
    ),
    "another role": (
        [call("1", "a", "b"), call("2", "abc", "d", OTHER)],
        [R.OPENING, R.OPENING],
        ["a[b]", "abc[d]"],
    ),
    "other tools": (
        [call("1", "a", "b", Voice(tools="x")), call("2", "abc", "d", Voice(tools="y"))],
        [R.OPENING, R.OPENING],
        ["a[b]", "abc[d]"],
    ),
    "another episode of the group": (
        [call("1", "a", "b", Voice(episode="1")), call("2", "abc", "d", Voice(episode="2", agent="x"))],
        [R.OPENING, R.OPENING],
        ["a[b]", "abc[d]"],
    ),
    "both voices go on, each from its own": (
        [
            call("1", "a", "b"),
            call("2", "a", "b", OTHER),
            call("3", "abc", "d"),
            call("4", "abc", "d", OTHER),
        ],
        [R.OPENING, R.OPENING, R.APPEND, R.APPEND],
        ["a[b]c[d]", "a[b]c[d]"],
    ),
    "an answer that was cut goes on as it was": (
        [call("1", "a", "bc", finish="length"), call("2", "abc.d", "e")],
        [R.OPENING, R.APPEND],
        ["a[bc].d[e]"],
    ),
    "an answer that was cut is left out": (
        [call("1", "a", "bc", finish="length"), call("2", "a.d", "e")],
        [R.OPENING, R.TRUNCATED],
        ["a.d[e]", "a[bc]"],
    ),
    "an answer that was cut stands in part": (
        [call("1", "a", "bcd", finish="length"), call("2", "abx", "e")],
        [R.OPENING, R.TRUNCATED],
        ["a[bcd]", "abx[e]"],
    ),
    "thoughts are left out": (
        [call("1", "a", "<t>b"), call("2", "abc", "d")],
        [R.OPENING, R.REWRITTEN],
        ["a[<t>b]", "abc[d]"],
    ),
    "the second answer is altered": (
        [call("1", "a", "b"), call("2", "abc", "de"), call("3", "abcdx", "f")],
        [R.OPENING, R.APPEND, R.REWRITTEN],
        ["a[b]c[de]", "abcdx[f]"],
    ),
    "an empty answer": (
        [call("1", "a", ""), call("2", "a", "b"), call("3", "abc", "")],
        [R.OPENING, R.RETRY, R.APPEND],
        ["a[b]"],
    ),
    "only empty answers": ([call("1", "a", ""), call("2", "a", "")], [R.OPENING, R.RETRY], []),
    "an empty prompt": (
        [call("1", "", "ab"), call("2", "abc", "d")],
        [R.OPENING, R.APPEND],
        ["[ab]c[d]"],
    ),
    "several calls drew what is gone on from": (
        [call("1", "a", "b"), call("2", "a", "b", logprob=-3), call("3", "abc", "d")],
        [R.OPENING, R.RETRY, R.AMBIGUOUS],
        ["a[b]", "a[b]", "abc[d]"],
    ),
    "several drew it, from different places on": (
        [call("1", "a", "bc"), call("2", "ab", "c"), call("3", "abcd", "e")],
        [R.OPENING, R.RETRY, R.AMBIGUOUS],
        ["a[bc]", "ab[c]", "abcd[e]"],
    ),
    "the parent is named": (
        [call("1", "a", "b"), call("2", "a", "b", logprob=-3), call("3", "abc", "d", parent="2")],
        [R.OPENING, R.RETRY, R.APPEND],
        ["a[b]", "a[b]c[d]"],
    ),
    "a name that is none of those that can be": (
        [call("1", "a", "b"), call("2", "a", "b", logprob=-3), call("3", "abc", "d", parent="9")],
        [R.OPENING, R.RETRY, R.AMBIGUOUS],
        ["a[b]", "a[b]", "abc[d]"],
    ),
    "one that is set apart is gone on from": (
        [call("1", "a", "b"), call("2", "a", "b"), call("3", "abc", "d"), call("4", "abcde", "f")],
        [R.OPENING, R.RETRY, R.AMBIGUOUS, R.APPEND],
        ["a[b]", "a[b]", "abc[d]e[f]"],
    ),
    "two with empty text and different calls": (
        [call("1", "a", "(delete)"), call("2", "a", "(search)"), call("3", "a(search)r", "z")],
        [R.OPENING, R.RETRY, R.APPEND],
        ["a[(delete)]", "a[(search)]r[z]"],
    ),
}


@pytest.mark.promise("tokens:forks", "tokens:once")
@pytest.mark.parametrize("case", CASES)
def test_calls_are_distinguished_and_trained_once(case: str) -> None:
    calls, why, delivered = CASES[case]
    tree = TokenTree(calls)
    assert reasons(tree) == why
    assert rows(tree) == sorted(delivered)
    for one in calls:
        assert tree.path(one.id) == one.tokens


@pytest.mark.promise("tokens:forks")
def test_a_fork_names_the_changed_answer_and_the_shared_prefix() -> None:
    tree = TokenTree([call("1", "ab", "cd", finish="length"), call("2", "abcx", "e")])
    _, fork = tree.forks()
    assert (fork.call, fork.left, fork.parent, fork.shared) == ("2", "1", "", 3)
    assert tree.figures().forks == {"opening": 1, "truncated": 1}


@pytest.mark.promise("tokens:ambiguous")
def test_an_ambiguous_call_names_its_possible_parents() -> None:
    calls, _, _ = CASES["several calls drew what is gone on from"]
    fork = TokenTree(calls).forks()[-1]
    assert (fork.rivals, fork.parent) == (("2", "1"), "")


@pytest.mark.promise("tokens:forks")
def test_the_same_text_in_other_tokens_is_drift_if_tokens_can_be_decoded() -> None:
    # "th" is one token where it was drawn, and two where the prompt was made of text anew.
    words = {1: "th", 2: "t", 3: "h", 4: "e", 5: ".", 6: "?"}

    def read(ids: object) -> str:
        assert isinstance(ids, tuple)
        return "".join(words[id] for id in ids)  # pyright: ignore[reportUnknownVariableType]

    def say(id: str, prompt: tuple[int, ...], sampled: tuple[int, ...]) -> TokenCall:
        told = call(id, "", "").tokens
        return TokenCall(
            id=id,
            voice=PLANNER,
            tokens=type(told)(prompt=prompt, sampled=sampled, logprobs=(-1.0,) * len(sampled)),
        )

    tree = TokenTree([say("1", (6,), (1, 4)), say("2", (6, 2, 3, 4, 5), (4,))])
    assert [fork.reason for fork in tree.forks(read)] == [R.OPENING, R.DRIFT]
    assert [fork.reason for fork in tree.forks()] == [R.OPENING, R.REWRITTEN]
    assert tree.figures(decode=read).forks["drift"] == 1
    other = TokenTree([say("1", (6,), (1, 4)), say("2", (6, 2, 4, 5), (4,))])
    assert [fork.reason for fork in other.forks(read)] == [R.OPENING, R.REWRITTEN]


@pytest.mark.promise("tokens:once")
def test_two_failures_of_merging_by_text_can_not_happen() -> None:
    # Turns of nothing but a call have the same empty text: merged by it, one order loses a drawn action and the other
    # trains `delete_all` followed by what `search` gave.
    for order in (("1", "2", "3"), ("2", "1", "3"), ("3", "2", "1")):
        calls = {
            "1": call("1", "task", "<delete_all>"),
            "2": call("2", "task", "<search>"),
            "3": call("3", "task<search>found", "done"),
        }
        tree = TokenTree(calls[id] for id in order)
        assert rows(tree) == ["task[<delete_all>]", "task[<search>]found[done]"]
    # An answer that was cut has no closing token; the next prompt has one, which nobody drew.
    tree = TokenTree([call("1", "ask:", "half", finish="length"), call("2", "ask:half$more:", "rest$")])
    assert rows(tree) == ["ask:[half]$more:[rest$]"]
