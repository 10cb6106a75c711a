"""Unmodified verl trains the learner's rows: one process on the CPU for all tests."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from agentflow.learner._checkpoints import CheckpointError
from agentflow.learner._policy import PolicySettings
from agentflow.learner.local import LocalBackbone
from agentflow.learner.packing import Row
from agentflow.learner.verl import VerlBackbone, VerlFailure, VerlSettings
from tests._verl import verl_python
from tests.agentflow.learner._models import save_tiny_model
from tests.agentflow.learner.verl._steps import LOSS, OPTIMIZER, episodes, weights_of

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def policy(model: Path) -> PolicySettings:
    return PolicySettings(model=str(model), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def verl(policy: PolicySettings) -> Iterator[VerlBackbone]:
    backbone = VerlBackbone(policy, OPTIMIZER, VerlSettings(python=verl_python()))
    yield backbone
    backbone.close()


@pytest.fixture(scope="module")
def local(policy: PolicySettings) -> Iterator[LocalBackbone]:
    backbone = LocalBackbone(policy, OPTIMIZER)
    yield backbone
    backbone.close()


def test_verl_makes_the_step_that_torch_makes(
    verl: VerlBackbone, local: LocalBackbone, model: Path, tmp_path: Path
) -> None:
    rows = episodes(local)
    before = verl.log_probs(rows)
    for theirs, row in zip(before, rows, strict=True):
        assert theirs == pytest.approx(row.behaviour, abs=1e-5)

    figures, expected = verl.step(rows, LOSS), local.step(rows, LOSS)

    assert verl.version == 1
    assert figures["step/skipped"] == 0
    assert figures["loss/tokens"] == sum(int(row.trained.sum()) for row in rows)
    for name in ("step/loss", "step/gradient_norm", "engine/k3", "reference/kl"):
        assert figures[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    began, ended = weights_of(model), weights_of(verl.export(tmp_path / "verl"))
    ours = weights_of(local.export(tmp_path / "local"))
    assert set(ended) == set(began) == set(ours)
    for name, values in ended.items():
        assert np.abs(values - began[name]).max() > 1e-4, f"{name} did not change"
        assert np.abs(values - ours[name]).max() < 1e-6, name
    assert verl.log_probs(rows, reference=True)[0] == pytest.approx(before[0], abs=1e-6)

    place = verl.save(tmp_path / "checkpoint", {"task": 3})
    verl.step(rows, LOSS)
    went_on = weights_of(verl.export(tmp_path / "second"))
    assert verl.load(place) == {"task": 3}
    assert verl.version == 1
    verl.step(rows, LOSS)
    again = weights_of(verl.export(tmp_path / "again"))
    assert all(np.array_equal(went_on[name], again[name]) for name in went_on)

    broken = [replace(rows[0], behaviour=np.full_like(rows[0].behaviour, np.nan)), *rows[1:]]
    assert verl.step(broken, LOSS)["step/skipped"] == 1
    assert verl.version == 2
    unmoved = weights_of(verl.export(tmp_path / "unmoved"))
    assert all(np.array_equal(again[name], unmoved[name]) for name in again)

    with pytest.raises(CheckpointError, match=r"missing|not a checkpoint of the verl"):
        verl.load(tmp_path / "again")


def test_ray_listens_on_loopback_and_ends_with_the_process(verl: VerlBackbone) -> None:
    theirs = [process for process in psutil.process_iter() if _is_of(process, verl.temporary)]
    servers = {name: process for process in theirs if (name := _name_of(process)) in {"gcs_server", "raylet"}}
    assert servers.keys() == {"gcs_server", "raylet"}
    addresses = [
        connection.laddr.ip
        for process in servers.values()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    verl.close()
    _, alive = psutil.wait_procs(theirs, timeout=30)
    assert alive == []
    assert not verl.temporary.exists()
    with pytest.raises(VerlFailure, match="verl died"):
        verl.log_probs([episodes_row()])


def episodes_row() -> Row:
    return Row(
        ids=np.array([2, 3], np.int32),
        trained=np.array([False, True]),
        behaviour=np.zeros(1, np.float32),
        advantages=np.zeros(1, np.float32),
        weights=np.zeros(1),
        units=np.zeros(1, np.int32),
    )


def _name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        # Ray ends those of its workers that have nothing to do.
        return ""


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(str(folder) in word for word in process.cmdline())
    except psutil.Error:
        return False
