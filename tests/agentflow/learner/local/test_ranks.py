"""Two processes make the same steps as one."""

# pyright: reportUnknownVariableType=false
# safetensors is typed in part.

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - it is public, and does not say so

from tests.agentflow.learner.local._steps import LOSS, backbone_of, some_rows
from tests.behaviour._tree import ROOT


def distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Relative, in L2."""
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(other)), 1e-6))


def run_ranks(count: int, *arguments: str) -> None:
    """Start the ranks as torchrun does; this process hosts the store."""
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(count),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.agentflow.learner.local._together", *arguments],
            cwd=ROOT,
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        for rank in range(count)
    ]
    try:
        said = [rank.communicate(timeout=220)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * count, "\n".join(said)


@pytest.mark.timeout(240)
def test_two_ranks_make_the_steps_that_one_makes(tiny: Path, tmp_path: Path) -> None:
    run_ranks(2, str(tiny), str(tmp_path))

    rows, alone = some_rows(), backbone_of(tiny)
    alone.step(rows, LOSS)
    # The first mean of gradients is a tenth of the gradient.
    mine = load_file(alone.save(tmp_path / "alone", {}) / "state-00000.safetensors")
    theirs = load_file(tmp_path / "first" / "state-00000.safetensors")
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert distance(theirs[name], mine[name]) <= 1e-5, name
    alone.step(rows[:1], LOSS)
    resumed = backbone_of(tiny)
    assert resumed.load(tmp_path / "checkpoint") == {"step": 2}
    loss = alone.step(rows, LOSS)["step/loss"]
    assert resumed.step(rows, LOSS)["step/loss"] == pytest.approx(loss, rel=1e-5)
    assert float((tmp_path / "loss").read_text()) == pytest.approx(loss, rel=1e-5)

    found = load_file(tmp_path / "log_probs")
    exported = backbone_of(tmp_path / "model")
    for number, (mine, theirs, began) in enumerate(
        zip(
            alone.log_probs(rows),
            exported.log_probs(rows),
            alone.log_probs(rows, reference=True),
            strict=True,
        )
    ):
        np.testing.assert_allclose(found[f"0-{number}"], mine, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found[f"0-{number}"], theirs, rtol=0, atol=2e-6)
        np.testing.assert_allclose(found[f"1-{number}"], began, rtol=0, atol=2e-6)
