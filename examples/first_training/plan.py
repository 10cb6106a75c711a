"""All settings of the first training, in one file: `settings.yaml`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from agentflow.settings import Section, Settings, load_settings
from examples.library.plan import Shape

__all__ = ["HERE", "Clusters", "FineTuning", "Strays", "TeacherRounds", "TrainingPlan", "read_plan"]

HERE = Path(__file__).parent


class Clusters(Section):
    """Size of the corpus in clusters; each has three tasks."""

    train: int = Field(default=200, ge=1)
    """Training clusters."""
    choose: int = Field(default=24, ge=1)
    """Clusters for choosing a checkpoint."""
    held_out: int = Field(default=110, ge=1)
    """Clusters for the final evaluation."""


class Strays(Section):
    """Error rates of the teacher, as fractions of its steps."""

    broken: float = Field(default=0.12, ge=0, le=1)
    """It writes invalid JSON: the episode ends."""
    unknown: float = Field(default=0.33, ge=0, le=1)
    """It names an unknown tool."""
    idle: float = Field(default=0.15, ge=0, le=1)
    """It repeats the first search."""
    crossed: float = Field(default=0.3, ge=0, le=1)
    """It writes a product with a cross, which Python does not accept."""


class TeacherRounds(Section):
    """Number of times the teacher runs a task, by kind: more for harder ones."""

    look_up: int = Field(default=1, ge=0)
    """One search."""
    chain: int = Field(default=1, ge=0)
    """Two searches."""
    compute: int = Field(default=3, ge=0)
    """A search, and a product of its results."""


class FineTuning(Section):
    """Fine-tuning on the teacher's steps."""

    rounds: TeacherRounds = TeacherRounds()
    """Number of times the teacher runs each task."""
    epochs: int = Field(default=7, ge=1)
    """Epochs. Only the teacher's output is trained: the rest of a text is unpredictable."""
    kept: int = Field(default=2, ge=1)
    """Number of last epochs that end with a checkpoint."""
    batch: int = Field(default=8, ge=1)
    """Episodes per step."""
    rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate."""


class TrainingPlan(Settings):
    """The first training."""

    model_config = SettingsConfigDict(env_prefix="FIRST_TRAINING_")

    clusters: Clusters = Clusters()
    """The tasks."""
    teacher: Strays = Strays()
    """The teacher."""
    model: Shape = Shape()
    """The model."""
    fine_tuning: FineTuning = FineTuning()
    """Fine-tuning."""
    max_turns: int = Field(default=3, ge=1)
    """Maximum number of turns of an episode."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the planner, in training and evaluation."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights, in training and in the engine."""
    at_once: int = Field(default=128, ge=1)
    """Maximum number of concurrent episodes."""
    flow: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Flow-GRPO: sections of `agentflow train`."""
    single: bool = True
    """Also train a planner on its first steps only, with as many calls."""
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    """Further trainings of the same planner, by name: what differs from `flow`, by section."""
    engine: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Settings of the engine (`agentflow serve-model`), such as `gpu_memory_utilization`."""
    python: Path | None = None
    """Python of vLLM's environment; `None`: `.venv-vllm` in the working directory."""


def read_plan(path: Path | None = None, overrides: Iterable[str] = ()) -> TrainingPlan:
    """Load the plan from a file, by default the one beside this module, with `key=value` overrides.

    :raises ConfigurationError: one line, if a setting can't be used.
    """
    return load_settings(TrainingPlan, path or HERE / "settings.yaml", overrides)
