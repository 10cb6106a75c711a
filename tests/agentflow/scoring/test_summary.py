"""Many scores in few figures."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.scoring import (
    Scored,
    best_of,
    bootstrap,
    confidence_interval,
    majority,
    pass_at,
    same_answer,
    summarise,
)
from agentflow.trace import Failure, Usage


@pytest.mark.promise("scoring:summary")
def test_failed_tasks_count_as_wrong_and_unjudged_ones_are_excluded() -> None:
    unjudged = Scored(0.0, failure=Failure("garbage", "no JSON"), usage=Usage(2, 20, 2))
    summary = summarise([Scored(1.0, usage=Usage(1, 10, 1)), None, None, unjudged])
    assert (summary.tasks, summary.failed, summary.unjudged, summary.perfect) == (4, 2, 1, 1)
    assert summary.mean == pytest.approx(1 / 3)
    assert summary.usage == Usage(3, 30, 3)
    assert summary.interval.low <= summary.mean <= summary.interval.high


@pytest.mark.promise("scoring:summary")
def test_without_judged_tasks_there_is_no_score() -> None:
    summary = summarise([])
    assert (summary.mean, summary.interval.low, summary.interval.high) == (0.0, 0.0, 1.0)


@pytest.mark.promise("scoring:summary")
def test_the_interval_is_the_same_each_time_and_narrows_with_more_tasks() -> None:
    few, many = [1.0, 0.0] * 10, [1.0, 0.0] * 200
    assert bootstrap(few) == bootstrap(few)
    assert bootstrap(few) != bootstrap(few, seed=1)
    narrow, wide = bootstrap(many), bootstrap(few)
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2
    # The normal approximation is 0.5 +- 0.049 for 400 draws.
    assert (narrow.low, narrow.high) == (pytest.approx(0.451, abs=0.01), pytest.approx(0.549, abs=0.01))
    one = bootstrap([1.0] * 5)
    assert (one.low, one.high) == (1.0, 1.0)


@pytest.mark.promise("scoring:wilson")
@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    # Values of Wilson's formula at 95 %, as published tables have them.
    [(0, 3, 0.0, 0.5615), (3, 3, 0.4385, 1.0), (1, 2, 0.0945, 0.9055), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662), (0, 0, 0, 1)],
)  # fmt: skip
def test_scores_of_0_and_1_have_the_interval_of_wilson(
    right: int, count: int, low: float, high: float
) -> None:
    values = [1.0] * right + [0.0] * (count - right)
    interval = summarise([Scored(value) for value in values]).interval
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert confidence_interval(values) == interval


@pytest.mark.promise("scoring:wilson")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=40), st.floats(0.5, 0.99))
def test_an_interval_contains_the_mean_and_has_a_width(values: list[float], level: float) -> None:
    interval = confidence_interval(values, level=level)
    assert 0 <= interval.low <= sum(values) / len(values) <= interval.high <= 1
    assert interval.high - interval.low > 0


@pytest.mark.promise("scoring:wilson")
def test_other_scores_keep_the_bootstrap_interval() -> None:
    assert confidence_interval([0.5, 1.0, 0.0], seed=3) == bootstrap([0.5, 1.0, 0.0], seed=3)


@pytest.mark.promise("scoring:samples")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_is_the_share_of_samples_of_k_with_a_correct_answer(samples: list[bool], k: int) -> None:
    if k > len(samples):
        with pytest.raises(ValueError, match="not defined"):
            pass_at(k, right=sum(samples), samples=len(samples))
        return
    draws = [any(draw) for draw in combinations(samples, k)]
    assert pass_at(k, right=sum(samples), samples=len(samples)) == pytest.approx(sum(draws) / len(draws))


@pytest.mark.promise("scoring:samples")
def test_the_majority_groups_equivalent_answers() -> None:
    assert majority(["Rome", "the Paris", "paris.", None]) == 1
    assert majority(["Rome", "Paris"]) == 0
    assert majority([None, "", " "]) is None
    assert majority([]) is None
    assert majority(["0.3", "1/2", "0.5"], same=same_answer) == 1


@pytest.mark.promise("scoring:samples")
def test_the_best_is_the_first_with_the_highest_score() -> None:
    assert best_of([0.2, 0.9, None, 0.9]) == 1
    assert best_of([None]) is None
