"""From samples to rows: advantages within the group, weights over the whole step, tokens left out."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec import structs

from agentflow.errors import LossFailure
from agentflow.learner import Sample
from agentflow.learner.losses import LossSettings, advantages_of, loss_of, rows_of, step_rows
from agentflow.trace import Tokens
from tests.agentflow.learner.losses._cases import SETTINGS, Table, episodes, with_policies


def _call(number: int, prompt: int = 2) -> Tokens:
    return Tokens(prompt=tuple(range(prompt)), sampled=tuple(range(number)), logprobs=(-1.0,) * number)


def _sample(
    reward: float, lengths: tuple[int, ...] = (2,), *, task: str = "t", times: int = 1, name: str = ""
) -> Sample:
    calls = tuple(_call(number) for number in lengths)
    return Sample(task=task, id=name or f"{task}-{reward}", reward=reward, calls=calls, multiplicity=times)


@pytest.mark.promise("losses:advantages")
def test_an_episode_counts_once_in_its_group_however_many_turns_it_has() -> None:
    samples = [_sample(0.0, (2, 2, 2)), _sample(1.0, (2,))]
    assert advantages_of(samples, LossSettings(divide_by_std=False)).tolist() == [-0.5, 0.5]
    deviation = np.sqrt(0.5) + 1e-6
    assert advantages_of(samples, LossSettings()) == pytest.approx([-0.5 / deviation, 0.5 / deviation])
    rows = rows_of(samples, LossSettings(divide_by_std=False))
    assert [float(row.advantages[0]) for row in rows] == [-0.5, -0.5, -0.5, 0.5]


def test_groups_do_not_see_each_other() -> None:
    samples = [_sample(0.0), _sample(10.0, task="u"), _sample(1.0), _sample(12.0, task="u")]
    assert advantages_of(samples, LossSettings(divide_by_std=False)).tolist() == [-0.5, -1.0, 0.5, 1.0]


def test_leave_one_out_compares_an_episode_with_the_others() -> None:
    samples = [_sample(0.0), _sample(1.0), _sample(5.0)]
    assert advantages_of(samples, LossSettings(name="reinforce")) == pytest.approx([-3.0, -1.5, 4.5])
    assert advantages_of(samples, LossSettings(baseline="none")).tolist() == [0.0, 1.0, 5.0]


@pytest.mark.promise("losses:advantages")
@pytest.mark.parametrize("name", ["flow_grpo", "grpo", "reinforce"])
def test_a_group_with_equal_rewards_has_no_advantage(name: str) -> None:
    alone = [_sample(0.7)]
    equal = [_sample(0.1, name=str(number)) for number in range(3)]
    for samples in (alone, equal, [_sample(0.3, times=4)]):
        assert advantages_of(samples, LossSettings(name=name)).tolist() == [0.0] * len(samples)


def test_groups_with_equal_rewards_are_filtered_if_configured_and_counted() -> None:
    samples = [
        _sample(1.0, (3,), task="a", name="1"),
        _sample(1.0, (4,), task="a", name="2"),
        _sample(0.0, (2,), task="b"),
        _sample(1.0, (2,), task="b"),
    ]
    rows, figures = step_rows(samples, LossSettings(name="dapo"))
    assert len(rows) == 2
    assert sum(row.weights.sum() for row in rows) == pytest.approx(1)
    assert figures["groups/dropped"] == 1
    assert figures["groups/equal_share"] == 0.5
    assert figures["tokens/dropped_equal_group"] == 7
    assert figures["tokens/trained"] == 4
    kept, kept_figures = step_rows(samples, LossSettings())
    assert len(kept) == 4
    assert kept_figures["groups/dropped"] == kept_figures["tokens/dropped_equal_group"] == 0
    assert kept_figures["groups/equal_share"] == 0.5


def test_answers_near_the_token_limit_have_a_lower_reward() -> None:
    settings = LossSettings(
        name="dapo", baseline="none", overlong_limit=10, overlong_buffer=4, overlong_penalty=2.0
    )
    samples = [_sample(1.0, (number, 1), name=str(number)) for number in (6, 7, 8, 10, 12)]
    assert advantages_of(samples, settings).tolist() == [1.0, 0.5, 0.0, -1.0, -1.0]


WEIGHTS = {
    # Two episodes, calls of 2 and 4 tokens and of 3; the second drawn twice.
    ("turn-mean", "call"): [1 / 3 / 2 / 2, 1 / 3 / 2 / 4, 2 / 3 / 3],
    ("token-mean", "call"): [1 / 12, 1 / 12, 2 / 12],
    ("token-sum", "call"): [1, 1, 2],
    ("seq-mean-token-sum", "call"): [1 / 4, 1 / 4, 2 / 4],
    ("seq-mean-token-sum", "episode"): [1 / 3, 1 / 3, 2 / 3],
    ("seq-mean-token-sum-norm", "call"): [1 / 40, 1 / 40, 2 / 40],
    ("seq-mean-token-sum-norm", "episode"): [1 / 30, 1 / 30, 2 / 30],
    ("seq-mean-token-mean", "call"): [1 / 4 / 2, 1 / 4 / 4, 2 / 4 / 3],
    ("seq-mean-token-mean", "episode"): [1 / 3 / 6, 1 / 3 / 6, 2 / 3 / 3],
}


@pytest.mark.parametrize(("aggregation", "sequence"), sorted(WEIGHTS))
def test_an_aggregation_is_a_weight_for_each_token(aggregation: str, sequence: str) -> None:
    samples = [_sample(0.0, (2, 0, 4)), _sample(1.0, (3,), times=2), _sample(0.0, (0,), name="silent")]
    settings = LossSettings.model_validate(
        {"loss_agg_mode": aggregation, "sequence": sequence, "length_scale": 10}
    )
    rows = rows_of(samples, settings)
    assert [len(row.weights) for row in rows] == [2, 4, 3]
    assert [float(row.weights[0]) for row in rows] == pytest.approx(WEIGHTS[aggregation, sequence])
    assert all(len(set(row.weights.tolist())) == 1 for row in rows)


@examples(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000))
def test_every_sampled_token_is_trained_once_and_no_other(seed: int) -> None:
    samples = episodes(seed)
    settings = LossSettings()
    rows = rows_of(samples, settings)
    calls = [call for sample in samples for call in sample.calls if call.sampled]
    for unit, (row, call) in enumerate(zip(rows, calls, strict=True)):
        assert tuple(row.ids.tolist()) == call.prompt + call.sampled
        assert tuple(row.ids[row.trained].tolist()) == call.sampled
        assert row.behaviour.tolist() == pytest.approx(list(call.logprobs))
        assert set(row.units.tolist()) == {unit}
        assert len(row.weights) == len(row.advantages) == len(call.sampled)
    means = LossSettings(name="cispo"), settings
    for one in means:
        assert sum(row.weights.sum() for row in rows_of(samples, one)) == pytest.approx(1)


def test_the_first_token_of_a_row_is_not_trained() -> None:
    call = Tokens(prompt=(), sampled=(4, 5, 6), logprobs=(-1.0, -2.0, -3.0))
    rows, figures = step_rows([Sample(task="t", id="a", reward=1.0, calls=(call,))], LossSettings())
    (row,) = rows
    assert row.trained.tolist() == [False, True, True]
    assert row.behaviour.tolist() == [-2.0, -3.0]
    assert figures["tokens/dropped_unpredicted"] == 1


def test_truncated_calls_are_trained_unless_configured_otherwise() -> None:
    cut = Tokens(prompt=(1,), sampled=(2, 3, 4), logprobs=(-1.0,) * 3, finish="length")
    samples = [Sample(task="t", id="a", reward=1.0, calls=(_call(2), cut)), _sample(0.0, (1,))]
    rows, figures = step_rows(samples, LossSettings())
    assert [len(row.units) for row in rows] == [2, 3, 1]
    assert figures["calls/cut_share"] == pytest.approx(1 / 3)
    assert figures["tokens/dropped_cut"] == 0
    without, without_figures = step_rows(samples, LossSettings(train_cut=False))
    assert [float(row.weights[0]) for row in without] == pytest.approx([1 / 4, 1 / 2])
    assert without_figures["tokens/dropped_cut"] == 3


@pytest.mark.promise("losses:masks")
@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_tokens_of_tools_and_environments_are_in_no_term(name: str) -> None:
    """However much of it there is: neither advantages, weights nor the loss know of it."""
    short = episodes(9)
    long = [
        structs.replace(
            sample,
            calls=tuple(structs.replace(call, prompt=call.prompt * 20 + (1,) * 50) for call in sample.calls),
        )
        for sample in short
    ]
    rows, same = (with_policies(rows_of(samples, SETTINGS[name]), proximal=True) for samples in (short, long))
    log_prob, entropy = (one.detach() for one in Table(seed=4).read(rows))
    same = [
        replace(row, reference=other.reference, proximal=other.proximal)
        for row, other in zip(same, rows, strict=True)
    ]
    losses = [loss_of(log_prob, some, SETTINGS[name], entropy)[0].item() for some in (rows, same)]
    assert losses[0] == losses[1]


def test_no_samples_give_no_rows() -> None:
    rows, figures = step_rows([], LossSettings())
    assert rows == []
    assert set(figures.values()) == {0.0}


@pytest.mark.promise("losses:not-finite")
@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (_sample(float("nan"), name="e1"), "episode e1 of task t: its reward is nan"),
        (_sample(0.0, times=0, name="e2"), "episode e2 of task t: its multiplicity is 0"),
        (
            Sample(
                task="t", id="e3", reward=0.0, calls=(Tokens(prompt=(1,), sampled=(1, 2), logprobs=(-1.0,)),)
            ),
            "call 0 of episode e3: 2 tokens were sampled, but there are 1 log-probabilities",
        ),
        (
            Sample(
                task="t",
                id="e4",
                reward=0.0,
                calls=(_call(1), Tokens(prompt=(1,), sampled=(1,), logprobs=(float("-inf"),))),
            ),
            "call 1 of episode e4: a log-probability is not finite",
        ),
    ],
)
def test_an_unusable_sample_is_refused_by_name(sample: Sample, said: str) -> None:
    with pytest.raises(LossFailure) as problem:
        rows_of([_sample(1.0), sample], LossSettings())
    assert said in str(problem.value)


def test_rows_are_the_same_in_any_order_of_episodes() -> None:
    samples = [_sample(0.0, (2, 3)), _sample(1.0, (1,)), _sample(0.5, (4,))]
    settings = LossSettings()
    first = {row.ids.tobytes(): row for row in rows_of(samples, settings)}
    for order in itertools.permutations(samples):
        for row in rows_of(order, settings):
            assert row.advantages.tolist() == pytest.approx(first[row.ids.tobytes()].advantages.tolist())
            assert row.weights.tolist() == pytest.approx(first[row.ids.tobytes()].weights.tolist())


@pytest.mark.promise("losses:turns")
def test_the_reward_of_a_turn_reaches_it_and_the_turns_before_it() -> None:
    calls = tuple(Tokens(prompt=(1,), sampled=(2,), logprobs=(-1.0,)) for _ in range(3))
    good, bad = (
        Sample(task="t", id=id, reward=0.0, calls=calls, turn_rewards=(0.0, turn, 0.0))
        for id, turn in (("a", 3.0), ("b", -3.0))
    )
    rows, figures = step_rows([good, bad], LossSettings(kl_coef=0.0, divide_by_std=False, filter_groups=True))
    assert [float(row.advantages[0]) for row in rows] == [3.0, 3.0, 0.0, -3.0, -3.0, 0.0]
    assert (figures["advantage/largest"], figures["groups/dropped"]) == (3.0, 0.0)


@pytest.mark.promise("losses:turns")
@pytest.mark.parametrize(
    ("turns", "problem"), [((1.0,), "1 turn rewards"), ((1.0, float("nan")), "not finite")]
)
def test_unusable_turn_rewards_are_refused_with_their_episode(turns: tuple[float, ...], problem: str) -> None:
    calls = tuple(Tokens(prompt=(1,), sampled=(2,), logprobs=(-1.0,)) for _ in range(2))
    sample = Sample(task="t", id="a", reward=0.0, calls=calls, turn_rewards=turns)
    with pytest.raises(LossFailure, match=problem):
        step_rows([sample], LossSettings(kl_coef=0.0))
