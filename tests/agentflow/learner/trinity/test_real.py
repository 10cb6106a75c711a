"""The real Trinity-RFT, in its own environment: its storage, its losses, its trainer's loop."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# safetensors and torch are typed in part.

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file

from agentflow.learner import Row
from agentflow.learner._exchange import TrainerRequest, pack_rows, write_message
from agentflow.learner._policy import LoraSettings, OptimizerSettings, PolicySettings
from agentflow.learner._trainer_process import trainer_environment, trainer_folder
from agentflow.learner.local import LocalBackbone
from agentflow.learner.losses import LossSettings, loss_of
from agentflow.learner.trinity import TrinityBackbone, TrinityFailure, TrinitySettings
from agentflow.learner.trinity._settings import (
    ExplorerSettings,
    algorithm_options,
    explorer_configuration,
    trinity_configuration,
)
from tests._trinity import trinity_python
from tests.agentflow.learner._models import save_tiny_model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ON_CPU = Path(__file__).parent / "_on_cpu"
OPTIMIZER = OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, adam_epsilon=1e-3)
LOSSES = {
    "grpo": LossSettings(name="grpo", kl_coef=0.0),
    "flow_grpo": LossSettings(name="flow_grpo", kl_coef=0.0),
    "dapo": LossSettings(name="dapo", clip_ratio_c=3.0),
    "token mean": LossSettings(name="grpo", kl_coef=0.0, loss_agg_mode="token-mean"),
    **{f"kl {name}": LossSettings(kl_coef=0.5, kl_estimator=name) for name in ("k1", "k2", "k3")},
}


def random_row(random: np.random.Generator, number: int) -> Row:
    """Return a row with gaps; `reference` holds the current log-probabilities."""
    trained = random.uniform(size=int(random.integers(3, 15))) < 0.6
    trained[0], trained[-1] = False, True
    count = int(trained.sum())
    behaviour = -random.uniform(0.1, 4.0, count)
    return Row(
        ids=random.integers(0, 60, len(trained)).astype(np.int32),
        trained=trained,
        behaviour=behaviour.astype(np.float32),
        advantages=random.normal(size=count).astype(np.float32),
        weights=random.uniform(0.01, 1.0, count),
        units=np.full(count, number, np.int32),
        reference=(behaviour + random.normal(scale=0.5, size=count)).astype(np.float32),
    )


@pytest.mark.promise("trinity:exact")
@pytest.mark.parametrize("name", LOSSES)
def test_rows_pass_the_storage_bit_by_bit_and_have_the_same_loss(tmp_path: Path, name: str) -> None:
    random, settings = np.random.default_rng(3), LOSSES[name]
    rows = [random_row(random, number) for number in range(9)]
    if name == "token mean":
        count = sum(int(row.trained.sum()) for row in rows)
        rows = [replace(row, weights=np.full(len(row.weights), 1 / count)) for row in rows]
    write_message(tmp_path / "rows", TrainerRequest(kind="step"), pack_rows(rows))
    (tmp_path / "loss.json").write_text(json.dumps(algorithm_options(settings)))
    with trainer_folder() as base:
        subprocess.run(
            [
                trinity_python(),
                ON_CPU / "storage.py",
                "rows",
                "loss.json",
                tmp_path / "rows.db",
                "result.npz",
            ],
            cwd=tmp_path,
            env=trainer_environment(base / "code"),
            check=True,
        )
    found = np.load(tmp_path / "result.npz")
    for number, row in enumerate(rows):
        start = int(np.argmax(row.trained))
        mask = row.trained[start:]
        assert found[f"prompt-{number}"] == start
        assert found[f"tokens-{number}"].tobytes() == row.ids.tobytes()
        assert found[f"action_mask-{number}"].tobytes() == mask.tobytes()
        assert found[f"logprobs-{number}"][mask].tobytes() == row.behaviour.tobytes()
        expected = (row.advantages * row.weights).astype(np.float32)
        assert found[f"advantages-{number}"][mask].tobytes() == expected.tobytes()
        assert not found[f"advantages-{number}"][~mask].any()
    width = max(int(row.trained.sum()) for row in rows)
    current = torch.zeros(len(rows), width, dtype=torch.float64)
    for line, row in zip(current, rows, strict=True):
        assert row.reference is not None
        line[: len(row.reference)] = torch.from_numpy(row.reference)
    referred = [replace(row, reference=row.behaviour - np.float32(0.3)) for row in rows]
    ours, _ = loss_of(current, referred, settings)
    assert float(found["ours"]) == pytest.approx(float(ours), abs=1e-6)
    # Trinity's own mean over tokens: the weights are in the advantages already.
    without_kl, _ = loss_of(current, rows, settings.model_copy(update={"kl_coef": 0.0}))
    count = sum(int(row.trained.sum()) for row in rows)
    assert float(found["ppo"]) * count == pytest.approx(float(without_kl), abs=1e-6)
    assert bool(settings.kl_coef) == (abs(float(found["ours"]) - float(without_kl)) > 1e-3)


@pytest.mark.promise("trinity:kl")
def test_trinitys_own_classes_accept_kl_adapters_and_the_asynchronous_explorer(tmp_path: Path) -> None:
    policy = PolicySettings(
        model=str(save_tiny_model(tmp_path / "model")), lora=LoraSettings(rank=8, alpha=16)
    )
    settings = TrinitySettings(max_rows=12, explorer=ExplorerSettings(engines=2))
    trainer = trinity_configuration(policy, OPTIMIZER, LossSettings(), settings, tmp_path)
    assert settings.explorer is not None
    explorer = explorer_configuration(trainer, settings.explorer)
    for name, content in (("trainer", trainer), ("explorer", explorer)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    with trainer_folder() as base:
        run = subprocess.run(
            [trinity_python(), ON_CPU / "configurations.py", "trainer.yaml", "explorer.yaml"],
            cwd=tmp_path,
            env=trainer_environment(base / "code"),
            check=True,
            stdout=subprocess.PIPE,
        )
    train, serve = json.loads(run.stdout.splitlines()[-1])
    assert (train["mode"], train["lora"], train["gpus"]) == ("train", [8, 16], [1, 0])
    assert (serve["mode"], serve["lora_in_engine"], serve["gpus"][1]) == ("serve", True, 2)
    assert train["namespace"] == serve["namespace"]
    assert {train["sync_style"], serve["sync_style"]} == {"fully_async"}
    assert (
        train["loss"].startswith("TrinityPolicyLoss(policy=WeightedSumLossWithKL")
        and train["kl_coef"] == 0.001
    )


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicySettings:
    model = save_tiny_model(tmp_path_factory.mktemp("model"))
    return PolicySettings(model=str(model), dtype="float32", device="cpu")


@pytest.fixture
def trinity(policy: PolicySettings, tmp_path: Path) -> Iterator[TrinityBackbone]:
    """Yield a backbone whose engine computes on the CPU; all else is Trinity's."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ON_CPU}:$PYTHONPATH exec {trinity_python()} "$@"\n')
    python.chmod(0o755)
    backbone = TrinityBackbone(policy, OPTIMIZER, TrinitySettings(python=python, max_rows=12))
    yield backbone
    backbone.close()
    assert not backbone.temporary.exists()


def difference(one: Path, other: Path) -> float:
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert set(first) == set(second)
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


@pytest.mark.promise("trinity:exact")
def test_trinitys_loop_makes_the_steps_that_torch_makes_and_resumes(
    policy: PolicySettings, trinity: TrinityBackbone, tmp_path: Path
) -> None:
    local = LocalBackbone(policy, OPTIMIZER)
    random, loss = np.random.default_rng(5), LOSSES["flow_grpo"]
    rows = [replace(random_row(random, number), reference=None) for number in range(9)]
    rows = [replace(row, behaviour=found) for row, found in zip(rows, local.log_probs(rows), strict=True)]
    for step in (1, 2):
        figures, expected = trinity.step(rows, loss), local.step(rows, loss)
        assert figures["step/gradient_norm"] == pytest.approx(expected["step/gradient_norm"], rel=1e-4)
        assert figures["trinity/rows"] == 12
        apart = difference(trinity.export(tmp_path / f"t{step}"), local.export(tmp_path / f"l{step}"))
        assert apart < 1e-6
        trinity.save(tmp_path / f"saved-{step}", {"task": step})
    assert difference(tmp_path / "t1", tmp_path / "t2") > 1e-5
    assert trinity.load(tmp_path / "saved-1") == {"task": 1}
    trinity.step(rows, loss)
    assert difference(trinity.export(tmp_path / "again"), tmp_path / "t2") < 1e-6
    # Trinity ends after a failed step, with a checkpoint that is no step.
    (trinity.temporary / "fail").touch()
    with pytest.raises(TrinityFailure, match=r"Trinity died during the step 3: .*CUDA out of memory"):
        trinity.step(rows, loss)
    local.close()


NO_GPU = "Total available GPUs 0 is less"


@pytest.mark.parametrize(
    ("explorer", "reason"),
    # The first of the two to fail ends both; vLLM needs a GPU, too, and is not in the environment of the tests.
    [(None, NO_GPU), (ExplorerSettings(), f"({NO_GPU}|No module named 'vllm')")],
    ids=["trainer", "trainer and explorer"],
)
def test_without_a_gpu_the_real_trainer_says_so_in_one_line(
    policy: PolicySettings, explorer: ExplorerSettings | None, reason: str
) -> None:
    if torch.cuda.is_available():
        return
    settings = TrinitySettings(python=trinity_python(), max_rows=12, explorer=explorer)
    backbone = TrinityBackbone(policy, OPTIMIZER, settings)
    row = replace(random_row(np.random.default_rng(1), 0), reference=None)
    with pytest.raises(TrinityFailure, match=f"Trinity died during the step 1: .*{reason}"):
        backbone.step([row], LOSSES["grpo"])
    backbone.close()
