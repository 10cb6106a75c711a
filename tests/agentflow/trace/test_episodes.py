"""The calls of an episode."""

import pytest

from agentflow.trace import Ending, Episode, Exchange, Failure, Task, Tokens, TokenTree, Usage, calls_of
from tests.agentflow.trace._calls import rows, tokens


def exchange(
    key: str, told: Tokens | None, role: str = "planner", unusable: tuple[Tokens, ...] = ()
) -> Exchange:
    return Exchange(
        key=key,
        role=role,
        usage=Usage(1, 1, 1),
        tokens=told,
        unusable=unusable,
        failure=None if told else Failure("timeout", "no answer in time"),
        seconds=1.0,
    )


EPISODE = Episode(
    task=Task(index=0, id="t7", question="?"),
    agent="team",
    ending=Ending.FAILED,
    exchanges=(
        exchange("analysis", tokens("x", "y"), "analyst"),
        exchange("1/next", tokens("ab", "c"), unusable=(tokens("ab", "{"), tokens("ab", "z"))),
        exchange("1/command", tokens("q", "r"), "executor"),
        exchange("2/next", None),
        exchange("3/next", tokens("abcd", "cut", finish="length")),
    ),
)


@pytest.mark.promise("tokens:episodes")
def test_an_episode_returns_all_calls_of_its_trained_roles() -> None:
    calls = calls_of(EPISODE)
    assert [one.id for one in calls] == [
        "t7/1/next/unusable/1",
        "t7/1/next/unusable/2",
        "t7/1/next",
        "t7/3/next",
    ]
    tree = TokenTree(calls)
    assert rows(tree) == ["ab[c]d[cut]", "ab[z]", "ab[{]"]


@pytest.mark.promise("tokens:episodes")
def test_episodes_of_one_task_are_distinguished_by_name() -> None:
    tree = TokenTree(
        call
        for name in ("t7/0", "t7/1")
        for call in calls_of(EPISODE, name=name, roles=("planner", "executor"))
    )
    assert {one.voice.episode for one in tree.calls()} == {"t7/0", "t7/1"}
    figures = tree.figures()
    assert figures.trained == figures.sampled == 2 * 7
    assert "ambiguous" not in figures.forks
