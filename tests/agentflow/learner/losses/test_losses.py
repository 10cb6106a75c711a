"""Each loss: its formula written out, its gradient by finite differences, its refusals."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agentflow.errors import ConfigurationError, LossFailure
from agentflow.learner import Sample
from agentflow.learner.losses import (
    LossSettings,
    TokenBatch,
    TokenLosses,
    find_loss,
    loss_names,
    loss_of,
    merge_figures,
    register_loss,
    rows_of,
)
from agentflow.learner.packing import Row, longest_trained
from agentflow.trace import Tokens
from tests.agentflow.learner.losses._cases import SETTINGS, Table, episodes, with_policies

DIFFERENTIABLE = [name for name in sorted(SETTINGS) if not name.startswith(("cispo", "reinforce"))]
"""Losses that are the integral of their gradient; the others hold a weight fixed on purpose."""


def _row(
    *, log_probs: tuple[float, ...], advantage: float, unit: int = 0, weight: float = 1.0, prompt: int = 2
) -> Row:
    number = len(log_probs)
    trained = np.array([False] * prompt + [True] * number)
    return Row(
        ids=np.arange(prompt + number, dtype=np.int32),
        trained=trained,
        behaviour=np.array(log_probs, np.float32),
        advantages=np.full(number, advantage, np.float32),
        weights=np.full(number, weight),
        units=np.full(number, unit, np.int32),
    )


def _loss(rows: list[Row], log_probs: list[list[float]], settings: LossSettings) -> tuple[float, list[float]]:
    width = longest_trained(rows)
    leaf = torch.tensor(
        [line + [0.0] * (width - len(line)) for line in log_probs], dtype=torch.float64, requires_grad=True
    )
    loss, _ = loss_of(leaf, rows, settings)
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), cast("list[float]", leaf.grad.flatten().tolist())


@pytest.mark.promise("losses:gradients")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    settings = SETTINGS[name]
    rows = with_policies(rows_of(episodes(7), settings), proximal="decoupled" in name)
    log_prob, entropy = Table(seed=2, dtype=torch.float64).read(rows)
    start = (0.9 * Table(dtype=torch.float64).read(rows)[0] + 0.1 * log_prob).detach()
    entropy = entropy.detach()
    leaf = start.clone().requires_grad_()
    loss_of(leaf, rows, settings, entropy)[0].backward()
    assert leaf.grad is not None
    step = 1e-6
    for row, column in [(number % len(rows), 0) for number in range(0, 40, 2)]:
        higher, lower = start.clone(), start.clone()
        higher[row, column] += step
        lower[row, column] -= step
        ends = [loss_of(point, rows, settings, entropy)[0].item() for point in (higher, lower)]
        assert leaf.grad[row, column].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)


@pytest.mark.promise("losses:published")
def test_flow_grpo_is_the_published_sum() -> None:
    settings = LossSettings()
    samples = episodes(1)
    rows = with_policies(rows_of(samples, settings), proximal=False)
    log_prob = Table(seed=3, dtype=torch.float64).read(rows)[0].detach().numpy()
    found = loss_of(torch.from_numpy(log_prob), rows, settings)[0].item()

    expected, number = 0.0, iter(range(len(rows)))
    spoken = [sample for sample in samples if any(call.sampled for call in sample.calls)]
    for sample in spoken:
        turns: list[float] = []
        group = [
            other.reward for other in samples if other.task == sample.task for _ in range(other.multiplicity)
        ]
        advantage = 0.0
        if len(set(group)) > 1:
            advantage = (sample.reward - np.mean(group)) / (np.std(group, ddof=1) + 1e-6)
        for call in sample.calls:
            if not call.sampled:
                continue
            row = rows[line := next(number)]
            assert row.reference is not None
            policy = log_prob[line, : len(call.sampled)]
            ratio = np.exp(policy - np.array(call.logprobs))
            clipped = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
            back = row.reference - policy
            turns.append(float(np.mean(-clipped + 0.001 * (np.exp(back) - back - 1))))
        expected += sample.multiplicity * float(np.mean(turns))
    expected /= sum(sample.multiplicity for sample in spoken)
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_clipped_token_pushes_no_further() -> None:
    settings = LossSettings(name="dapo")
    far_up, far_down = -1.0 + np.log(1.5), -1.0 + np.log(0.5)
    good = [_row(log_probs=(-1.0, -1.0), advantage=1.0)]
    bad = [_row(log_probs=(-1.0, -1.0), advantage=-1.0)]
    assert _loss(good, [[far_up, far_down]], settings)[0] == pytest.approx(-1.28 - 0.5)
    assert _loss(good, [[far_up, far_down]], settings)[1] == pytest.approx([0.0, -0.5])
    assert _loss(bad, [[far_up, far_down]], settings)[0] == pytest.approx(1.5 + 0.8)
    assert _loss(bad, [[far_up, far_down]], settings)[1] == pytest.approx([1.5, 0.0])
    bounded = LossSettings(name="dapo", clip_ratio_c=1.4)
    assert _loss(bad, [[far_up, far_down]], bounded)[0] == pytest.approx(1.4 + 0.8)


def test_gspo_takes_one_ratio_for_a_call_also_where_calls_share_a_row() -> None:
    settings = LossSettings(name="gspo", clip_ratio_low=0.5, clip_ratio_high=0.5)
    calls = [_row(log_probs=(-1.0, -1.0), advantage=1.0), _row(log_probs=(-2.0,), advantage=2.0, unit=1)]
    merged = replace(
        _row(log_probs=(-1.0, -1.0, -2.0), advantage=1.0),
        units=np.array([0, 0, 1], np.int32),
        advantages=np.array([1, 1, 2], np.float32),
    )
    ratio = np.exp((0.1 + 0.3) / 2)
    apart = _loss(calls, [[-0.9, -0.7], [-1.9]], settings)
    together = _loss([merged], [[-0.9, -0.7, -1.9]], settings)
    assert apart[0] == pytest.approx(-2 * ratio - 2 * np.exp(0.1))
    assert together[0] == pytest.approx(apart[0])
    assert together[1] == pytest.approx([-ratio, -ratio, -2 * np.exp(0.1)])
    assert apart[1] == pytest.approx([-ratio, -ratio, -2 * np.exp(0.1), 0.0])


def test_gspo_gives_each_token_the_gradient_of_its_own_weight() -> None:
    settings = LossSettings(name="gspo", clip_ratio_low=0.5, clip_ratio_high=0.5)
    row = replace(_row(log_probs=(-1.0, -1.0), advantage=1.0), weights=np.array([1.0, 3.0]))
    ratio = np.exp(0.2)
    assert _loss([row], [[-0.9, -0.7]], settings) == (
        pytest.approx(-4 * ratio),
        pytest.approx([-ratio, -3 * ratio]),
    )


@pytest.mark.promise("losses:gradients")
def test_cispo_never_silences_a_token() -> None:
    settings = LossSettings(name="cispo", clip_ratio_high=0.5)
    _, gradient = _loss([_row(log_probs=(-2.0, -2.0), advantage=1.0)], [[-1.0, -1.9]], settings)
    assert gradient == pytest.approx([-1.5, -np.exp(0.1)])


@pytest.mark.promise("losses:gradients")
def test_reinforce_weighs_by_how_likely_a_token_has_become() -> None:
    rows = [_row(log_probs=(-2.0, -2.0), advantage=-1.0)]
    assert _loss(rows, [[-1.0, -1.9]], LossSettings(name="reinforce"))[1] == pytest.approx([2.0, np.exp(0.1)])
    plain = LossSettings(name="reinforce", correction="none")
    assert _loss(rows, [[-1.0, -1.9]], plain)[1] == pytest.approx([1.0, 1.0])


def test_cross_entropy_ignores_the_reward() -> None:
    call = Tokens(prompt=(1, 2), sampled=(3, 4, 5, 6), logprobs=())
    samples = [
        Sample(task="t", id="a", reward=0.0, calls=(call,)),
        Sample(task="t", id="b", reward=1.0, calls=(call,)),
    ]
    settings = LossSettings(name="cross_entropy")
    rows = rows_of(samples, settings)
    loss, gradient = _loss(rows, [[-1.0, -2.0, -3.0, -4.0]] * 2, settings)
    assert loss == pytest.approx(2.5)
    assert gradient == pytest.approx([-1 / 8] * 8)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", np.exp(-0.5) + 0.5 - 1, 1 - np.exp(-0.5))],
)
def test_each_kl_estimator_has_its_formula(estimator: str, value: float, slope: float) -> None:
    settings = LossSettings.model_validate({"name": "dapo", "kl_coef": 2.0, "kl_estimator": estimator})
    row = replace(_row(log_probs=(-1.0,), advantage=0.0), reference=np.array([-1.5], np.float32))
    loss, gradient = _loss([row], [[-1.0]], settings)
    assert loss == pytest.approx(2 * value)
    assert gradient == pytest.approx([2 * slope])


def _corrected(settings: LossSettings, *, proximal: NDArray[np.float32] | None) -> list[float]:
    behaviour = (-1.0, -1.0, -1.0)
    row = replace(_row(log_probs=behaviour, advantage=1.0), proximal=proximal)
    began = list(behaviour) if proximal is None else proximal.tolist()
    return _loss([row], [began], settings)[1]


def test_the_correction_truncates_or_masks_with_proximal_log_probabilities() -> None:
    began = np.array([-1.0, -1.0 + np.log(1.5), -1.0 + np.log(4)], np.float32)
    assert _corrected(LossSettings(name="dapo"), proximal=began) == pytest.approx([-1, -1.5, -2])
    masked = LossSettings(name="dapo", correction="mask", correction_level="token")
    assert _corrected(masked, proximal=began) == pytest.approx([-1, -1.5, 0])
    # The whole call is 6 times as likely: over the limit of 3.
    assert _corrected(LossSettings(name="dapo", correction="mask"), proximal=began) == pytest.approx(
        [0, 0, 0]
    )
    near = np.array([-1.0, -1.0 + np.log(2), -1.0], np.float32)
    assert _corrected(LossSettings(name="dapo", correction="mask"), proximal=near) == pytest.approx(
        [-2, -2, -2]
    )
    assert _corrected(LossSettings(name="dapo", correction="none"), proximal=began) == pytest.approx([-1] * 3)


def test_without_proximal_log_probabilities_the_ratio_is_the_correction() -> None:
    row = _row(log_probs=(-2.0, -2.0), advantage=-1.0)
    today = [-2.0 + np.log(4), -2.0]
    assert _loss([row], [today], LossSettings(name="dapo"))[1] == pytest.approx([4, 1])
    assert _loss([row], [today], LossSettings(name="dapo", correction="mask"))[1] == pytest.approx([0, 0])


def test_figures_of_parts_merge_into_those_of_the_step() -> None:
    settings = SETTINGS["flow_grpo"]
    rows = with_policies(rows_of(episodes(4), settings), proximal=False)
    log_prob, entropy = (one.detach() for one in Table(seed=1).read(rows))
    whole = merge_figures([loss_of(log_prob, rows, settings, entropy)[1]])
    parts: list[dict[str, float]] = []
    for start in range(0, len(rows), 5):
        some = rows[start : start + 5]
        width = longest_trained(some)
        part = log_prob[start : start + 5, :width], entropy[start : start + 5, :width]
        parts.append(loss_of(part[0], some, settings, part[1])[1])
    assert merge_figures(parts) == pytest.approx(whole)
    behaviour = np.concatenate([row.behaviour for row in rows])
    policy = np.concatenate([log_prob[n, : len(row.units)].numpy() for n, row in enumerate(rows)])
    ratio = np.exp(policy - behaviour)
    advantages = np.concatenate([row.advantages for row in rows])
    assert whole["loss/tokens"] == len(behaviour)
    assert whole["engine/apart_max"] == pytest.approx(np.abs(policy - behaviour).max(), rel=1e-5)
    assert whole["engine/k1"] == pytest.approx((behaviour - policy).mean(), rel=1e-5)
    assert whole["engine/k3"] == pytest.approx((ratio - np.log(ratio) - 1).mean(), rel=1e-5)
    assert whole["correction/weight_max"] == pytest.approx(ratio.max(), rel=1e-5)
    assert whole["correction/effective_share"] == pytest.approx(
        ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()), rel=1e-5
    )
    assert whole["clip/high"] == pytest.approx(((ratio > 1.2) & (advantages > 0)).mean())
    assert whole["clip/low"] == pytest.approx(((ratio < 0.8) & (advantages < 0)).mean())


@pytest.mark.promise("losses:not-finite")
def test_a_non_finite_loss_names_its_rows() -> None:
    rows = [_row(log_probs=(-1.0,), advantage=1.0, unit=unit) for unit in range(3)]
    log_prob = torch.tensor([[-1.0], [float("nan")], [float("-inf")]])
    settings = LossSettings(name="cispo")
    with pytest.raises(LossFailure, match=r"not finite in 2 of 3 rows: 1, 2") as problem:
        loss_of(log_prob, rows, settings)
    assert problem.value.rows == (1, 2)


def test_an_empty_part_of_a_step_costs_nothing() -> None:
    loss, figures = loss_of(torch.zeros(0, 0), [], LossSettings(name="dapo"))
    assert loss.item() == 0
    assert merge_figures([figures]) == {"loss/tokens": 0}


def test_missing_inputs_are_named() -> None:
    rows = [_row(log_probs=(-1.0,), advantage=1.0)]
    with pytest.raises(ValueError, match=r"loss\.kl_coef needs the reference"):
        loss_of(torch.zeros(1, 1), rows, LossSettings())
    with pytest.raises(ValueError, match=r"loss\.entropy_coef needs the entropy"):
        loss_of(torch.zeros(1, 1), rows, LossSettings(name="dapo", entropy_coef=0.1))
    with pytest.raises(ValueError, match=r"\(1, 2\) for 1 rows"):
        loss_of(torch.zeros(1, 2), rows, LossSettings(name="dapo"))
    with pytest.raises(ConfigurationError, match="there is no loss 'ppo'; known are cispo"):
        find_loss("ppo")


def test_a_registered_loss_can_be_named() -> None:
    @register_loss("tests_square", kl_coef=0.0, loss_agg_mode="token-sum")
    def square(drawn: TokenBatch, settings: LossSettings) -> TokenLosses:  # pyright: ignore[reportUnusedFunction] - its name is registered
        none = drawn.mask & ~drawn.mask
        return TokenLosses(drawn.log_prob.square() * settings.clip_ratio_low, none, none)

    assert "tests_square" in loss_names()
    settings = LossSettings(name="tests_square", clip_ratio_low=3)
    assert settings.loss_agg_mode == "token-sum"
    assert _loss([_row(log_probs=(-1.0,), advantage=0.0)], [[-2.0]], settings) == (12.0, [-12.0])
