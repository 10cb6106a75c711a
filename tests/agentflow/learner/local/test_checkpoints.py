"""Checkpoints resume exactly; incomplete, altered and foreign ones are refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part.

import json
import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentflow.errors import ConfigurationError
from agentflow.learner._checkpoints import CheckpointError, Checkpoints
from tests.agentflow.learner._models import save_tiny_model
from tests.agentflow.learner.local._resumed import state, step
from tests.agentflow.learner.local._steps import LOSS, backbone_of, some_rows, weights_of
from tests.behaviour._tree import ROOT


@contextmanager
def files_of_at_most(size: int) -> Generator[None]:
    """The disk takes no more of a file than that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.timeout(240)  # The fresh process loads torch first, which takes a busy machine long.
def test_two_runs_are_the_same_bits_also_from_stored_rows_and_in_a_fresh_process_that_resumes(
    tiny: Path, tmp_path: Path
) -> None:
    position = {"tasks": ["b", "a"], "place": 7}
    runs: list[tuple[list[dict[str, float]], dict[str, Any]]] = []
    for stored in (False, True):
        backbone, figures = backbone_of(tiny), list[dict[str, float]]()
        random.seed(3)
        for number in range(5):
            rows = some_rows(number)
            (tmp_path / f"rows-{number}").write_bytes(pickle.dumps(rows))
            figures.append(step(backbone, tmp_path, number) if stored else backbone.step(rows, LOSS))
            if number == 2:
                torch.rand(5)
                backbone.save(tmp_path / "checkpoint", position)
        runs.append((figures, state(backbone)))
    went = subprocess.run(
        [sys.executable, "-m", "tests.agentflow.learner.local._resumed", str(tiny), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert went.returncode == 0, went.stderr
    (figures, end), again = runs
    assert (figures, end) == again
    assert json.loads((tmp_path / "resumed").read_text()) == [position, figures[3:], end]


@pytest.mark.parametrize("choices", [{"dtype": "bfloat16"}, {"lora": {"rank": 4, "alpha": 8}}])
def test_a_resumed_step_is_the_same_bits_in_other_precisions_and_with_adapters(
    tiny: Path, tmp_path: Path, choices: dict[str, object]
) -> None:
    rows, dtype = some_rows(), str(choices.get("dtype", "float32"))
    backbone = backbone_of(tiny, dtype=dtype, lora=choices.get("lora"))
    backbone.step(rows, LOSS)
    backbone.save(tmp_path / "kept", {})
    resumed = backbone_of(tiny, dtype=dtype, lora=choices.get("lora"))
    resumed.load(tmp_path / "kept")
    assert resumed.version == 1
    assert backbone.step(rows, LOSS) == resumed.step(rows, LOSS)
    theirs = weights_of(backbone)
    assert all(torch.equal(weight, theirs[name]) for name, weight in weights_of(resumed).items())


def test_a_full_disk_is_reported_and_training_resumes_from_the_last_complete_checkpoint(
    tiny: Path, tmp_path: Path
) -> None:
    rows = some_rows()
    backbone, checkpoints = backbone_of(tiny), Checkpoints(tmp_path / "kept")
    backbone.step(rows, LOSS)
    checkpoints.save(backbone, 1, {"step": 1})
    backbone.step(rows, LOSS)
    for size in (0, 1000, 100_000):
        with files_of_at_most(size), pytest.raises(CheckpointError) as failed:
            checkpoints.save(backbone, 2, {"step": 2})
        assert str(failed.value).endswith("step-00000002 can't be written: File too large; free some space")
        assert [path.name for path in (tmp_path / "kept").iterdir() if path.is_dir()] == ["step-00000001"]
    with files_of_at_most(1000), pytest.raises(CheckpointError, match="can't be written: File too large"):
        backbone.export(tmp_path / "model")
    assert not any(path.name.startswith("model") for path in tmp_path.iterdir())

    assert backbone.step(rows, LOSS)["step/skipped"] == 0
    checkpoints.save(backbone, 3, {"step": 3})
    assert checkpoints.load(backbone_of(tiny)) == {"step": 3}


def test_incomplete_and_altered_checkpoints_are_skipped(tiny: Path, tmp_path: Path) -> None:
    backbone, checkpoints = backbone_of(tiny), Checkpoints(tmp_path / "kept", keep=5)
    folders = [checkpoints.save(backbone, number, {"step": number}) for number in range(1, 6)]
    with (folders[4] / "state-00000.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"\x00\x01")
    (folders[3] / "manifest.json").unlink()
    (folders[2] / "state.json").unlink()
    with (folders[1] / "state-00000.safetensors").open("r+b") as file:
        file.truncate(3000)
    # What a killed process leaves.
    (tmp_path / "kept" / "step-00000006.unfinished").mkdir()

    fresh = backbone_of(tiny)
    for folder, problem in (
        (folders[4], "state-00000.safetensors was altered; use another checkpoint"),
        (folders[3], "manifest.json is missing; use another checkpoint"),
        (folders[2], "state.json is missing; use another checkpoint"),
        (folders[1], "state-00000.safetensors was altered; use another checkpoint"),
    ):
        with pytest.raises(CheckpointError) as refused:
            fresh.load(folder)
        assert str(refused.value) == f"{folder}: {problem}"
    assert checkpoints.load(fresh) == {"step": 1}

    (folders[0] / "state.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint is complete \(step-00000005, .*\); remove them"
    ):
        checkpoints.load(fresh)
    checkpoints.save(backbone, 7, {"step": 7})
    assert not (tmp_path / "kept" / "step-00000006.unfinished").exists()


def test_a_checkpoint_of_another_model_is_refused_and_nothing_has_changed(tiny: Path, tmp_path: Path) -> None:
    backbone_of(save_tiny_model(tmp_path / "other", kind="qwen2")).save(tmp_path / "kept", {})
    backbone = backbone_of(tiny)
    before = weights_of(backbone)
    with pytest.raises(ConfigurationError, match=r"kept is of another model: \d+ weights differ, such as "):
        backbone.load(tmp_path / "kept")
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(backbone).items())


def test_the_last_ones_and_the_best_one_are_kept(tiny: Path, tmp_path: Path) -> None:
    backbone, checkpoints = backbone_of(tiny), Checkpoints(tmp_path / "kept", keep=2)
    assert checkpoints.load(backbone) is None
    assert checkpoints.best() is None
    for number, score in enumerate([0.1, 0.9, 0.3, None, 0.2], start=1):
        checkpoints.save(backbone, number, {}, score=score)
    assert [path.name for path in checkpoints.all()] == ["step-00000002", "step-00000004", "step-00000005"]
    best = checkpoints.best()
    assert best is not None
    assert best.name == "step-00000002"


def test_random_generators_are_restored(tiny: Path, tmp_path: Path) -> None:
    backbone = backbone_of(tiny)
    backbone.save(tmp_path / "kept", {})
    drawn = torch.rand(3).tolist(), np.random.random(3).tolist()
    backbone.load(tmp_path / "kept")
    assert (torch.rand(3).tolist(), np.random.random(3).tolist()) == drawn
