"""Messages between AgentFlow and verl are exact and atomic."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from agentflow.errors import ConfigurationError
from agentflow.learner._config import TrainConfig
from agentflow.learner._exchange import (
    TrainerRequest,
    TrainerResponse,
    pack_rows,
    read_message,
    unpack_rows,
    write_message,
)
from agentflow.learner._policy import LoraSettings, OptimizerSettings, PolicySettings
from agentflow.learner._run import make_backbone
from agentflow.learner.losses import LossSettings
from agentflow.learner.packing import Row
from agentflow.learner.verl import VerlBackbone, VerlFailure, VerlSettings
from agentflow.learner.verl._settings import command_arguments
from tests._verl import verl_python


def random_row(random: np.random.Generator) -> Row:
    """Return a row with untrained gaps, and values of every kind."""
    trained = random.uniform(size=int(random.integers(2, 12))) < 0.6
    trained[0] = False
    number = int(trained.sum())
    return Row(
        ids=random.integers(0, 2**17, len(trained)).astype(np.int32),
        trained=trained,
        behaviour=random.normal(size=number).astype(np.float32),
        advantages=random.normal(size=number).astype(np.float32),
        weights=random.normal(size=number),
        units=random.integers(0, 9, number).astype(np.int32),
        temperature=0.7,
        reference=random.normal(size=number).astype(np.float32),
    )


def tiny_folder(folder: Path) -> Path:
    """Make a folder that looks like a model's."""
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("number", [0, 1, 5])
def test_rows_are_restored_exactly(tmp_path: Path, number: int) -> None:
    random = np.random.default_rng(number)
    rows = [random_row(random) for _ in range(number)]
    order = TrainerRequest(kind="step", loss=LossSettings().model_dump(mode="json"))
    write_message(tmp_path / "0.order", order, pack_rows(rows))
    found, arrays = read_message(tmp_path / "0.order", TrainerRequest)
    assert found == order
    back = unpack_rows(arrays)
    assert len(back) == number
    for one, other in zip(rows, back, strict=True):
        for field in fields(Row):
            ours, theirs = np.asarray(getattr(one, field.name)), np.asarray(getattr(other, field.name))
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes(), field.name


def test_a_message_appears_atomically(tmp_path: Path) -> None:
    (tmp_path / "0.answer.unfinished").mkdir()
    (tmp_path / "0.answer.unfinished" / "message.json").write_text("{")
    assert not (tmp_path / "0.answer").exists()
    write_message(tmp_path / "0.answer", TrainerResponse(figures={"step/loss": 0.1}), {})
    assert read_message(tmp_path / "0.answer", TrainerResponse) == (
        TrainerResponse(figures={"step/loss": 0.1}),
        {},
    )
    assert [path.name for path in tmp_path.iterdir()] == ["0.answer"]


def test_rows_with_partial_references_are_refused() -> None:
    random = np.random.default_rng(0)
    rows = [random_row(random), replace(random_row(random), reference=None)]
    with pytest.raises(ValueError, match="some rows have reference"):
        pack_rows(rows)


def test_settings_reach_verl_by_its_names(tmp_path: Path) -> None:
    policy = PolicySettings(model=str(tiny_folder(tmp_path)), lora=LoraSettings(rank=8), dtype="bfloat16")
    settings = VerlSettings(gpus=4, options={"trainer.nnodes": 2, "trainer.n_gpus_per_node": 8})
    words = command_arguments(
        policy,
        OptimizerSettings(learning_rate=3e-6, max_grad_norm=0.5),
        settings,
        tmp_path,
    )
    said = dict(word.removeprefix("++").split("=", 1) for word in words)
    assert len(said) == len(words)
    assert said["actor_rollout_ref.actor.optim.lr"] == "3e-06"
    assert said["actor_rollout_ref.actor.grad_clip"] == "0.5"
    assert said["actor_rollout_ref.model.lora_rank"] == "8"
    assert said["trainer.nnodes"] == "2"
    assert said["trainer.n_gpus_per_node"] == "8"
    assert said["trainer.v1.trainer_mode"] == "agentflow"
    assert "trainer.device" not in said
    assert said["ray_kwargs.ray_init._temp_dir"] == str(tmp_path / "ray")


def test_a_running_ray_cluster_gets_neither_resources_nor_folders(tmp_path: Path) -> None:
    policy = PolicySettings(model=str(tiny_folder(tmp_path)))
    settings = VerlSettings(python=tmp_path, gpus=2, nodes=3, ray_address="10.0.0.1:6379")
    for given in (settings, settings.model_copy(update={"gpus": 0})):
        words = command_arguments(policy, OptimizerSettings(), given, tmp_path)
        said = dict(word.removeprefix("++").split("=", 1) for word in words)
        ray = {
            name.removeprefix("ray_kwargs.ray_init."): value for name, value in said.items() if "ray_" in name
        }
        assert ray == {
            "address": "10.0.0.1:6379",
            "runtime_env.py_executable": str(tmp_path),
            "runtime_env.env_vars.PYTHONPATH": str(tmp_path / "code"),
            "runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES": "agentflow.learner.verl._inside",
            "runtime_env.env_vars.AGENTFLOW_VERL_DEVICE": "gpu" if given.gpus else "cpu",
        }
        assert (said["trainer.nnodes"], said["trainer.n_gpus_per_node"]) == ("3", str(given.gpus or 1))
        assert said["data.train_batch_size"] == str(3 * (given.gpus or 1))


@pytest.mark.promise("training:verl:refused")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 2}, "shared_folder, nodes: only a Ray cluster uses them; set ray_address"),
        ({"ray_address": "auto"}, "shared_folder: none is not a folder; name one that all machines"),
        ({"ray_address": "auto", "shared_folder": "/no/folder"}, "shared_folder: /no/folder is not a folder"),
        ({"ray_address": "127.0.0.1:1", "shared_folder": "/tmp"}, "no Ray cluster answers at 127.0.0.1:1: "),
        (
            {"ray_address": "head", "shared_folder": "/tmp"},
            "no Ray cluster answers at head: .*; use HOST:PORT",
        ),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    policy = PolicySettings(model=str(tiny_folder(tmp_path)))
    given = VerlSettings.model_validate({"python": tmp_path, **settings})
    with pytest.raises(ConfigurationError, match=message) as raised:
        VerlBackbone(policy, OptimizerSettings(), given)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("training:verl:refused")
def test_a_cluster_with_another_version_of_ray_is_named_in_one_line(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(
        "#!/bin/sh\ncat >&2 <<END\nRuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n"
        "This process on node 10.0.0.2 was started with:\n    Ray: 2.0.0\nEND\nexit 1\n"
    )
    other.chmod(0o755)
    policy = PolicySettings(model=str(tiny_folder(tmp_path)))
    settings = VerlSettings(python=other, ray_address="auto", shared_folder=tmp_path)
    message = (
        "The cluster was started with: Ray: 2.60.0 This process on node 10.0.0.2 was started with: Ray: 2.0.0"
    )
    with pytest.raises(VerlFailure, match=message):
        VerlBackbone(policy, OptimizerSettings(), settings)
    assert not list(tmp_path.glob("af-*"))


def test_unsupported_settings_are_refused_in_one_line(tmp_path: Path) -> None:
    policy = PolicySettings(model=str(tiny_folder(tmp_path)))
    with pytest.raises(ConfigurationError, match="does not support linear; set constant or cosine"):
        command_arguments(
            policy,
            OptimizerSettings(lr_scheduler_type="linear", decay_steps=9),
            VerlSettings(),
            tmp_path,
        )
    nowhere = PolicySettings(model="some/name")
    with pytest.raises(ConfigurationError, match=r"policy\.model: verl starts from a folder"):
        command_arguments(nowhere, OptimizerSettings(), VerlSettings(), tmp_path)
    with pytest.raises(ConfigurationError, match="make it with `make"):
        VerlSettings(python=tmp_path / "no-python").interpreter()


def test_a_training_run_chooses_it_by_name(tmp_path: Path) -> None:
    policy = {"model": str(tiny_folder(tmp_path))}
    config = TrainConfig.model_validate(
        {"backbone": "verl", "policy": policy, "verl": {"python": str(tmp_path / "no-python")}}
    )
    with pytest.raises(ConfigurationError, match=r"no-python does not exist; make it with `make"):
        make_backbone(config)


def test_a_failed_start_of_verl_is_reported_with_its_last_error(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'ImportError: no module named verl' >&2\nexit 1\n")
    broken.chmod(0o755)
    policy = PolicySettings(model=str(tiny_folder(tmp_path)))
    with pytest.raises(VerlFailure, match="did not become ready: ImportError: no module named verl"):
        VerlBackbone(policy, OptimizerSettings(), VerlSettings(python=broken))


def test_a_start_timeout_of_ray_is_retried_once(tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text(
        "#!/bin/sh\nif [ ! -e tried ]; then touch tried\n"
        "echo 'Exception: The current node timed out during startup.' >&2; exit 1; fi\n"
        "touch ready\nwhile [ ! -e 00000000.order ]; do sleep 0.05; done\n"
    )
    slow.chmod(0o755)
    policy = PolicySettings(model=str(tiny_folder(tmp_path)))
    backbone = VerlBackbone(policy, OptimizerSettings(), VerlSettings(python=slow))
    assert backbone.version == 0
    backbone.close()


def test_a_death_of_verl_during_a_request_is_reported_with_its_last_error(tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text(
        "#!/bin/sh\ntouch ready\nwhile [ ! -e 00000000.order ]; do sleep 0.05; done\n"
        "echo 'RuntimeError: out of memory' >&2\nexit 3\n"
    )
    dying.chmod(0o755)
    policy = PolicySettings(model=str(tiny_folder(tmp_path)))
    backbone = VerlBackbone(policy, OptimizerSettings(), VerlSettings(python=dying))
    rows = [random_row(np.random.default_rng(1))]
    with pytest.raises(VerlFailure, match="verl died during log_probs: RuntimeError: out of memory"):
        backbone.log_probs(rows)
    backbone.close()
    assert not backbone.temporary.exists()


def test_a_step_that_verl_does_not_support_changes_nothing(tmp_path: Path) -> None:
    waiting = tmp_path / "python"
    waiting.write_text("#!/bin/sh\ntouch ready\nwhile [ ! -e 00000000.order ]; do sleep 0.05; done\n")
    waiting.chmod(0o755)
    policy = PolicySettings(model=str(tiny_folder(tmp_path)))
    backbone = VerlBackbone(policy, OptimizerSettings(), VerlSettings(python=waiting))
    row = random_row(np.random.default_rng(1))
    with pytest.raises(
        ConfigurationError, match=r"loss\.entropy_coef: verl's step does not return the entropy"
    ):
        backbone.step([row], LossSettings(entropy_coef=0.1))
    with pytest.raises(ConfigurationError, match="temperature: verl's step has one for all rows"):
        backbone.step([row, replace(row, temperature=1.0)], LossSettings())
    assert backbone.step([], LossSettings()) == {"step/rows": 0.0, "step/skipped": 0.0}
    assert backbone.version == 0
    backbone.close()
    assert not backbone.temporary.exists()


@pytest.mark.timeout(900)  # The environment may have to be made, or another process makes it.
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("distributed", 'backend = backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"'),
        ("fsdp_utils", "local_cpu_tensor = local_gpu_tensor.detach().cpu()"),
    ],
)
def test_verl_still_needs_the_cpu_workarounds(module: str, line: str) -> None:
    """If this fails, a workaround in `VerlActor` is no longer needed: remove it, and its paragraph in docs/verl.md."""
    (file,) = verl_python().parent.parent.glob(f"lib/python*/site-packages/verl/utils/{module}.py")
    assert line in file.read_text(encoding="utf-8")
