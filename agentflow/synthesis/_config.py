"""The settings of a synthesis: every field, its default, and what follows from them."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agentflow.runs import Prose, RoleModel, RunConfig
from agentflow.settings import load_settings
from agentflow.synthesis._selection import find_strategy
from agentflow.trajectory import Example

if TYPE_CHECKING:
    from agentflow.growth import GrowthSettings

__all__ = ["Role", "SynthesisConfig", "load_config", "load_synthesis_config"]

Role = Literal["planner", "verifier", "generator"]
"""Who may ask a model."""

Share = Annotated[float, Field(ge=0, le=1)]


class SynthesisConfig(RunConfig):
    """The settings of a synthesis. Made directly they take nothing from their surroundings; `load_config` does."""

    DEFAULT_OUTPUT: ClassVar[str] = "synthesis_results"
    """Where the files go, if nothing says it."""
    NOT_CONTENT: ClassVar[frozenset[str]] = frozenset(
        {"seeds_file", "number_of_seed", "open_trees", "control", "learner"}
    )
    """Its fields that don't decide what the files hold."""

    seeds_file: str | None = None
    """The seeds: JSONL, one `{"content": …, "kwargs": {…}}` a line."""
    number_of_seed: int | None = Field(default=None, ge=0)
    """How many seeds to take, from the first; `None`: all."""
    seed_description: Prose = ""
    """What the seeds are, for the planner and the generator."""

    planner_model: RoleModel = RoleModel()
    """What is different about the planner's model."""
    verifier_model: RoleModel = RoleModel()
    """What is different about the verifier's model, with `verifier: model`."""
    generator_model: RoleModel = RoleModel()
    """What is different about the generator's model."""
    sampling_tips: Prose = ""
    """Guidance for exploring."""
    max_depth: int = Field(default=5, ge=1)
    """Actions from the root to the deepest leaf."""
    branching_factor: int = Field(default=2, ge=1)
    """Children of a node above `depth_threshold`."""
    depth_threshold: int = Field(default=3, ge=0)
    """From this depth on every node has one child."""
    verifier: Literal["rule", "model", "off"] = "rule"
    """Who says what an observation is worth; `off`: everything is new."""
    on_unforkable: Literal["chain", "refuse"] = "chain"
    """What to do where branches can't be kept apart: only the first child, or none."""
    action_similarity: float = Field(default=0.9, ge=0)
    """From here on two actions are the same; above 1: only if they are equal."""
    max_asks: int = Field(default=3, ge=1)
    """How often a node's planner is asked at most, until enough that it proposes is new."""

    min_depth: int = Field(default=2, ge=1)
    """Pieces of evidence that a path must have to be asked about."""
    max_selected_traj: int = Field(default=3, ge=0)
    """Paths selected per seed at most."""
    path_similarity_threshold: Share = 0.7
    """Paths that say the same to more than this share are one path."""
    selection_strategy: str = "novelty"
    """In which order paths are chosen: `novelty`, `documented`, `diverse`, or `module:function`."""

    synthesis_tips: Prose = ""
    """Guidance for questions."""
    qa_examples: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])
    """Examples of the style wanted, each with `question` and `answer`."""
    min_reasoning_steps: int = Field(default=3, ge=1)
    """Steps from question to answer at least."""
    max_tries: int = Field(default=3, ge=1)
    """Drafts per path at most; each is told what was wrong with those before."""
    check_answerability: bool = True
    """Drop what the model answers without the path."""
    max_question_words: int = Field(default=85, ge=1)
    """Words of a question at most; two characters of a script without spaces count as one."""
    question_similarity: Share = 0.85
    """From here on two questions with the same answer are one, over all seeds."""

    open_trees: int | None = Field(default=None, ge=1)
    """Trees that grow at once; `None`: as many as the tools allow."""
    run_name: str = Field(default="synthesis", min_length=1)
    """The run's name in its journal."""
    control: bool | Annotated[int, Field(ge=0, le=65535)] = True
    """Whether the running program can be controlled, and at which port; `true`: any free one."""

    learner: dict[str, Any] | None = None
    """Train the planner on the trees instead of writing questions: settings as `agentflow train` takes them. Every seed is
    a task then, and brings its `answer` along."""

    @field_validator("qa_examples")
    @classmethod
    def _complete(cls, examples: list[dict[str, str]]) -> list[dict[str, str]]:
        for number, example in enumerate(examples, 1):
            missing = [name for name in ("question", "answer") if not example.get(name, "").strip()]
            if missing:
                raise ValueError(f"example {number} has no {missing[0]}; add it")
        return examples

    @model_validator(mode="after")
    def _reachable(self) -> "SynthesisConfig":
        if self.min_depth > self.max_depth:
            raise ValueError(
                f"min_depth: no path is that deep; lower it to {self.max_depth}, or raise max_depth"
            )
        return self

    @property
    def role_models(self) -> Mapping[str, RoleModel]:
        """What is different about the model of each role that may ask one."""
        return {
            "planner": self.planner_model,
            "verifier": self.verifier_model,
            "generator": self.generator_model,
        }

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples for the generator."""
        return tuple(Example(example["question"], example["answer"]) for example in self.qa_examples)

    @property
    def growth(self) -> "GrowthSettings":
        """How trees grow."""
        from agentflow.growth import GrowthSettings, Unforkable  # brings the sandbox along

        return GrowthSettings(
            max_depth=self.max_depth,
            branching_factor=self.branching_factor,
            depth_threshold=self.depth_threshold,
            action_similarity=self.action_similarity,
            max_asks=self.max_asks,
            on_unforkable=Unforkable(self.on_unforkable),
            tips=self.sampling_tips,
            seed_description=self.seed_description,
        )


def load_synthesis_config(
    config_path: Path | str | None = None, overrides: Iterable[str] = ()
) -> SynthesisConfig:
    """The settings from a file, then `.env`, then the environment, then `key=value` words: the last one wins.

    The environment's `SEEDS_FILE` and `OUTPUT_DIR` count like `AGENTFLOW_SEEDS_FILE` and `AGENTFLOW_OUTPUT_DIR`.

    :raises ConfigurationError: one line, if anything in them can't be used.
    """
    short = [
        f"{name.lower()}={os.environ[name]}"
        for name in ("SEEDS_FILE", "OUTPUT_DIR")
        if os.environ.get(name) and not os.environ.get(f"AGENTFLOW_{name}")
    ]
    config = load_settings(SynthesisConfig, config_path, [*short, *overrides])
    find_strategy(config.selection_strategy)
    return config


load_config = load_synthesis_config
"""The documented name of `load_synthesis_config`."""
