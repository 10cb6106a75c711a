"""Settings of an example: `settings.yaml` in its folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from agentflow.serving import KNOWN_MODELS, fetch_model
from agentflow.settings import Section, Settings, load_settings

__all__ = ["ExamplePlan", "Shape", "Teaching", "model_folder", "read_example_plan"]


class Shape(Section):
    """Shape of a tiny model."""

    layers: int = Field(default=2, ge=1)
    """Number of layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads per layer, of size 32."""
    words: int = Field(default=1300, ge=300)
    """Maximum vocabulary size."""


class Teaching(Section):
    """Fine-tuning on the teacher's answers."""

    episodes: int = Field(default=4000, ge=1)
    """Episodes of the teacher."""
    epochs: int = Field(default=3, ge=1)
    """Passes over them."""
    batch: int = Field(default=32, ge=1)
    """Episodes per step."""
    rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate."""


class ExamplePlan(Settings):
    """An example."""

    model_config = SettingsConfigDict(env_prefix="EXAMPLE_")

    train: int = Field(default=1024, ge=1)
    """Training tasks."""
    held_out: int = Field(default=300, ge=1)
    """Tasks for the evaluation before and after; none of them is trained on."""
    base_model: str | None = None
    """Folder of a chat model to fine-tune, or the name of a known one, which is fetched; `None`: a tiny one is made."""
    model: Shape = Shape()
    """The tiny model."""
    teaching: Teaching = Teaching()
    """Fine-tuning."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature, in training and evaluation."""
    at_once: int = Field(default=64, ge=1)
    """Maximum number of concurrent episodes."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the learner; `None`: torch's default."""
    tune: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Sections of `agentflow tune`: schedule, optimizer, loss."""
    python: Path | None = None
    """Python of vLLM's environment; `None`: `.venv-vllm` in the working directory."""


def model_folder(name: str) -> Path:
    """Return a folder, or that of a known model, which is fetched unless it is there."""
    return fetch_model(name, report=print) if name in KNOWN_MODELS else Path(name)


def read_example_plan(path: Path, overrides: Iterable[str] = ()) -> ExamplePlan:
    """Load the settings of an example from its file, with `key=value` overrides.

    :raises ConfigurationError: one line, if a setting can't be used.
    """
    return load_settings(ExamplePlan, path, overrides)
