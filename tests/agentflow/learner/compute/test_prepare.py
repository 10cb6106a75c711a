"""Unsupported models are refused in one line, and branches never see each other."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch, transformers and peft are typed in part.

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftConfig, PromptTuningConfig, get_peft_model
from structlog.testing import capture_logs
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from agentflow.errors import ConfigurationError
from agentflow.learner.compute import Attention, log_probs, log_probs_by_row, prepare
from agentflow.learner.compute._attention import TreeMask
from agentflow.learner.packing import pack
from tests._real_model import real_model
from tests.agentflow.learner._models import tiny_model
from tests.agentflow.learner._packed_rows import plain_row

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
CHANCE = np.random.default_rng(0)
STEM = CHANCE.integers(1, 64, 150).tolist()
ROWS = [
    plain_row([*STEM[:shared], *CHANCE.integers(1, 64, 70).tolist()], [False] * shared + [True] * 70)
    for shared in (40, 90, 150, 150)
]


def adapted(model: Any, settings: PeftConfig) -> Any:  # noqa: ANN401 - peft's
    """The model with adapters."""
    with warnings.catch_warnings():
        # peft asks by a name that transformers is about to drop.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return get_peft_model(model, settings)


@pytest.mark.parametrize("attention", ["blocks", "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_change_in_one_branch_changes_nothing_in_another(attention: Attention, dtype: torch.dtype) -> None:
    model = tiny_model(dtype=dtype)
    prepare(model)
    [packed] = pack(ROWS)
    before = log_probs(model, packed, attention=attention)
    for line, number in enumerate(packed.rows.tolist()):
        own = packed.predicting[packed.lines[packed.gather[line, -1]]]
        ids = packed.ids.copy()
        # The last tokens of one branch: no other row holds them.
        ids[own - 9 : own + 1] = (ids[own - 9 : own + 1] + 1) % 64
        after = log_probs(model, replace(packed, ids=ids), attention=attention)
        changed = (after != before).any(dim=1).tolist()
        assert changed == [other == number for other in packed.rows.tolist()]


def test_no_gradient_reaches_another_branch() -> None:
    model: Any = tiny_model()
    prepare(model)
    [packed] = pack(ROWS)
    [embedded] = [torch.empty(0)]

    def keep(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal embedded
        embedded = output
        output.retain_grad()

    model.get_input_embeddings().register_forward_hook(keep)
    log_probs(model, packed)[0].sum().backward()
    assert embedded.grad is not None
    reached = embedded.grad[0].abs().sum(dim=1) > 0
    last = int(packed.predicting[packed.lines[packed.gather[0, -1]]])
    places = np.arange(len(packed))
    assert reached.tolist() == ((places <= last) & (last < packed.ends)).tolist()


@pytest.mark.parametrize("window", [None, 20])
def test_flex_attention_computes_exactly_the_visible_pairs(window: int | None) -> None:
    [packed] = pack(ROWS)
    tree = TreeMask(packed.ends, packed.positions, torch.device("cpu")).within(window)
    mask = tree.flex_mask
    places, none = torch.arange(len(packed)), torch.zeros((), dtype=torch.long)
    assert mask.mask_mod(none, none, places[:, None], places[None]).equal(tree.visible)
    size = mask.BLOCK_SIZE[0]
    empty = mask.to_dense()[0, 0] == 0
    for row, column in empty.nonzero().tolist():
        assert not tree.visible[row * size : (row + 1) * size, column * size : (column + 1) * size].any()
    assert empty.any()


@pytest.mark.parametrize("window", [None, 3, 100, 1000])
def test_blocks_hold_every_visible_pair_once(window: int | None) -> None:
    [packed] = pack(ROWS)
    tree = TreeMask(packed.ends, packed.positions, torch.device("cpu")).within(window)
    visible = torch.zeros_like(tree.visible)
    for block in tree.blocks:
        keys = torch.arange(len(packed))[block.keys]
        shown = torch.ones(block.end - block.begin, len(keys), dtype=torch.bool)
        shown[:, block.open :] = ~block.hidden
        visible[block.begin : block.end, keys] = shown
    assert len(tree.blocks) > 1
    assert visible.equal(tree.visible)
    assert tree.visible.sum(1).max() == min(window or 1000, packed.positions.max() + 1)


def test_llama_checkpointing_and_adapters_give_the_same_gradients() -> None:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
    prepare(model)
    model.activation_checkpointing_enable()
    model.train()
    wrapped = adapted(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    [packed] = pack(ROWS)
    gradients: list[torch.Tensor] = []
    for found in (
        log_probs(wrapped, packed)[torch.from_numpy(packed.rows).argsort()],
        log_probs_by_row(wrapped, ROWS),
    ):
        wrapped.zero_grad()
        (found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum().backward()
        adapters = [one.grad for name, one in wrapped.named_parameters() if "lora" in name]
        gradients.append(torch.cat([one.flatten() for one in adapters if one is not None]))
    assert gradients[0].numel() == sum(one.numel() for one in wrapped.parameters() if one.requires_grad)
    assert (gradients[0] - gradients[1]).norm() <= 1e-5 * gradients[1].norm()


def test_logits_in_portions_are_the_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    prepare(model)
    [packed] = pack(ROWS)
    gradients: list[torch.Tensor] = []
    for most in (2**24, 64 * 7):
        monkeypatch.setattr("agentflow.learner.compute._attention.LOGITS", most)
        model.zero_grad()
        log_probs(model, packed).square().sum().backward()
        gradients.append(
            torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        )
    assert (gradients[0] - gradients[1]).norm() <= 1e-5 * gradients[0].norm()


class Fixed(nn.Module):
    """Attention of a model that ignores the tree, under the name that every layer uses."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - transformers'
        super().__init__()
        self.inner = layer
        self.layer_idx = layer.layer_idx

    def forward(self, *inputs: object, **named: Any) -> object:  # noqa: ANN401 - as the layer
        named.pop("tree", None)
        return self.inner(*inputs, **named)


class Claiming(Fixed):
    """Ignores the tree, and says that it follows."""

    def forward(self, *inputs: object, **named: Any) -> object:  # noqa: ANN401 - as the layer
        if "tree" in named:
            named["tree"].seen.append(self.layer_idx)
        return super().forward(*inputs, **named)


class Mixing(Fixed):
    """Adds what the token before has, as a convolution does."""

    def forward(self, *inputs: object, **named: Any) -> object:  # noqa: ANN401 - as the layer
        out, weights = self.inner(*inputs, **named)
        return out + nn.functional.pad(out, (0, 0, 1, 0))[:, :-1], weights


class Averaging(Fixed):
    """Adds the mean of all tokens, later ones included."""

    def forward(self, *inputs: object, **named: Any) -> object:  # noqa: ANN401 - as the layer
        out, weights = self.inner(*inputs, **named)
        return out + out.mean(1, keepdim=True), weights


class Counting(Fixed):
    """Uses the index of a token instead of its position."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - transformers'
        super().__init__(layer)
        self.places = nn.Embedding(512, 32)

    def forward(self, *inputs: object, **named: Any) -> object:  # noqa: ANN401 - as the layer
        named["hidden_states"] = (
            named["hidden_states"] + self.places.weight[: named["hidden_states"].shape[1]]
        )
        return self.inner(*inputs, **named)


def broken(fault: type[Fixed], dtype: torch.dtype, size: float) -> Any:  # noqa: ANN401 - transformers'
    """A model with a fault in its last layer."""
    model: Any = tiny_model(num_hidden_layers=5, initializer_range=size, dtype=dtype)
    model.model.layers[4].self_attn = fault(model.model.layers[4].self_attn).to(dtype)
    return model


@pytest.mark.promise("learner:tree_check")
@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e-3), (torch.bfloat16, 1e-3), (torch.bfloat16, 1.0)]
)
@pytest.mark.parametrize("fault", [Fixed, Claiming, Mixing, Counting])
def test_a_fault_in_one_layer_is_found_and_rows_are_computed_one_by_one(
    fault: type[Fixed], dtype: torch.dtype, size: float
) -> None:
    model = broken(fault, dtype, size)
    with capture_logs() as logs:
        assert not prepare(model)
    assert [entry["event"] for entry in logs] == ["Qwen3ForCausalLM can't follow trees; computing row by row"]
    assert model.config._attn_implementation == "sdpa"
    assert log_probs_by_row(model, ROWS).isfinite().all()


@pytest.mark.promise("learner:tree_check")
def test_a_model_that_sees_later_tokens_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="can't be trained: log-probabilities in a batch differ"
    ) as refused:
        prepare(broken(Averaging, torch.float32, 0.02))
    assert "\n" not in str(refused.value)


@pytest.mark.promise("learner:tree_check")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_the_noise_of_large_weights_is_no_fault(kind: str, dtype: torch.dtype) -> None:
    model: Any = tiny_model(kind=kind, initializer_range=1.0, dtype=dtype)
    # Trained models have sharp distributions, and their rounding is as large.
    model.model.norm.weight.data.mul_(30)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert prepare(model)
    assert all(weight.equal(before[name]) for name, weight in model.state_dict().items())
    assert model.config.num_hidden_layers == 2
    assert model.config.vocab_size == 64


@pytest.mark.timeout(600)
@pytest.mark.promise("learner:tree_check")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_trained_model_follows_trees(dtype: torch.dtype) -> None:
    model = AutoModelForCausalLM.from_pretrained(real_model(), dtype=dtype)
    assert prepare(model)
    model.model.layers[7].self_attn = Claiming(model.model.layers[7].self_attn)
    model.set_attn_implementation("sdpa")
    assert not prepare(model)


def test_a_window_that_its_configuration_hides_is_found() -> None:
    model: Any = tiny_model(kind="qwen2")
    model.model.layers[1].self_attn.sliding_window = 4096
    assert not prepare(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_model_outside_transformers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Linear is not a causal model of transformers"):
        prepare(nn.Linear(2, 2))


def test_an_unprepared_model_is_refused() -> None:
    [packed] = pack(ROWS)
    with pytest.raises(ConfigurationError, match="followed the tree in 0 of 2 layers"):
        log_probs(tiny_model(), packed)


def test_adapters_outside_of_the_layers_are_refused() -> None:
    model: Any = tiny_model()
    prepare(model)
    wrapped = adapted(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ConfigurationError, match="learn a prompt"):
        log_probs(wrapped, pack(ROWS)[0])


def test_a_prepared_model_reads_rows_as_before() -> None:
    model: Any = tiny_model()
    ids = torch.tensor([STEM[:20]])
    before = model(input_ids=ids).logits
    prepare(model)
    assert model(input_ids=ids).logits.equal(before)
    assert not model.training
