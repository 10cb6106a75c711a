"""The Trinity backbone and a trainer exchange folders; here the trainer is a stand-in that answers from a script."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# peft, safetensors and transformers are typed in part.

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agentflow.errors import ConfigurationError, RunStopped
from agentflow.learner import Row, TrainConfig, load_train_config
from agentflow.learner._backbone import with_reference
from agentflow.learner._checkpoints import CheckpointError
from agentflow.learner._exchange import (
    TrainerRequest,
    TrainerResponse,
    read_message,
    unpack_rows,
    write_message,
)
from agentflow.learner._policy import LoraSettings, OptimizerSettings, PolicySettings
from agentflow.learner._run import make_backbone
from agentflow.learner.losses import LossSettings
from agentflow.learner.trinity import TrinityBackbone, TrinityFailure, TrinitySettings
from agentflow.learner.trinity._settings import explorer_configuration, trinity_configuration
from tests.agentflow.learner._models import save_tiny_model
from tests.behaviour._tree import ROOT

LOSS = LossSettings(name="dapo")

TAKE = """
take() {
    while [ ! -e "$1.order" ]; do sleep 0.02; done
    mv "$1.order" "$1.taken"; cp -r "$1.taken" "$HERE/seen-$1"; cp -r "$HERE/answer" unfinished; mv unfinished "$1.answer"
}
checkpoint() {
    mkdir -p ../job/global_step_$1/actor; cp -r "$HERE/model" ../job/global_step_$1/actor/huggingface
    echo "$1" > ../job/latest_checkpointed_iteration.txt
}
figures() { echo "{\\"actor/grad_norm\\": $2, \\"time\\": 1.0}" > ../figures/$1.json; }
"""
"""Shell functions of a stand-in: take a request, write a checkpoint, write figures."""


def write_model(folder: Path) -> Path:
    """Write a model of one weight."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file({"head.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}, folder / "model.safetensors")
    return folder


def row(*, start: int = 2, weight: float = 0.5, temperature: float = 1.0) -> Row:
    trained = np.arange(5) >= start
    number = int(trained.sum())
    return Row(
        ids=np.arange(10 * start, 10 * start + 5, dtype=np.int32),
        trained=trained,
        behaviour=np.full(number, -1.5, np.float32),
        advantages=np.full(number, 2.0, np.float32),
        weights=np.full(number, weight),
        units=np.zeros(number, np.int32),
        temperature=temperature,
    )


@contextmanager
def trained_by(
    folder: Path, script: str, policy: PolicySettings | None = None, **settings: object
) -> Generator[TrinityBackbone]:
    """Yield a backbone whose trainer is a shell script."""
    model = write_model(folder / "model")
    write_message(folder / "answer", TrainerResponse(), {})
    stand_in = folder / "python"
    stand_in.write_text(f"#!/bin/sh\nHERE={folder}\n{TAKE}\n{dedent(script)}")
    stand_in.chmod(0o755)
    given = {"python": stand_in, "max_rows": 8, **settings}
    backbone = TrinityBackbone(
        policy or PolicySettings(model=str(model)),
        OptimizerSettings(max_skipped_steps=0),
        TrinitySettings.model_validate(given),
    )
    try:
        yield backbone
    finally:
        backbone.close()
        assert not backbone.temporary.exists()


@pytest.mark.promise("trinity:protocol")
def test_a_step_is_written_and_its_checkpoint_awaited_exported_and_resumed(tmp_path: Path) -> None:
    script = """
        touch ready; n=1; [ -e ../job/latest_checkpointed_iteration.txt ] && n=$(($(cat ../job/latest_checkpointed_iteration.txt) + 1))
        while :; do
            take $(printf %08d $n); figures $n 0.25; checkpoint $n; n=$((n + 1))
        done
    """
    rows = [row(), row(start=3)]
    with trained_by(tmp_path, script) as backbone:
        assert (backbone.export(tmp_path / "before") / "model.safetensors").exists()
        first = backbone.save(tmp_path / "empty", {"step": 0})
        assert backbone.step([], LOSS) == {"step/rows": 0.0, "step/skipped": 0.0}

        figures = backbone.step(rows, LOSS)
        assert figures == {
            "step/gradient_norm": 0.25,
            "trinity/time": 1.0,
            "step/rows": 2.0,
            "step/skipped": 0.0,
        }
        request, arrays = read_message(tmp_path / "seen-00000001", TrainerRequest)
        assert request.kind == "step"
        for sent, found in zip(rows, unpack_rows(arrays), strict=True):
            assert np.array_equal(sent.ids, found.ids) and np.array_equal(sent.behaviour, found.behaviour)

        assert backbone.version == 1
        exported = backbone.export(tmp_path / "after")
        assert {path.name for path in exported.iterdir()} >= {"config.json", "model.safetensors"}
        saved = backbone.save(tmp_path / "saved", {"step": 1})
        backbone.step(rows, LOSS)
        assert backbone.version == 2

        assert backbone.load(saved) == {"step": 1}
        assert backbone.version == 1
        backbone.step(rows, LOSS)
        assert (tmp_path / "seen-00000002").exists()
        assert backbone.load(first) == {"step": 0}
        assert backbone.version == 0

        (saved / "trinity/actor/huggingface/config.json").write_text("[]")
        with pytest.raises(CheckpointError, match="altered"):
            backbone.load(saved)
        with pytest.raises(CheckpointError, match="missing"):
            backbone.load(exported / "nothing")


FAILURES = {
    "crash": (
        "touch ready; take 00000001; echo 'RuntimeError: CUDA out of memory' >&2; exit 3",
        "Trinity died during the step 1: RuntimeError: CUDA out of memory",
    ),
    "crash before the start": (
        "echo 'ImportError: no module named trinity' >&2; exit 3",
        "Trinity did not become ready: ImportError: no module named trinity",
    ),
    "crash before the rows": (
        "touch ready; while [ ! -e 00000001.order ]; do sleep 0.02; done; echo 'OSError: no space' >&2",
        "Trinity died during the rows 1: OSError: no space",
    ),
    "failed step with a final checkpoint": (
        "touch ready; take 00000001; checkpoint 1; echo 'ValueError: bad batch' >&2; exit 0",
        "Trinity died during the step 1: ValueError: bad batch",
    ),
    "hang": (
        "touch ready; take 00000001; figures 1 0.5; exec sleep 1000",
        r"Trinity did not finish the (rows|step) 1 within 0.3 seconds \(trinity.step_seconds\); it was stopped",
    ),
    "refusal": (
        """
        touch ready; sed -i 's/"error":""/"error":"ValueError: too long"/' "$HERE/answer/message.json"; take 00000001; exec sleep 1000
        """,
        "Trinity refused the rows of step 1: ValueError: too long",
    ),
}


@pytest.mark.promise("trinity:failures")
@pytest.mark.parametrize("kind", FAILURES)
def test_a_trainer_that_fails_is_an_error_of_one_line(tmp_path: Path, kind: str) -> None:
    script, message = FAILURES[kind]
    seconds = 0.3 if kind == "hang" else 60.0
    with trained_by(tmp_path, script, step_seconds=seconds) as backbone:
        with pytest.raises(TrinityFailure, match=message) as raised:
            backbone.step([row()], LOSS)
        assert "\n" not in str(raised.value)
        assert backbone.version == 0


@pytest.mark.promise("trinity:failures")
@pytest.mark.parametrize(
    "cut", ["truncate -s -4 model.safetensors", "rm config.json", "rm model.safetensors"]
)
def test_half_a_checkpoint_is_not_exported(tmp_path: Path, cut: str) -> None:
    script = f"""
        touch ready; take 00000001; figures 1 0.5; checkpoint 1
        cd ../job/global_step_1/actor/huggingface; {cut}; touch "$HERE/cut"; exec sleep 1000
    """
    with trained_by(tmp_path, script) as backbone:
        backbone.step([row()], LOSS)
        while not (tmp_path / "cut").exists():
            pass
        with pytest.raises(TrinityFailure, match="Trinity's checkpoint of step 1 is incomplete"):
            backbone.export(tmp_path / "exported")
        assert not (tmp_path / "exported").exists()


@pytest.mark.promise("trinity:failures")
def test_a_step_whose_gradient_is_not_finite_changes_no_version(tmp_path: Path) -> None:
    with trained_by(
        tmp_path, "touch ready; take 00000001; figures 1 NaN; checkpoint 1; exec sleep 1000"
    ) as backbone:
        with pytest.raises(RunStopped, match="the gradient was not finite in 1 consecutive steps"):
            backbone.step([row()], LOSS)
        assert backbone.version == 0


@pytest.mark.promise("trinity:refused")
def test_what_trinity_cannot_do_is_refused_in_one_line(tmp_path: Path) -> None:
    with trained_by(
        tmp_path, "touch ready; take 00000001; figures 1 0.5; checkpoint 1; exec sleep 1000"
    ) as backbone:
        refused = {
            r"log_probs: Trinity's trainer returns no log-probabilities": lambda: backbone.log_probs([row()]),
            r"temperature: Trinity has one for all rows": lambda: backbone.step(
                [row(), row(start=3, temperature=0.5)], LOSS
            ),
            r"schedule\.steps_per_batch: backbone=trinity makes one": lambda: backbone.step(
                [replace(row(), proximal=np.zeros(3, np.float32))], LOSS
            ),
            r"trinity\.max_rows: the step has 9 rows, more than 8": lambda: backbone.step(
                [replace(row(), ids=np.full(5, number, np.int32)) for number in range(9)], LOSS
            ),
            r"loss\.name: backbone=trinity computes dapo, dr_grpo, flow_grpo, grpo, not gspo": lambda: (
                backbone.step([row()], LossSettings(name="gspo"))
            ),
        }
        for message, call in refused.items():
            with pytest.raises(ConfigurationError, match=message) as raised:
                call()
            assert "\n" not in str(raised.value)
        assert backbone.log_probs([]) == []
        backbone.step([row()], LOSS)
        with pytest.raises(ConfigurationError, match="loss and temperature are fixed at its start"):
            backbone.step([row()], LossSettings(name="dapo", clip_ratio_low=0.1))


@pytest.mark.promise("trinity:refused")
def test_unsupported_settings_are_refused_before_anything_starts(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    settings = TrinitySettings(python=tmp_path / "nowhere", max_rows=9, gpus=2)
    with pytest.raises(ConfigurationError, match=r"policy\.model: Trinity starts from a folder"):
        TrinityBackbone(PolicySettings(model="some/name"), None, settings)
    with pytest.raises(ConfigurationError, match=r"policy\.lora\.target_modules: Trinity takes one name"):
        TrinityBackbone(
            PolicySettings(model=model, lora=LoraSettings(target_modules=("q_proj",))), None, settings
        )
    linear = OptimizerSettings(lr_scheduler_type="linear", decay_steps=9)
    with pytest.raises(ConfigurationError, match="Trinity does not support linear"):
        TrinityBackbone(PolicySettings(model=model), linear, settings)
    with pytest.raises(ConfigurationError, match="9 rows can't be divided among 2 GPUs"):
        TrinityBackbone(PolicySettings(model=model), None, settings)
    run = {"backbone": "trinity", "policy": {"model": model}, "loss": {"name": "dapo"}}
    for changed, message in (
        ({"schedule": {"steps_per_batch": 2}}, "backbone=trinity makes one step per batch"),
        ({"schedule": {"mode": "async", "max_staleness": 2}}, "has no probabilities of older weights"),
    ):
        with pytest.raises(ValueError, match=message):
            TrainConfig.model_validate(run | changed)
    config = TrainConfig.model_validate(run | {"trinity": {"python": str(tmp_path / "nowhere")}})
    with pytest.raises(
        ConfigurationError, match=r"nowhere does not exist; make it with `make \.venv-trinity"
    ):
        make_backbone(config)


@pytest.mark.promise("trinity:kl")
def test_the_math_example_passes_its_kl_and_adapters_to_trinity(tmp_path: Path) -> None:
    config = load_train_config(
        str(ROOT / "tutorial/example_math_agent/math_agent.yaml"),
        ["backbone=trinity", "trinity.explorer={engines: 2}"],
    )
    assert config.policy is not None
    trainer = trinity_configuration(config.policy, config.optimizer, config.loss, config.trinity, tmp_path)
    arguments = trainer["algorithm"]["policy_loss_fn_args"]
    assert (arguments["kl_fn"], arguments["kl_coef"]) == ("low_var_kl", 0.001)
    [lora] = trainer["model"]["lora_configs"]
    assert (lora["lora_rank"], lora["lora_alpha"], lora["target_modules"]) == (32, 64, "all-linear")
    assert config.trinity.explorer is not None
    explorer = explorer_configuration(trainer, config.trinity.explorer)
    assert (explorer["mode"], explorer["synchronizer"]["sync_style"]) == ("serve", "fully_async")
    assert (explorer["cluster"]["gpu_per_node"], trainer["cluster"]["gpu_per_node"]) == (2, 1)
    assert explorer["name"] == trainer["name"]


@pytest.mark.promise("trinity:refused")
@pytest.mark.parametrize("backbone", ["trinity", "verl", "local"])
def test_a_name_that_the_hub_does_not_know_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = TrainConfig.model_validate(
        {"backbone": backbone, "policy": {"model": "nobody/nothing"}, "output_dir": str(tmp_path)}
    )
    with pytest.raises(ConfigurationError, match=r"policy\.model: nobody/nothing is not a folder") as raised:
        make_backbone(config)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("trinity:kl")
def test_a_kl_term_needs_no_log_probabilities_of_the_backbone(tmp_path: Path) -> None:
    script = "touch ready; take 00000001; figures 1 0.5; checkpoint 1; exec sleep 1000"
    with trained_by(tmp_path, script) as backbone:
        rows = with_reference(backbone, [row()])
        assert backbone.step(rows, LossSettings())["step/rows"] == 1.0
        assert not (backbone.temporary / "explorer.yaml").exists()


@pytest.mark.promise("trinity:adapters")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_of_a_checkpoint_are_exported_merged(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model  # imports torch
    from transformers import AutoModelForCausalLM

    model = save_tiny_model(tmp_path / "tiny")
    adapters = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model),
        LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=False),
    )
    adapters.save_pretrained(str(tmp_path / "lora"))
    script = """
        touch ready; take 00000001; figures 1 0.5; checkpoint 1; cp -r "$HERE/lora" ../job/global_step_1/actor/lora_adapter
        take 00000002; figures 2 0.5; checkpoint 2; exec sleep 1000
    """
    policy = PolicySettings(model=str(model), dtype="float32", lora=LoraSettings(rank=2, alpha=4))
    with trained_by(tmp_path, script, policy=policy) as backbone:
        backbone.step([row()], LOSS)
        exported = load_file(backbone.export(tmp_path / "exported") / "model.safetensors")
        before, change = (
            load_file(model / "model.safetensors"),
            load_file(tmp_path / "lora/adapter_model.safetensors"),
        )
        name = "model.layers.1.self_attn.q_proj"
        product = (
            change[f"base_model.model.{name}.lora_B.weight"]
            @ change[f"base_model.model.{name}.lora_A.weight"]
        )
        assert np.abs(product).max() > 1e-4
        for known in before:
            added = 2 * product if known == f"{name}.weight" else 0.0
            if "q_proj" not in known or known == f"{name}.weight":
                assert np.allclose(exported[known], before[known] + added, atol=1e-6)
        backbone.step([row()], LOSS)
        with pytest.raises(TrinityFailure, match="Trinity's checkpoint of step 2 is incomplete") as raised:
            backbone.export(tmp_path / "again")
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "again").exists()


def test_settings_reach_trinity_by_its_names(tmp_path: Path) -> None:
    settings = TrinitySettings(gpus=4, options={"trainer.param_offload": True, "new.section.key": 1})
    configuration = trinity_configuration(
        PolicySettings(model=str(tmp_path), dtype="float32"),
        OptimizerSettings(learning_rate=3e-6, max_grad_norm=0.5),
        LossSettings(name="dapo"),
        settings,
        tmp_path,
        temperature=0.7,
    )
    algorithm, trainer = configuration["algorithm"], configuration["trainer"]
    assert configuration["mode"] == "train"
    assert algorithm["optimizer"]["lr"] == 3e-6
    assert algorithm["policy_loss_fn_args"]["clip_range_high"] == 0.28
    assert trainer["grad_clip"] == 0.5
    assert trainer["param_offload"] is True
    assert configuration["model"]["temperature"] == 0.7
    assert configuration["cluster"]["gpu_per_node"] == 4
    assert configuration["new"] == {"section": {"key": 1}}
    wrong = TrinitySettings(options={"mode.train": 1})
    with pytest.raises(
        ConfigurationError, match=r"trinity\.options: mode\.train is not a setting of Trinity"
    ):
        trinity_configuration(PolicySettings(model=str(tmp_path)), OptimizerSettings(), LOSS, wrong, tmp_path)
