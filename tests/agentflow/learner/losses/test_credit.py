"""Credit of calls in trees of episodes: the advantage of a call by the node that it belongs to."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec import UNSET, structs

from agentflow.errors import LossFailure
from agentflow.learner import Sample
from agentflow.learner.losses import LossSettings, advantages_of, step_rows
from agentflow.trace import Tokens
from tests.agentflow.learner.compute._episodes import grown

pytestmark = pytest.mark.promise("losses:credit")

CALL = Tokens(prompt=(1,), sampled=(2, 3), logprobs=(-1.0, -1.0))
CREDITS = ("siblings", "treerl", "tree_grpo")
SEEDS = st.integers(0, 10_000)


def _episode(reward: float, *nodes: str, task: str = "t") -> Sample:
    name = nodes[-1] if nodes else "alone"
    return Sample(task=task, id=name, reward=reward, calls=(CALL,) * max(len(nodes), 1), nodes=nodes or UNSET)


TREES = [
    # The first tree branches after its first call, and its second branch once more; the second tree is one episode.
    _episode(1.0, "0", "0-0"),
    _episode(1.0, "0", "0-1", "0-1-0"),
    _episode(0.0, "0", "0-1", "0-1-1"),
    _episode(0.0, "1"),
]


def _settings(credit: str, **others: object) -> LossSettings:
    return LossSettings.model_validate({"kl_coef": 0.0, "divide_by_std": False, "credit": credit} | others)


def _advantages(samples: Sequence[Sample], settings: LossSettings) -> list[float]:
    return [float(row.advantages[0]) for row in step_rows(samples, settings)[0]]


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        ("episode", [*(0.5, 0.5), *(0.5, 0.5, 0.5), *(-0.5, -0.5, -0.5), -0.5]),
        ("siblings", [*(1 / 6, 1 / 3), *(1 / 6, -1 / 6, 0.5), *(1 / 6, -1 / 6, -0.5), -0.5]),
        (
            "treerl",
            [
                *(1 / 3 / sqrt(3), 5 / 6),
                *(1 / 3 / sqrt(3), -1 / 6 / sqrt(2), 1.0),
                *(1 / 3 / sqrt(3), -1 / 6 / sqrt(2), -1.0),
                -1.0,
            ],
        ),
        ("tree_grpo", [*(5 / 6,) * 2, *(5 / 6,) * 3, *(-7 / 6,) * 3, -0.5]),
    ],
)
def test_a_call_has_the_advantage_of_its_node(credit: str, expected: list[float]) -> None:
    assert _advantages(TREES, _settings(credit)) == pytest.approx(expected)


def test_without_its_own_episodes_a_node_is_compared_with_its_siblings() -> None:
    settings = _settings("siblings", baseline="leave_one_out")
    expected = [*(2 / 3, 0.5), *(2 / 3, -0.5, 1.0), *(2 / 3, -0.5, -1.0), -2 / 3]
    assert _advantages(TREES, settings) == pytest.approx(expected)


def test_credit_is_divided_by_the_deviation_of_the_group_and_in_tree_grpo_also_by_that_of_the_tree() -> None:
    group, tree = sqrt(1 / 3) + 1e-6, sqrt(1 / 3) + 1e-6
    for credit in ("siblings", "treerl"):
        whole = _advantages(TREES, _settings(credit))
        divided = _advantages(TREES, _settings(credit, divide_by_std=True))
        assert divided == pytest.approx([advantage / group for advantage in whole])
    first, *_, last = _advantages(TREES, _settings("tree_grpo", divide_by_std=True))
    assert (first, last) == pytest.approx((0.5 / group + 1 / 3 / tree, -0.5 / group))


@examples(max_examples=30, deadline=None)
@given(seed=SEEDS, divided=st.booleans())
def test_the_credits_of_siblings_on_a_path_add_up_to_the_advantage_of_its_episode(
    seed: int, divided: bool
) -> None:
    # Each node once: further calls of its section have the same credit.
    samples = [
        structs.replace(sample, nodes=nodes, calls=(CALL,) * len(nodes))
        for sample in grown(seed)
        for nodes in [tuple(dict.fromkeys(sample.nodes or ()))]
    ]
    settings = _settings("siblings", divide_by_std=divided)
    credits = iter(_advantages(samples, settings))
    sums = [sum(next(credits) for _ in sample.calls) for sample in samples]
    assert sums == pytest.approx(advantages_of(samples, settings).tolist(), abs=1e-5)


@pytest.mark.parametrize("baseline", ["group", "leave_one_out"])
def test_episodes_that_share_nothing_have_the_advantages_of_episodes(baseline: str) -> None:
    samples = [_episode(reward, str(tree)) for tree, reward in enumerate([0.0, 0.25, 1.0])]
    whole = _advantages(samples, _settings("episode", baseline=baseline))
    assert _advantages(samples, _settings("siblings", baseline=baseline)) == pytest.approx(whole)
    assert _advantages(samples, _settings("tree_grpo", baseline=baseline)) == pytest.approx(whole)
    assert _advantages(samples, _settings("treerl", baseline=baseline)) == pytest.approx(
        [2 * advantage for advantage in whole]
    )


@pytest.mark.parametrize("credit", CREDITS)
def test_an_episode_without_nodes_has_its_own_advantage_and_turn_rewards_are_added(credit: str) -> None:
    samples = [*TREES[:2], structs.replace(TREES[2], turn_rewards=(0.0, 0.0, 0.5)), _episode(0.0)]
    plain = [*TREES[:3], _episode(0.0)]
    settings = _settings(credit)
    assert _advantages(plain, settings)[-1] == -0.5
    added = np.subtract(_advantages(samples, settings), _advantages(plain, settings))
    # Of nine calls one has a turn reward; the mean of all is subtracted from each.
    assert added[7] - added[8] == pytest.approx(0.5)
    assert added[5] == pytest.approx(added[7] - 2 / 18)


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("baseline", ["group", "leave_one_out"])
def test_equal_rewards_give_no_credit_at_all(credit: str, baseline: str) -> None:
    equal = [structs.replace(sample, reward=0.1, multiplicity=3) for sample in TREES]
    settings = _settings(credit, baseline=baseline, divide_by_std=True)
    rows, figures = step_rows([*equal, _episode(0.3, "0", task="u")], settings)
    assert [float(row.advantages[0]) for row in rows] == [0.0] * 10
    assert (figures["groups/equal_share"], figures["advantage/largest"]) == (1.0, 0.0)
    filtered, _ = step_rows(equal, _settings(credit, filter_groups=True))
    assert filtered == []


def test_a_step_counts_the_calls_with_another_advantage_than_their_episode() -> None:
    shares = {
        credit: step_rows(TREES, _settings(credit))[1]["advantage/local_share"]
        for credit in ("episode", *CREDITS)
    }
    # The last branch and the second tree have, among siblings, the advantage of their episode.
    assert shares == pytest.approx({"episode": 0.0, "siblings": 6 / 9, "treerl": 1.0, "tree_grpo": 8 / 9})


def test_without_a_choice_of_its_own_no_call_has_credit_and_no_step_is_made() -> None:
    shared = [_episode(1.0, "0", "0"), _episode(0.0, "0", "0")]
    _, figures = step_rows(shared, _settings("siblings"))
    assert (figures["advantage/largest"], figures["groups/equal_share"]) == (0.0, 0.0)


@pytest.mark.promise("losses:not-finite")
@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        (("0",), "episode 0-1 of task t: 2 calls, but 1 nodes; give one for each call, or none"),
        (("0", "x\n" * 99), r"call 1 has the node 'x\\n.*'; a node is a path of numbers, such as 0-1"),
        (("", "0"), "call 0 has the node ''; a node is a path of numbers"),
        (("0-1", "0"), "call 1 is at node 0, which is not below 0-1, the node of the call before it"),
        (("0-1", "0-10"), "call 1 is at node 0-10, which is not below 0-1"),
        (("0", "1"), "call 1 is at node 1, which is not below 0"),
    ],
)
@pytest.mark.parametrize("credit", ["episode", "siblings"])
def test_nodes_that_are_no_path_are_refused_in_one_line(
    nodes: tuple[str, ...], problem: str, credit: str
) -> None:
    sample = structs.replace(_episode(1.0, "0", "0-1"), nodes=nodes)
    with pytest.raises(LossFailure, match=problem) as failure:
        step_rows([sample, _episode(0.0, "0", "0-0")], _settings(credit))
    assert "\n" not in str(failure.value)
