# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# transformers and peft are typed in part.
"""The model that is trained: found, loaded, made ready."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from agentflow.errors import ConfigurationError
from agentflow.learner._policy import LoraSettings, PolicySettings
from agentflow.learner.compute import Scores, prepare, scores
from agentflow.learner.packing import Packed

__all__ = ["Policy", "device_of", "find_model", "load_policy", "without_bars"]


class Policy(nn.Module):
    """A model as training calls it: packed rows in, log-probabilities of their trained tokens out.

    Everything that has weights is called through this one module: where weights are spread over ranks, that is what
    brings them together.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    @property
    def plain(self) -> Any:  # noqa: ANN401 - transformers' models have no common type that is whole
        """The causal model itself, where adapters are wrapped around it."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def forward(self, packed: Packed) -> Scores:
        """What the model says of each trained token of each row, left-aligned."""
        return scores(self.model, packed)


def device_of(settings: PolicySettings, rank: int = 0) -> torch.device:
    """Where the model stands.

    :raises ConfigurationError: if there is no such device.
    """
    if settings.device != "auto":
        return torch.device(settings.device)
    return torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


def find_model(settings: PolicySettings) -> Path:
    """The folder of the model; one of the hub is fetched.

    :raises ConfigurationError: if it is neither a folder nor on the hub.
    """
    folder = Path(settings.model)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(settings.model, ignore_patterns=["*.bin", "*.pth", "*.gguf"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"policy.model: {settings.model} is no folder, and the hub says: {reason}; name a model that is there"
        ) from None


def load_policy(folder: Path, settings: PolicySettings, device: torch.device, dtype: torch.dtype) -> Policy:
    """The model with what is trained of it marked so, in the given precision.

    :raises ConfigurationError: if the folder holds no causal model that can be trained.
    """
    try:
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=settings.trust_code)
        _without_dropout(config)
        with without_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, trust_remote_code=settings.trust_code
            )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"policy.model: {folder} can't be loaded: {reason}") from None
    prepare(model)
    again = settings.gradient_checkpointing
    if again or (again is None and device.type != "cpu"):
        # Its name until transformers 5.22.
        enable = (
            getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        )
        enable()
    if settings.lora:
        model = _with_adapters(model, settings.lora)
    # Layers compute again only what they computed in training; there is no dropout that could differ.
    return Policy(model.to(device).train())


@contextmanager
def without_bars() -> Generator[None]:
    """Keep transformers from drawing on the screen: it is the loop's."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _without_dropout(config: Any) -> None:  # noqa: ANN401 - every model has its own type
    """Log-probabilities that are compared must not depend on chance."""
    for name in config.to_dict():
        if name.endswith(("dropout", "_pdrop", "dropout_rate")) and isinstance(getattr(config, name), float):
            setattr(config, name, 0.0)


def _with_adapters(model: Any, settings: LoraSettings) -> Any:  # noqa: ANN401 - peft's
    from peft import LoraConfig, get_peft_model

    modules = settings.modules if isinstance(settings.modules, str) else list(settings.modules)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=modules,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # peft asks by a name that transformers is about to drop.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            return get_peft_model(model, config)
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"policy.lora.modules: {reason}; name layers of the model") from None
