"""For every loss, a step packed as trees has the loss and gradients of separate rows."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from torch import Tensor, nn

from agentflow.learner import Sample
from agentflow.learner.compute import Attention, prepare, scores, scores_by_row
from agentflow.learner.losses import LossSettings, loss_of, rows_of
from agentflow.learner.packing import Row, pack
from tests.agentflow.learner._models import tiny_model
from tests.agentflow.learner.compute._blocks import blocks_of
from tests.agentflow.learner.compute._episodes import grown, step
from tests.agentflow.learner.compute._reference_block import ReferenceModel

LOSSES = {
    "flow_grpo": LossSettings(),
    "grpo": LossSettings(name="grpo", entropy_coef=0.01),
    "dapo": LossSettings(name="dapo"),
    "dr_grpo": LossSettings(name="dr_grpo", length_scale=16),
    "gspo": LossSettings(name="gspo", clip_ratio_low=0.1, clip_ratio_high=0.1),
    "cispo": LossSettings(name="cispo", kl_coef=0.01, kl_estimator="k2"),
    "reinforce": LossSettings(name="reinforce", correction="mask"),
    "cross_entropy": LossSettings(name="cross_entropy"),
    "siblings": LossSettings(credit="siblings"),
    "treerl": LossSettings(name="dapo", credit="treerl"),
    "tree_grpo": LossSettings(name="cispo", credit="tree_grpo"),
}
LINEAR = {"cispo", "reinforce", "cross_entropy"}
"""The terms of these grow with the log-probability; of the others, with the ratio."""
SEEDS = st.integers(0, 2**30)


class Bounds(NamedTuple):
    """Relative tolerances between packed and separate rows."""

    loss: float
    gradient: float


SINGLE, DOUBLE = Bounds(1e-6, 1e-5), Bounds(1e-10, 1e-10)


def compare(model: nn.Module, seed: int, attention: Attention, bounds: Bounds) -> None:
    """One tree, one forward of each kind, every loss."""
    samples = grown(seed)
    rows = step(samples, LOSSES["flow_grpo"], model, seed)
    [packed] = pack(rows)
    assert len(packed) == len(
        {tuple(row.ids[: end + 1].tolist()) for row in rows for end in range(len(row.ids))}
    )
    back = torch.from_numpy(packed.rows).argsort()
    log_probs, entropy = scores(model, packed, attention=attention)
    ours = log_probs[back], entropy[back]
    theirs = scores_by_row(model, rows)
    for name in LOSSES:
        chosen = with_loss(samples, rows, name)
        size = sum(float(abs(row.weights * row.advantages).sum()) for row in chosen)
        if LOSSES[name].name in LINEAR:
            size *= float(theirs[0].detach().abs().max())
        if LOSSES[name].correction == "mask":
            # Terms are multiplied by the likelihood of a whole call: it carries the rounding of all its tokens.
            size *= LOSSES[name].correction_limit
        one, one_gradient = loss_and_gradient(model, ours, chosen, LOSSES[name])
        other, other_gradient = loss_and_gradient(model, theirs, chosen, LOSSES[name])
        assert abs(one - other) <= bounds.loss * max(abs(other), size), name
        norms = [size_of(part) for part in other_gradient]
        for mine, plain, norm in zip(one_gradient, other_gradient, norms, strict=True):
            # What is 0 but for rounding is measured against the whole.
            apart = size_of(mine - plain)
            assert apart <= bounds.gradient * max(norm, 1e-2 * math.hypot(*norms)), name


def size_of(tensor: Tensor) -> float:
    """The square root of the sum of squares."""
    return math.sqrt(tensor.square().sum().item())


def with_loss(samples: Sequence[Sample], rows: Sequence[Row], name: str) -> list[Row]:
    """The same rows as this loss weighs them."""
    return [
        replace(weighed, behaviour=row.behaviour, proximal=row.proximal, reference=row.reference)
        for weighed, row in zip(rows_of(samples, LOSSES[name]), rows, strict=True)
    ]


def loss_and_gradient(
    model: nn.Module, found: tuple[Tensor, Tensor], rows: Sequence[Row], chosen: LossSettings
) -> tuple[float, tuple[Tensor, ...]]:
    """The loss, and the gradient of every parameter."""
    loss, _ = loss_of(found[0], rows, chosen, found[1])
    return loss.item(), torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)


@cache
def tiny(kind: str) -> nn.Module:
    """A tiny model of transformers."""
    made = tiny_model(kind=kind, hidden_size=16, intermediate_size=32, head_dim=8, initializer_range=0.1)
    prepare(made)
    return made


KINDS = pytest.mark.parametrize(
    ("part", "kind", "attention", "queries"),
    [
        (0, "qwen2", "blocks", 128),
        (1, "qwen3", "blocks", 128),
        (2, "qwen2", "blocks", 16),
        (3, "qwen3", "blocks", 16),
        (4, "qwen3", "dense", 128),
    ],
)


@KINDS
@settings(max_examples=16, deadline=None)
@given(seed=SEEDS)
def test_every_loss_has_the_gradient_of_separate_rows(
    part: int, kind: str, attention: Attention, queries: int, seed: int
) -> None:
    with blocks_of(queries):
        compare(tiny(kind), 5 * seed + part, attention, SINGLE)


@pytest.mark.soak
@KINDS
@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_every_loss_has_the_gradient_of_separate_rows_on_many_trees(
    part: int, kind: str, attention: Attention, queries: int, seed: int
) -> None:
    with blocks_of(queries):
        compare(tiny(kind), 5 * seed + part, attention, SINGLE)


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_in_64_bits_gradients_agree_to_1e_10(seed: int) -> None:
    with blocks_of(8):
        compare(ReferenceModel(), seed, "blocks", DOUBLE)


@pytest.mark.soak
@pytest.mark.parametrize("attention", ["blocks", "dense"])
@settings(max_examples=250, deadline=None)
@given(seed=SEEDS)
def test_in_64_bits_on_many_trees(attention: Attention, seed: int) -> None:
    compare(ReferenceModel(), seed, attention, DOUBLE)


@pytest.mark.promise("losses:credit")
@pytest.mark.parametrize("credit", ["episode", "siblings", "treerl", "tree_grpo"])
@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_merged_episodes_packed_as_trees_have_the_gradient_of_independent_rows(
    credit: str, seed: int
) -> None:
    model, merged = ReferenceModel(), grown(seed)
    apart = [structs.replace(sample, multiplicity=1) for sample in merged for _ in range(sample.multiplicity)]
    for baseline in ("group", "leave_one_out"):
        chosen = LossSettings.model_validate(
            {"name": "reinforce", "correction": "none", "baseline": baseline, "credit": credit}
        )
        rows, independent = rows_of(merged, chosen), rows_of(apart, chosen)
        [packed] = pack(rows)
        back = torch.from_numpy(packed.rows).argsort()
        log_probs, entropy = scores(model, packed)
        one, gradient = loss_and_gradient(model, (log_probs[back], entropy[back]), rows, chosen)
        other, reference = loss_and_gradient(model, scores_by_row(model, independent), independent, chosen)
        assert one == pytest.approx(other, rel=1e-10, abs=1e-10)
        whole = math.hypot(*map(size_of, reference))
        for mine, plain in zip(gradient, reference, strict=True):
            assert size_of(mine - plain) <= 1e-10 * max(whole, 1e-2)
