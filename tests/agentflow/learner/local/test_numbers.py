"""Non-finite steps are skipped without any change, and too many of them end the run."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agentflow.errors import RunStopped, StopCause
from agentflow.learner.local import LocalBackbone, OptimizerSettings
from agentflow.learner.packing import Row
from tests.agentflow.learner.local._steps import LOSS, backbone_of, some_rows, weights_of


def spoiled(rows: list[Row], *numbers: int) -> list[Row]:
    """Rows of which some have an advantage that is no number."""
    nothing = [np.full_like(row.advantages, np.nan) for row in rows]
    return [
        replace(row, advantages=nothing[number]) if number in numbers else row
        for number, row in enumerate(rows)
    ]


def unchanged(backbone: LocalBackbone, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(weight, before[name]) for name, weight in weights_of(backbone).items())


def test_a_non_finite_loss_changes_nothing_and_names_its_rows(tiny: Path, tmp_path: Path) -> None:
    rows = some_rows()
    backbone, spared = backbone_of(tiny, token_budget=60), backbone_of(tiny, token_budget=60)
    backbone.step(rows, LOSS)
    spared.step(rows, LOSS)
    before = weights_of(backbone)

    figures = backbone.step(spoiled(rows, 5, 17), LOSS)

    assert figures["step/skipped"] == 1
    assert figures["step/bad_rows"] == 2
    assert figures["step/first_bad_row"] == 5
    assert backbone.version == 1
    assert unchanged(backbone, before)
    # Neither has the optimizer: the next step is what it would have been.
    assert backbone.step(rows, LOSS) == spared.step(rows, LOSS)


def test_a_non_finite_gradient_changes_nothing_and_names_its_rows(tiny: Path) -> None:
    """A weight so large that the gradient overflows float32, while the loss is a number."""
    rows = some_rows()
    heavy = replace(rows[3], weights=np.full_like(rows[3].weights, 1e39))
    backbone = backbone_of(tiny)
    before = weights_of(backbone)
    figures = backbone.step([*rows[:3], heavy, *rows[4:]], LOSS)
    assert figures["step/skipped"] == 1
    assert (figures["step/bad_rows"], figures["step/first_bad_row"]) == (1, 3)
    assert unchanged(backbone, before)
    assert backbone.step(rows, LOSS)["step/skipped"] == 0


def test_too_many_consecutive_skips_end_the_run(tiny: Path) -> None:
    rows = some_rows()
    backbone = backbone_of(tiny, optimizer=OptimizerSettings(max_skipped_steps=2))
    bad = spoiled(rows, 1)
    for _ in range(2):
        assert backbone.step(bad, LOSS)["step/skipped"] == 1
    assert backbone.step(rows, LOSS)["step/skipped"] == 0
    for _ in range(2):
        assert backbone.step(bad, LOSS)["step/skipped"] == 1
    with pytest.raises(RunStopped) as stopped:
        backbone.step(bad, LOSS)
    assert stopped.value.cause is StopCause.LEARNER
    assert stopped.value.message == (
        "the loss was not finite in 3 consecutive steps (rows 1 of the last one): "
        "check these rows, lower optimizer.learning_rate, and resume from the last checkpoint"
    )
