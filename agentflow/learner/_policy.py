"""What is said about the policy that is trained, and about how it is moved."""

from typing import Literal, Self

from pydantic import Field, model_validator

from agentflow.settings import Section

__all__ = ["Dtype", "LoraSettings", "OptimiserSettings", "PolicySettings"]

Dtype = Literal["float32", "bfloat16"]
"""What the model computes in."""


class LoraSettings(Section):
    """Adapters of low rank instead of all weights."""

    rank: int = Field(default=32, ge=1)
    """Their rank."""
    alpha: int = Field(default=64, ge=1)
    """Their strength, which is divided by the rank."""
    modules: str | tuple[str, ...] = "all-linear"
    """The layers that get one: names, or all linear layers but the head."""


class PolicySettings(Section):
    """The model that is trained, and how it is held."""

    model: str = Field(min_length=1)
    """A folder with a causal model, or its name on the hub."""
    dtype: Dtype = "bfloat16"
    """What it computes in; sums of gradients, the optimiser and its copy of the weights are float32 in any case."""
    device: str = "auto"
    """Where it stands, as torch calls it; `auto`: a GPU where there is one."""
    lora: LoraSettings | None = None
    """Train adapters only; none: all weights."""
    gradient_checkpointing: bool | None = None
    """Forget what layers computed and compute it again for the gradient: a third slower, far less memory; none: on GPUs."""
    token_budget: int = Field(default=16_384, ge=1)
    """The most different tokens that are computed at once. It changes memory and speed, never the result."""
    deterministic: bool | None = None
    """Only such kernels as give the same bits again; none: on a CPU, where it costs nothing."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a CPU. Other numbers add up in another order; none: as torch chooses."""
    seed: int = 0
    """What is random in training starts from it."""
    trust_code: bool = False
    """Whether code that comes with the model may run here."""


class OptimiserSettings(Section):
    """AdamW, and how fast it goes."""

    rate: float = Field(default=1e-6, gt=0)
    """The learning rate, at its highest. Adapters bear ten times more than whole models; supervised training, too."""
    weight_decay: float = Field(default=0.01, ge=0)
    """How much matrices shrink, as a share of the rate; norms and biases never do."""
    betas: tuple[float, float] = (0.9, 0.999)
    """How long the two means of gradients remember."""
    epsilon: float = Field(default=1e-8, gt=0)
    """What keeps their quotient finite."""
    clip: float = Field(default=1.0, gt=0)
    """The longest gradient, over all parameters together; a longer one is shortened to it."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls after the warm-up."""
    warmup: int = Field(default=0, ge=0)
    """Steps in which the rate rises from nothing."""
    steps: int | None = Field(default=None, ge=1)
    """Steps until the rate has fallen to `floor`; needed by all schedules but `constant`."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """What is left of the rate then, as a share."""
    skips: int = Field(default=3, ge=0)
    """Steps in a row that may be left out because their numbers are no numbers; one more ends the run."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.schedule != "constant" and self.steps is None:
            raise ValueError(f"the schedule {self.schedule} needs steps: how many until the rate has fallen")
        if self.steps is not None and self.warmup > self.steps:
            raise ValueError("warmup is longer than steps; make it shorter")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas are at least 0 and below 1")
        return self
