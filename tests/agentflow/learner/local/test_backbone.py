"""Steps of the local backbone: any split, any precision, all weights or adapters."""

# pyright: reportUnknownMemberType=false
# torch is typed in part.

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from transformers import AutoModelForCausalLM

from agentflow.errors import ConfigurationError
from agentflow.learner._backbone import with_proximal, with_reference
from agentflow.learner.local import LocalBackbone, OptimizerSettings, PolicySettings
from agentflow.learner.local._backbone import micro_batches
from agentflow.learner.local._fine_tune import Lesson, lesson_rows
from agentflow.learner.losses import LossSettings
from agentflow.learner.packing import Row
from tests.agentflow.learner._models import save_tiny_model
from tests.agentflow.learner.local._steps import LOSS, backbone_of, some_rows, weights_of

ADAPTERS = {"rank": 4, "alpha": 8}
LESSONS = [
    Lesson(tuple(range(2, 2 + read)), tuple(range(60 - own, 60)))
    for read, own in ((9, 12), (15, 3), (15, 20), (3, 5), (30, 2))
]
"""Prompts that share a beginning, and completions of different lengths."""


def apart(one: LocalBackbone, other: LocalBackbone, rows: list[Row]) -> float:
    """The largest difference between what two models make of rows."""
    pairs = zip(one.log_probs(rows), other.log_probs(rows), strict=True)
    return max(float(np.abs(left - right).max()) for left, right in pairs)


def steps(backbone: LocalBackbone, rows: list[Row], count: int = 3) -> list[dict[str, float]]:
    return [backbone.step(rows, LOSS) for _ in range(count)]


def test_steps_lower_the_loss_and_count_the_versions(tiny: Path) -> None:
    backbone = backbone_of(tiny)
    rows = some_rows()
    figures = steps(backbone, rows)
    assert figures[0]["step/loss"] > figures[1]["step/loss"] > figures[2]["step/loss"]
    assert backbone.version == 3
    assert figures[0]["step/rows"] == 24
    assert figures[0]["step/forwarded_tokens"] < sum(len(row.ids) for row in rows)
    assert figures[0]["step/rate"] == 1e-2
    assert backbone.step([], LOSS)["step/rows"] == 0
    assert backbone.version == 3


@pytest.mark.parametrize("again", [False, True])
def test_micro_batches_do_not_change_a_step(tiny: Path, again: bool) -> None:
    rows = some_rows()
    whole, cut = backbone_of(tiny), backbone_of(tiny, token_budget=40, gradient_checkpointing=again)
    one, other = steps(whole, rows)[-1], steps(cut, rows)[-1]
    assert one["step/batches"] == 1
    assert other["step/batches"] > 4
    assert other["step/loss"] == pytest.approx(one["step/loss"], rel=1e-5)
    assert apart(whole, cut, rows) < 1e-4


def test_micro_batches_are_small_on_a_cpu_unless_that_would_cut_trees() -> None:
    def row_of(*tokens: int) -> Row:
        ids = np.array(tokens, np.int32)
        trained = np.arange(len(ids)) > 0
        values = np.zeros(len(ids) - 1, np.float32)
        return Row(
            ids=ids,
            trained=trained,
            behaviour=values,
            advantages=values,
            weights=values.astype(np.float64),
            units=np.zeros(len(values), np.int32),
        )

    alone = [row_of(*range(number * 200, number * 200 + 200)) for number in range(20)]
    assert [len(each) for each in micro_batches(alone, 16_384)] == [4000]
    assert [len(each) for each in micro_batches(alone, 16_384, prefer_small=True)] == [1000] * 4
    forked = [row_of(*range(900), *range(number * 100, number * 100 + 100)) for number in range(10, 20)]
    assert [len(each) for each in micro_batches(forked, 16_384, prefer_small=True)] == [1900]


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own(tiny: Path) -> None:
    backbone = backbone_of(tiny, token_budget=1)
    assert backbone.step(some_rows(tasks=1), LOSS)["step/skipped"] == 0


def test_bfloat16_accumulates_gradients_and_updates_weights_in_float32(tiny: Path) -> None:
    """With a rate far below what bfloat16 can add to a weight, many steps must still move it."""
    rows = some_rows()
    slow = OptimizerSettings(learning_rate=5e-5, weight_decay=0.0)
    rounded = backbone_of(tiny, dtype="bfloat16", optimizer=slow)
    exact = backbone_of(tiny, optimizer=slow)
    before = apart(rounded, exact, rows)
    losses = [(rounded.step(rows, LOSS)["step/loss"], exact.step(rows, LOSS)["step/loss"]) for _ in range(12)]
    assert next(iter(weights_of(rounded).values())).dtype == torch.bfloat16
    assert losses[-1][0] < losses[0][0]
    assert losses[-1][0] - losses[0][0] == pytest.approx(losses[-1][1] - losses[0][1], rel=0.2)
    assert apart(rounded, exact, rows) < 3 * before


def test_the_reference_is_the_initial_model(tiny: Path) -> None:
    rows, loss = some_rows(), LossSettings(kl_coef=0.05)
    for backbone in (backbone_of(tiny), backbone_of(tiny, lora=ADAPTERS)):
        began = backbone.log_probs(rows)
        known = with_reference(backbone, rows)
        first = backbone.step(known, loss)
        second = backbone.step(with_proximal(backbone, known), loss)
        assert first["reference/kl"] == pytest.approx(0.0, abs=1e-9)
        assert second["reference/kl"] > 1e-6
        now = backbone.log_probs(rows, reference=True)
        assert all(np.array_equal(one, other) for one, other in zip(began, now, strict=True))


def test_adapters_are_trained_alone(tiny: Path) -> None:
    backbone = backbone_of(tiny, lora=ADAPTERS)
    before = weights_of(backbone)
    steps(backbone, some_rows())
    moved = {name for name, weight in weights_of(backbone).items() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if ".lora_" in name}


@pytest.mark.parametrize("choices", [{}, {"lora": ADAPTERS}, {"dtype": "bfloat16"}])
def test_an_exported_model_equals_the_trained_one(
    tiny: Path, tmp_path: Path, choices: dict[str, object]
) -> None:
    rows = some_rows()
    backbone = backbone_of(tiny, dtype=str(choices.get("dtype", "float32")), lora=choices.get("lora"))
    steps(backbone, rows)
    folder = backbone.export(tmp_path / "new" / "model")
    exported = backbone_of(folder, dtype=backbone.settings.dtype)
    assert apart(backbone, exported, rows) <= (1e-5 if "lora" in choices else 0.0)
    assert {path.name for path in tiny.iterdir()} <= {path.name for path in folder.iterdir()}
    assert (folder / "tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()
    backbone.export(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_are_exported_for_an_engine_that_has_the_model(tiny: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    backbone = backbone_of(tiny, lora=ADAPTERS)
    steps(backbone, some_rows())
    folder = backbone.export(tmp_path / "adapters", adapters=True)
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), folder)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, backbone.model(ids).logits, atol=1e-5)


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tied", kind="qwen2", tied=True)
    backbone, rows = backbone_of(folder), some_rows()
    steps(backbone, rows)
    assert "lm_head.weight" not in weights_of(backbone)
    exported = backbone_of(backbone.export(tmp_path / "exported"))
    assert apart(backbone, exported, rows) == 0.0


def test_the_learning_rate_follows_its_schedule(tiny: Path) -> None:
    rows = some_rows(tasks=1)

    def rates(**said: object) -> list[float]:
        settings = OptimizerSettings.model_validate({"learning_rate": 1.0e-3, **said})
        backbone = backbone_of(tiny, optimizer=settings)
        return [1e3 * backbone.step(rows, LOSS)["step/rate"] for _ in range(5)]

    assert rates(warmup_steps=2) == pytest.approx([0.5, 1, 1, 1, 1])
    assert rates(lr_scheduler_type="linear", decay_steps=4) == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    assert rates(
        lr_scheduler_type="cosine", decay_steps=5, warmup_steps=1, min_lr_ratio=0.1
    ) == pytest.approx([1, 1, 0.1 + 0.9 * 0.853553, 0.55, 0.1 + 0.9 * 0.146447], abs=1e-5)


def test_a_large_gradient_is_clipped(tiny: Path) -> None:
    rows = some_rows()
    free = backbone_of(
        tiny, optimizer=OptimizerSettings(learning_rate=1e-2, max_grad_norm=1e6, adam_epsilon=10.0)
    )
    held = backbone_of(
        tiny, optimizer=OptimizerSettings(learning_rate=1e-2, max_grad_norm=1e-3, adam_epsilon=10.0)
    )
    began = weights_of(free)
    lengths = free.step(rows, LOSS)["step/gradient_norm"], held.step(rows, LOSS)["step/gradient_norm"]
    assert lengths[0] == lengths[1]

    def far(backbone: LocalBackbone) -> float:
        moved = weights_of(backbone)
        return float(sum((moved[name] - began[name]).square().sum() for name in began)) ** 0.5

    assert far(held) < far(free)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type: cosine needs decay_steps"),
        ({"decay_steps": 3, "warmup_steps": 4}, "warmup_steps is larger than decay_steps; make it smaller"),
        ({"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1"),
    ],
)
def test_invalid_optimizer_settings_are_refused(said: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        OptimizerSettings.model_validate(said)


def test_an_unusable_model_is_refused_in_one_line(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"policy.model: .*empty can't be loaded: ") as refused:
        LocalBackbone(PolicySettings(model=str(tmp_path / "empty")))
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigurationError, match=r"policy.lora.target_modules: .*; name layers of the model"):
        backbone_of(tiny, lora={"target_modules": ("nothing_like_it",)})


@pytest.mark.promise("training:safetensors")
def test_a_model_in_another_format_than_safetensors_is_refused(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "pickled")
    (weights,) = (tmp_path / "pickled").glob("*.safetensors")
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(ConfigurationError, match=r"policy.model: .*pickled can't be loaded: .*safetensors"):
        LocalBackbone(PolicySettings(model=str(tmp_path / "pickled")))


def test_an_unknown_token_is_refused_and_changes_nothing(tiny: Path) -> None:
    rows = some_rows()
    backbone, spared = backbone_of(tiny, token_budget=60), backbone_of(tiny, token_budget=60)
    with pytest.raises(ConfigurationError) as refused:
        backbone.step([*rows[:7], replace(rows[7], ids=rows[7].ids + 60), *rows[8:]], LOSS)
    assert str(refused.value).startswith("row 7 has token 1")
    assert str(refused.value).endswith("but the model has tokens 0 to 63: it was sampled by another model")
    with pytest.raises(ValueError, match=r"loss\.kl_coef needs the reference log-probabilities"):
        backbone.step(rows, LossSettings(kl_coef=0.1))
    assert backbone.step(rows, LOSS) == spared.step(rows, LOSS)


@pytest.mark.promise("learner:families")
@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "qwen3_next"])
def test_a_step_of_any_family_has_the_loss_and_gradient_of_plain_transformers(
    kind: str, tmp_path: Path
) -> None:
    folder = save_tiny_model(tmp_path / kind, kind=kind)
    rows = [replace(row, temperature=1.0) for row in lesson_rows([LESSONS])]
    backbone = backbone_of(folder, token_budget=64)
    found = backbone.log_probs(rows)
    figures = backbone.step(rows, LossSettings(name="cross_entropy"))
    assert figures["step/batches"] > 1

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    loss, count = torch.zeros(()), sum(int(row.trained.sum()) for row in rows)
    for row, ours in zip(rows, found, strict=True):
        ids = torch.from_numpy(row.ids.astype(np.int64))
        values = model(input_ids=ids[None]).logits[0].log_softmax(-1)[:-1].gather(-1, ids[1:, None])
        plain = values[torch.from_numpy(row.trained[1:]), 0]
        np.testing.assert_allclose(ours, plain.detach(), atol=1e-5)
        loss = loss - plain.sum() / count
    loss.backward()
    norm = sum(float(one.grad.square().sum()) for one in model.parameters() if one.grad is not None) ** 0.5
    assert figures["step/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert figures["step/gradient_norm"] == pytest.approx(norm, rel=1e-5)
