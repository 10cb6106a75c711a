# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers, peft and safetensors are partially typed.
"""The model to train: load it, update its weights at a learning rate, write checkpoints and exports for an engine.

A checkpoint has the float32 weights, the optimizer's state, the random generators and the position of the loop.
"""

import errno
import math
import os
import random
import re
import shutil
import warnings
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from agentflow._decoding import DECODE_ERRORS
from agentflow.errors import ConfigurationError, error_line
from agentflow.learner._checkpoints import CheckpointError, atomic_folder, verify
from agentflow.learner._policy import LoraSettings, OptimizerSettings, PolicySettings
from agentflow.learner.compute import prepare, scores
from agentflow.learner.packing import Packed

PORTION = 2**30
"""Maximum number of bytes gathered before they are written."""
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
STATE = "state.json"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of each weight."""
_ERRNO = re.compile(r"os error (\d+)")


class Policy(nn.Module):
    """Computes the log-probabilities of packed rows.

    Everything that has weights is called through this one module, as sharding (FSDP) requires.
    """

    def __init__(self, model: nn.Module, *, by_row: bool = False) -> None:
        super().__init__()
        self.model: Any = model
        self.by_row = by_row
        """True if the model can't follow trees."""

    @property
    def plain(self) -> Any:  # noqa: ANN401 - transformers' models have no common type that is whole
        """The causal model itself, without the wrapper of adapters."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Return the log-probability and the entropy of each trained token of each row, left-aligned."""
        return scores(self.model, packed)


def device_of(settings: PolicySettings, rank: int = 0) -> torch.device:
    """Return the device of the model.

    :raises ConfigurationError: if there is no such device.
    """
    if settings.device != "auto":
        return torch.device(settings.device)
    return torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


def load_policy(folder: Path, settings: PolicySettings, device: torch.device, dtype: torch.dtype) -> Policy:
    """Load the model in the given precision; only its trained parameters require a gradient.

    :raises ConfigurationError: if the folder has no causal model that can be trained.
    """
    try:
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)
        _without_dropout(config)
        with no_progress_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                trust_remote_code=settings.trust_remote_code,
                use_safetensors=True,  # other formats are pickles, which can run code
            )
    except Exception as error:  # boundary: the libraries raise what a damaged configuration or file leads to
        raise ConfigurationError(f"policy.model: {folder} can't be loaded: {error_line(error)}") from error
    by_row = not prepare(model)
    recompute = settings.gradient_checkpointing
    if recompute or (recompute is None and device.type != "cpu"):
        # Name before transformers 5.22.
        enable = (
            getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        )
        enable()
    if settings.lora:
        model = _with_adapters(model, settings.lora)
    # Gradient checkpointing is active only in training mode; there is no dropout that could differ.
    return Policy(model.to(device).train(), by_row=by_row)


@contextmanager
def no_progress_bars() -> Generator[None]:
    """Disable the progress bars of transformers: the screen is used by the loop."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _without_dropout(config: Any) -> None:  # noqa: ANN401 - every model has its own type
    """Disable dropout and noise of routers: compared log-probabilities must be deterministic."""
    for name in config.to_dict():
        if name.endswith(("dropout", "_pdrop", "dropout_rate", "jitter_noise")) and isinstance(
            getattr(config, name), float
        ):
            setattr(config, name, 0.0)


def _with_adapters(model: Any, settings: LoraSettings) -> Any:  # noqa: ANN401 - peft's
    from peft import LoraConfig, get_peft_model

    modules = (
        settings.target_modules if isinstance(settings.target_modules, str) else list(settings.target_modules)
    )
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=modules,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # peft uses a name that transformers has deprecated.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            return get_peft_model(model, config)
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"policy.lora.target_modules: {reason}; name layers of the model") from None


class Optimizer:
    """The trained weights by name, in float32, and their updates.

    If the model computes in a lower precision, these are copies: gradients are accumulated into them in float32, and
    updated weights are rounded into the model.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._settings = settings
        self._rounded: list[tuple[nn.Parameter, nn.Parameter]] = []
        self.weights = {name: self._exact(parameter) for name, parameter in parameters.items()}
        """Trained weights, in float32."""
        decaying = [weight for weight in self.weights.values() if weight.dim() > 1]
        steady = [weight for weight in self.weights.values() if weight.dim() <= 1]
        self.adam = torch.optim.AdamW(
            [
                {"params": decaying, "weight_decay": settings.weight_decay},
                {"params": steady, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.adam_epsilon,
        )

    def _exact(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype == torch.float32:
            return parameter
        exact = nn.Parameter(parameter.detach().float())

        def accumulate(rounded: Tensor) -> None:
            assert rounded.grad is not None, "the hook runs after accumulation"
            grad = rounded.grad.float()
            exact.grad = grad if exact.grad is None else exact.grad.add_(grad)
            rounded.grad = None

        parameter.register_post_accumulate_grad_hook(accumulate)
        self._rounded.append((parameter, exact))
        return exact

    def grad_norm(self) -> float:
        """Return the norm of the gradient over all weights of all ranks."""
        grads = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        return float(whole(torch.nn.utils.get_total_norm(grads)))

    def update(self, done: int, norm: float) -> float:
        """Make one step and return its learning rate.

        :param done: steps before it.
        :param norm: norm of the gradient.
        """
        weights = list(self.weights.values())
        torch.nn.utils.clip_grads_with_norm_(weights, self._settings.max_grad_norm, torch.tensor(norm))
        rate = self._settings.learning_rate * lr_ratio(self._settings, done)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.zero_grad()
        self.round()
        return rate

    def zero_grad(self) -> None:
        """Discard the gradient."""
        self.adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def round(self) -> None:
        """Round the weights into the model, if it computes in a lower precision."""
        for rounded, exact in self._rounded:
            rounded.copy_(exact)


def lr_ratio(settings: OptimizerSettings, done: int) -> float:
    """Return the learning rate of the step after `done` steps, as a fraction of the peak."""
    if done < settings.warmup_steps:
        return (done + 1) / settings.warmup_steps
    if settings.lr_scheduler_type == "constant" or settings.decay_steps is None:
        return 1.0
    progress = min(1.0, (done - settings.warmup_steps) / max(1, settings.decay_steps - settings.warmup_steps))
    linear = settings.lr_scheduler_type == "linear"
    left = 1.0 - progress if linear else 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.min_lr_ratio + (1.0 - settings.min_lr_ratio) * left


class BackboneState(Struct, frozen=True, kw_only=True):
    """State other than tensors."""

    version: int
    """Number of steps that changed the weights."""
    skipped: int
    """Number of consecutive skipped steps."""
    randomness: dict[str, Any]
    """States of the random generators."""
    position: dict[str, Any]
    """Position of the loop."""


def state_tensors(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield the full weights and optimizer state; a collective operation of all ranks."""
    for name, weight in optimizer.weights.items():
        yield f"weight/{name}", whole(weight)
        moments = optimizer.adam.state.get(weight, {})
        for moment in _MOMENTS:
            if moment in moments:
                yield f"{moment}/{name}", whole(moments[moment])


def write_state(folder: Path, state: BackboneState, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write a checkpoint.

    :raises CheckpointError: if it can't be written.
    """
    with atomic_folder(folder) as draft:
        write_tensors(draft, tensors)
        (draft / STATE).write_bytes(msgspec.json.encode(state))


def read_state(folder: Path) -> BackboneState:
    """Verify a checkpoint and return its state other than tensors.

    :raises CheckpointError: if it is incomplete or altered.
    """
    verify(folder)
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=BackboneState)
    except (OSError, *DECODE_ERRORS) as error:
        raise CheckpointError(
            f"{folder} is not a checkpoint of this backbone: {error}; use another one"
        ) from None


@torch.no_grad()
def restore_tensors(folder: Path, optimizer: Optimizer) -> None:
    """Restore the tensors of a checkpoint; a collective operation of all ranks.

    :raises ConfigurationError: if they are of another model; nothing has changed then.
    """
    tensors = dict(read_tensors(folder))
    stored = {
        name.removeprefix("weight/"): list(tensor.shape)
        for name, tensor in tensors.items()
        if name[:7] == "weight/"
    }
    expected = {name: list(weight.shape) for name, weight in optimizer.weights.items()}
    if stored != expected:
        differs = sorted(
            name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name)
        )
        raise ConfigurationError(
            f"{folder} is of another model: {len(differs)} weights differ, such as {differs[0]}; "
            "name the policy that it was saved with, or use another folder"
        )
    optimizer.adam.state.clear()
    for name, weight in optimizer.weights.items():
        weight.copy_(sharded_like(tensors[f"weight/{name}"], weight))
        moments = {
            moment: tensors[f"{moment}/{name}"] for moment in _MOMENTS if f"{moment}/{name}" in tensors
        }
        if moments:
            optimizer.adam.state[weight] = {
                moment: tensor if moment == "step" else sharded_like(tensor, weight)
                for moment, tensor in moments.items()
            }
    optimizer.round()


def randomness() -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's random generators, as JSON."""
    kind, numbers, position, has_gauss, gauss = np.random.get_state()
    version, inner, following = random.getstate()
    return {
        "python": [version, list(inner), following],
        "numpy": [kind, np.asarray(numbers).tolist(), position, has_gauss, gauss],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
    }


def set_randomness(state: dict[str, Any]) -> None:
    """Restore the states of the random generators."""
    version, inner, following = state["python"]
    random.setstate((version, tuple(inner), following))
    kind, numbers, *rest = state["numpy"]
    np.random.set_state((kind, np.array(numbers, np.uint32), *rest))
    torch.set_rng_state(_bytes(state["torch"]))
    # Another machine may have other devices.
    for device, text in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_bytes(text), device)


def _text(state: Tensor) -> str:
    return b64encode(state.numpy().tobytes()).decode()


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)


@torch.no_grad()
def merged_weights(plain: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the full weights by name, with adapters merged; a collective operation of all ranks."""
    modules = dict(plain.named_modules())
    for name, weight in plain.named_parameters():
        if ".lora_" in name:
            continue
        owner, _, kind = name.rpartition(".")
        outer: Any = modules.get(owner.removesuffix(".base_layer"))
        merged = whole(weight)
        if owner.endswith(".base_layer") and kind == "weight":
            merged = merged.float() + _added(outer)
        yield name.replace(".base_layer.", "."), merged.to(dtype)


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
    with atomic_folder(folder) as draft, saving():
        model.peft_config["default"].save_pretrained(draft)
        save_file(dict(weights), draft / "adapter_model.safetensors")


def merge_adapters(settings: PolicySettings, adapters: Path, folder: Path, *, durable: bool = True) -> Path:
    """Write the initial model with adapters in peft's format merged into it, such as those of another trainer.

    See docs/trinity.md.

    :raises ConfigurationError: if the adapters are incomplete, or of another model.
    :raises CheckpointError: if it can't be written.
    """
    from peft import PeftModel, get_peft_model_state_dict

    origin, plain = Path(settings.model), settings.model_copy(update={"lora": None})
    dtype = torch.float32 if settings.dtype == "float32" else torch.bfloat16
    base = load_policy(origin, plain, torch.device("cpu"), torch.float32).model
    try:
        with warnings.catch_warnings(action="ignore"):  # a missing weight is an error below
            model: Any = PeftModel.from_pretrained(base, str(adapters))
            weights = load_file(adapters / "adapter_model.safetensors")
    except Exception as error:  # boundary: the libraries raise what a damaged file leads to
        raise ConfigurationError(f"{adapters} can't be loaded: {error_line(error)}") from error
    if differing := sorted(get_peft_model_state_dict(model).keys() ^ weights.keys()):
        raise ConfigurationError(
            f"{adapters}: {len(differing)} weights are missing or unknown, such as {differing[0]}; save them again"
        )
    exported = plain.model_copy(update={"dtype": str(dtype).removeprefix("torch.")})
    inner = model.get_base_model()
    write_model(folder, origin, inner, exported, durable, merged_weights(inner, dtype))
    return folder


def write_model(
    folder: Path,
    origin: Path,
    plain: Any,  # noqa: ANN401 - transformers' models have no common type that is whole
    settings: PolicySettings,
    durable: bool,
    weights: Iterable[tuple[str, Tensor]],
) -> None:
    """Write weights in the model's format, with the other files of the initial model.

    :param durable: survive a power failure.
    :raises CheckpointError: if it can't be written.
    """
    with atomic_folder(folder, durable=durable) as draft, no_progress_bars(), saving():
        plain.save_pretrained(draft, state_dict=dict(weights), max_shard_size="4GB")
        # The original configuration: training changed parts of it, such as the attention implementation.
        config: Any = AutoConfig.from_pretrained(origin, trust_remote_code=settings.trust_remote_code)
        config.dtype = settings.dtype
        config.save_pretrained(draft)
        for path in origin.iterdir():
            if path.is_file() and not str(path).endswith(NOT_COPIED):
                shutil.copyfile(path, draft / path.name)


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor on the CPU; a collective operation of all ranks."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a full tensor, sharded like another one."""
    tensor = tensor.to(like.device, like.dtype)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def write_tensors(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write tensors into several files."""
    portion = dict[str, Tensor]()
    files = 0
    for name, tensor in tensors:
        # A tied tensor is written again.
        portion[name] = tensor.contiguous().clone()
        if sum(tensor.nbytes for tensor in portion.values()) >= PORTION:
            _write(portion, folder, files)
            portion, files = {}, files + 1
    if portion:
        _write(portion, folder, files)


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Read tensors written by `write_tensors`."""
    for path in sorted(folder.glob("state-*.safetensors")):
        yield from load_file(path).items()


def _write(portion: dict[str, Tensor], folder: Path, number: int) -> None:
    with saving():
        save_file(portion, folder / f"state-{number:05d}.safetensors")


@contextmanager
def saving() -> Generator[None]:
    """Turn disk errors of safetensors into `OSError`."""
    try:
        yield
    except SafetensorError as error:
        match = _ERRNO.search(str(error))
        number = int(match[1]) if match else errno.EIO
        raise OSError(number, os.strerror(number)) from error
