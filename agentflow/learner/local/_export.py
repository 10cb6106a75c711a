# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers and safetensors are partially typed.
"""Export the model for an engine."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig

from agentflow.learner._checkpoints import atomic_folder
from agentflow.learner._policy import PolicySettings
from agentflow.learner.local._model import no_progress_bars
from agentflow.learner.local._tensors import saving, whole

NOT_COPIED = (
    "manifest.json",
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".index.json",
    ".onnx",
    ".h5",
    "/config.json",
)
"""Suffixes of files that hold weights, or are written anew."""


@torch.no_grad()
def merged_weights(plain: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the full weights by name, with adapters merged; a collective operation of all ranks."""
    modules = dict(plain.named_modules())
    for name, weight in plain.named_parameters():
        if ".lora_" in name:
            continue
        owner, _, kind = name.rpartition(".")
        outer: Any = modules.get(owner.removesuffix(".base_layer"))
        found = whole(weight)
        if owner.endswith(".base_layer") and kind == "weight":
            found = found.float() + _added(outer)
        yield name.replace(".base_layer.", "."), found.to(dtype)


def _added(layer: Any) -> Tensor:  # noqa: ANN401 - a layer of peft
    total = torch.zeros(())
    for adapter in layer.active_adapters:
        product = whole(layer.lora_B[adapter].weight).float() @ whole(layer.lora_A[adapter].weight).float()
        total = total + layer.scaling[adapter] * (product.T if layer.fan_in_fan_out else product)
    return total


def adapter_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of the adapters by peft's names; a collective operation of all ranks."""
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            yield name.replace(".default.", "."), whole(weight).to(dtype)


def write_adapters(
    folder: Path,
    model: Any,  # noqa: ANN401 - peft's
    weights: Iterable[tuple[str, Tensor]],
) -> None:
    """Write adapters in peft's format.

    :raises CheckpointError: if they can't be written.
    """
    with atomic_folder(folder) as place, saving():
        model.peft_config["default"].save_pretrained(place)
        save_file(dict(weights), place / "adapter_model.safetensors")


def write_model(
    folder: Path,
    origin: Path,
    plain: Any,  # noqa: ANN401 - transformers' models have no common type that is whole
    weights: Iterable[tuple[str, Tensor]],
    settings: PolicySettings,
) -> None:
    """Write weights in the model's format, with the other files of the initial model.

    :raises CheckpointError: if it can't be written.
    """
    with atomic_folder(folder) as place, no_progress_bars(), saving():
        plain.save_pretrained(place, state_dict=dict(weights), max_shard_size="4GB")
        # The original configuration: training changed parts of it, such as the attention implementation.
        config: Any = AutoConfig.from_pretrained(origin, trust_remote_code=settings.trust_remote_code)
        config.dtype = settings.dtype
        config.save_pretrained(place)
        for path in origin.iterdir():
            if path.is_file() and not str(path).endswith(NOT_COPIED):
                shutil.copyfile(path, place / path.name)
