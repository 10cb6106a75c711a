# pyright: reportUnknownVariableType=false
# huggingface_hub is typed in part.
"""Settings of the policy model and of its optimizer."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentflow.errors import ConfigurationError
from agentflow.settings import Section

Dtype = Literal["auto", "float32", "bfloat16"]
"""Precision of the forward and backward pass."""


class LoraSettings(Section):
    """LoRA adapters instead of all weights."""

    renamed: ClassVar[dict[str, str]] = {"modules": "target_modules"}

    rank: int = Field(default=32, ge=1)
    """Rank of the adapters."""
    alpha: int = Field(default=64, ge=1)
    """Scaling of the adapters, divided by the rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Layers that get an adapter: names, or all linear layers but the head."""


class PolicySettings(Section):
    """The model to train. See docs/backbones.md."""

    renamed: ClassVar[dict[str, str]] = {"trust_code": "trust_remote_code"}

    model: str = Field(min_length=1)
    """Folder of a causal model, or its name on the hub."""
    dtype: Dtype = "auto"
    """Precision of the forward and backward pass; gradients, optimizer state and master weights are always float32. `auto`:
    `bfloat16` on a GPU, `float32` on a CPU, where it is not slower and the engine agrees to 1e-5."""
    device: str = "auto"
    """torch device; `auto`: a GPU if there is one."""
    processes: int = Field(default=1, ge=1)
    """Processes that share the weights, on a machine one for each GPU; `agentflow train` starts them with torchrun."""
    lora: LoraSettings | None = None
    """Train LoRA adapters only; `None`: all weights."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass: a third slower, far less memory; `None`: on GPUs."""
    token_budget: int = Field(default=16_384, ge=1)
    """Maximum number of distinct tokens of a micro-batch. It changes memory and speed, never the result. On a CPU, micro-batches have
    about 1,024 tokens unless that would cut trees.
    """
    deterministic: bool | None = None
    """Use only deterministic kernels; `None`: on a CPU, where it costs nothing."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; another number changes the order of sums. `None`: torch's default."""
    seed: int = 0
    """Seed of everything random in training."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""


def find_model(settings: PolicySettings) -> Path:
    """Return the folder of the model; download it if it is on the hub.

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
            f"policy.model: {settings.model} is not a folder, and the hub reports: {reason}; name an existing model"
        ) from None


class OptimizerSettings(Section):
    """AdamW and its learning-rate schedule."""

    renamed: ClassVar[dict[str, str]] = {
        "rate": "learning_rate",
        "clip": "max_grad_norm",
        "epsilon": "adam_epsilon",
        "schedule": "lr_scheduler_type",
        "warmup": "warmup_steps",
        "steps": "decay_steps",
        "floor": "min_lr_ratio",
        "skips": "max_skipped_steps",
    }

    learning_rate: float = Field(default=1e-6, gt=0)
    """Peak learning rate. LoRA and supervised training tolerate a ten times higher one."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay of matrices; norms and biases have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's two moments."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Added to Adam's denominator."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping: maximum norm over all parameters."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up from 0."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Step at which the learning rate reaches `min_lr_ratio`; required by all schedules but `constant`."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate, as a fraction of the peak."""
    max_skipped_steps: int = Field(default=3, ge=0)
    """Number of consecutive non-finite steps to skip; one more ends the run."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.lr_scheduler_type != "constant" and self.decay_steps is None:
            raise ValueError(
                f"lr_scheduler_type: {self.lr_scheduler_type} needs decay_steps, the steps until the rate has decayed"
            )
        if self.decay_steps is not None and self.warmup_steps > self.decay_steps:
            raise ValueError("warmup_steps is larger than decay_steps; make it smaller")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas must be at least 0 and below 1")
        return self
