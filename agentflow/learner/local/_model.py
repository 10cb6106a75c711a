# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# transformers and peft are partially typed.
"""Find, load and prepare the model to train."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from agentflow.errors import ConfigurationError, error_line
from agentflow.learner._policy import LoraSettings, PolicySettings
from agentflow.learner.compute import prepare, scores
from agentflow.learner.packing import Packed


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
