"""Everything that can be set about the first training, in one file: `settings.yaml`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from agentflow.settings import Section, Settings, load_settings

__all__ = ["HERE", "Clusters", "FineTuning", "Plan", "Rounds", "Shape", "Strays", "read_plan"]

HERE = Path(__file__).parent


class Clusters(Section):
    """How much there is of the corpus; three tasks for each cluster."""

    train: int = Field(default=200, ge=1)
    """What is learned from."""
    choose: int = Field(default=24, ge=1)
    """What a fine-tuned checkpoint is chosen by."""
    held_out: int = Field(default=110, ge=1)
    """What everything is judged by."""


class Strays(Section):
    """How often the teacher errs, as shares of its steps."""

    broken: float = Field(default=0.12, ge=0, le=1)
    """It writes JSON that is none: the episode is over."""
    unknown: float = Field(default=0.33, ge=0, le=1)
    """It names a tool that there is not."""
    idle: float = Field(default=0.15, ge=0, le=1)
    """It has found the first document, and searches for it again."""
    crossed: float = Field(default=0.3, ge=0, le=1)
    """It writes a product with a cross, as no program has it."""


class Shape(Section):
    """The model that is made."""

    layers: int = Field(default=2, ge=1)
    """Its layers."""
    heads: int = Field(default=4, ge=1)
    """Heads of 32 numbers each, in every layer."""
    words: int = Field(default=1300, ge=300)
    """Tokens of its vocabulary at most: enough that each word of a name and each number is one."""


class Rounds(Section):
    """How often the teacher shows a task, by its kind: what is hardest to learn is shown most."""

    look_up: int = Field(default=1, ge=0)
    """One search."""
    chain: int = Field(default=1, ge=0)
    """Two searches."""
    compute: int = Field(default=3, ge=0)
    """A search, and a product of what it found."""


class FineTuning(Section):
    """How the model learns from the teacher."""

    rounds: Rounds = Rounds()
    """How often the teacher shows each task."""
    epochs: int = Field(default=7, ge=1)
    """Epochs in which the teacher's words are learned, and nothing else: what it was shown can't be foreseen."""
    kept: int = Field(default=2, ge=1)
    """How many of the last epochs end with a checkpoint."""
    batch: int = Field(default=8, ge=1)
    """Episodes in a step."""
    rate: float = Field(default=3e-3, gt=0)
    """The learning rate, at its highest."""


class Plan(Settings):
    """The first training."""

    model_config = SettingsConfigDict(env_prefix="FIRST_TRAINING_")

    clusters: Clusters = Clusters()
    """The tasks."""
    teacher: Strays = Strays()
    """Whom the model learns from first."""
    model: Shape = Shape()
    """The model."""
    fine_tuning: FineTuning = FineTuning()
    """How it learns from the teacher."""
    max_turns: int = Field(default=3, ge=1)
    """Turns of an episode at most."""
    temperature: float = Field(default=1.0, gt=0)
    """What the planner samples at, in training and where it is judged."""
    at_once: int = Field(default=128, ge=1)
    """Episodes at once."""
    flow: dict[str, Any] = Field(default_factory=dict[str, Any])
    """The training in the flow: sections of `agentflow train`."""
    single: bool = True
    """Train a planner by its first step alone, too, on as many calls."""
    python: Path | None = None
    """The Python that vLLM is installed in; none: `.venv-vllm` here."""


def read_plan(path: Path | None = None, overrides: Iterable[str] = ()) -> Plan:
    """The plan of that file, by default the one beside this module, with `key=value` words over it.

    :raises ConfigurationError: one line, if something in it can't be used.
    """
    return load_settings(Plan, path or HERE / "settings.yaml", overrides)
