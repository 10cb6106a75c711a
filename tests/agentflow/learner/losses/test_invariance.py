"""The split of a step does not change its loss or gradient."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentflow.learner.losses import LossSettings, loss_of, rows_of
from agentflow.learner.packing import Row, merge_rows
from tests.agentflow.learner.losses._cases import SETTINGS, Table, episodes, loss_and_gradient, with_policies

FP32, FP64 = torch.float32, torch.float64
GRADIENT = {FP32: 1e-5, FP64: 1e-9}

losses = st.sampled_from(sorted(SETTINGS))
dtypes = st.sampled_from([FP32, FP64])


def _step(name: str, seed: int) -> tuple[list[Row], LossSettings]:
    settings = SETTINGS[name]
    return with_policies(rows_of(episodes(seed), settings), proximal="decoupled" in name), settings


def _any_step(name: str, seed: int) -> tuple[list[Row], LossSettings]:
    """The same, if anything of it is left: where all groups are equal there is nothing to cut."""
    rows, settings = _step(name, seed)
    assume(len(rows) > 1)
    return rows, settings


def _assert_same(
    one: tuple[float, NDArray[np.float64]], other: tuple[float, NDArray[np.float64]], dtype: torch.dtype
) -> None:
    assert other[0] == pytest.approx(one[0], rel=1e-6, abs=1e-6 if dtype == FP32 else 1e-12)
    apart = np.linalg.norm(one[1] - other[1])
    assert apart <= GRADIENT[dtype] * max(float(np.linalg.norm(one[1])), 1e-2)


@pytest.mark.promise("losses:invariance")
@examples(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=losses, seed=st.integers(0, 10_000), dtype=dtypes, data=st.data())
def test_the_order_of_rows_changes_nothing(
    name: str, seed: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    rows, settings = _any_step(name, seed)
    order = data.draw(st.permutations(range(len(rows))))
    whole = loss_and_gradient(rows, settings, dtype)
    _assert_same(whole, loss_and_gradient([rows[number] for number in order], settings, dtype), dtype)


@pytest.mark.promise("losses:invariance")
@examples(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=losses, seed=st.integers(0, 10_000), dtype=dtypes, data=st.data())
def test_micro_batches_of_any_size_add_up_to_the_whole(
    name: str, seed: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    rows, settings = _any_step(name, seed)
    whole = loss_and_gradient(rows, settings, dtype)
    cuts = data.draw(st.lists(st.integers(1, len(rows) - 1), unique=True, max_size=len(rows)))
    bounds = [0, *sorted(cuts), len(rows)]
    parts = [loss_and_gradient(rows[start:end], settings, dtype) for start, end in itertools.pairwise(bounds)]
    _assert_same(whole, (sum(loss for loss, _ in parts), np.sum([grad for _, grad in parts], axis=0)), dtype)


@pytest.mark.promise("losses:invariance")
@examples(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=losses, seed=st.integers(0, 10_000), dtype=dtypes)
def test_calls_in_one_row_or_in_a_row_each_are_the_same(name: str, seed: int, dtype: torch.dtype) -> None:
    rows, settings = _any_step(name, seed)
    merged = merge_rows(rows)
    assert sum(len(row.ids) for row in merged) < sum(len(row.ids) for row in rows)
    _assert_same(loss_and_gradient(rows, settings, dtype), loss_and_gradient(merged, settings, dtype), dtype)


@pytest.mark.promise("losses:invariance")
@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_padding_is_never_read(name: str) -> None:
    rows, settings = _step(name, 3)
    log_prob, entropy = Table().read(rows)
    clean, figures = loss_of(log_prob.detach(), rows, settings, entropy.detach())
    padding = torch.arange(log_prob.shape[1])[None] >= torch.tensor([len(row.units) for row in rows])[:, None]
    assert padding.any()
    for junk in (float("nan"), float("inf"), 1e9):
        leaf = log_prob.detach().masked_fill(padding, junk).requires_grad_()
        loss, same = loss_of(leaf, rows, settings, entropy.detach().masked_fill(padding, junk))
        loss.backward()
        assert leaf.grad is not None
        assert loss.item() == clean.item()
        assert same == figures
        assert not leaf.grad[padding].any()


@pytest.mark.promise("losses:multiplicity")
@examples(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), name=losses)
def test_multiplicity_equals_repeated_samples(seed: int, name: str) -> None:
    merged = episodes(seed)
    assume(rows_of(merged, SETTINGS[name]))
    apart = [
        type(sample)(task=sample.task, id=f"{sample.id}/{copy}", reward=sample.reward, calls=sample.calls)
        for sample in merged
        for copy in range(sample.multiplicity)
    ]
    settings = SETTINGS[name]
    results = [
        loss_and_gradient(
            with_policies(rows_of(samples, settings), proximal="decoupled" in name), settings, FP64
        )
        for samples in (merged, apart)
    ]
    _assert_same(results[1], results[0], FP64)


@pytest.mark.timeout(240)  # Both load torch first, which takes a busy machine long.
@pytest.mark.promise("losses:invariance")
def test_two_processes_that_add_their_gradients_make_the_same_step(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.agentflow.learner.losses._rank", str(rank), str(tmp_path)],
            cwd=Path(__file__).parents[4],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, problem = process.communicate(timeout=200)
            assert process.returncode == 0, problem
    finally:
        for process in ranks:
            process.kill()
    found = np.load(tmp_path / "gradients.npz")
    for name in SETTINGS:
        rows, settings = _step(name, 11)
        for dtype in (FP32, FP64):
            whole = loss_and_gradient(rows, settings, dtype)
            part = found[f"{name} {dtype}"]
            _assert_same(whole, (float(part[0]), part[1:].reshape(whole[1].shape)), dtype)
