"""Settings of a synthesis."""

import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from agentflow.questions import KIND_AIMS, KIND_TURNS
from agentflow.runs import Prose, RoleModel, RunConfig
from agentflow.settings import Section, load_settings
from agentflow.synthesis._selection import find_strategy
from agentflow.trace import Example

if TYPE_CHECKING:
    from agentflow.engine import GrowthSettings


Role = Literal["planner", "verifier", "generator", "reader", "learner", "agent"]
"""Role that uses a model."""

TaskName = Literal["terminal", "embodied", "gui", "text2sql", "data_analysis", "document"]
"""Kind of tasks that can be derived from trees; see `agentflow.tasks`."""

_DATA_BACKENDS: Final = frozenset({"data", "files", "code", "bash"})
_TABLES: Final = ("*.csv", "*.tsv", "*.parquet")


Share = Annotated[float, Field(ge=0, le=1)]


_ADDED: Final = (
    "recovery_share",
    "max_observation_chars",
    "max_evidence_chars",
    "quotas",
    "fuzz",
    "licences",
)
"""Settings that runs of earlier versions do not have; they resume with the defaults."""


class DifficultySettings(Section):
    """Attempts by which the difficulty of a question is measured."""

    attempts: int = Field(default=0, ge=0, le=64)
    """Number of attempts at each question; 0: its difficulty is not measured."""
    window: tuple[float, float] = (0.25, 0.75)
    """Share of right attempts that a question must have, from the least to the most."""
    max_turns: int = Field(default=6, ge=1)
    """Maximum number of turns of an attempt."""

    @model_validator(mode="after")
    def _ordered(self) -> "DifficultySettings":
        low, high = self.window
        if not 0 <= low <= high <= 1:
            raise ValueError("window: give two shares from 0 to 1, the smaller first")
        return self


class QuotaSettings(Section):
    """Largest shares of the pairs of a file that may have something in common; 1: no limit."""

    kind: Share = 0.25
    """Share of a kind of questions, if there are enough kinds."""
    answer: Share = 0.01
    """Share of an answer other than yes and no."""


class SynthesisConfig(RunConfig):
    """Settings of a synthesis. Constructed directly, it reads neither files nor the environment; `load_config` does."""

    DEFAULT_OUTPUT: ClassVar[str] = "synthesis_results"
    """Default output directory."""
    NOT_CONTENT: ClassVar[frozenset[str]] = frozenset(
        {"seeds_file", "number_of_seed", "max_open_trees", "control", "learner", "rounds", "held_out"}
    )
    """Its fields that do not affect the content of the files."""
    renamed: ClassVar[dict[str, str]] = {
        "max_asks": "max_planner_calls", "max_tries": "max_drafts", "open_trees": "max_open_trees",
    }  # fmt: skip

    seeds_file: str | None = None
    """File of seeds: JSONL with one `{"content": …, "kwargs": {…}}` per line."""
    number_of_seed: int | None = Field(default=None, ge=0)
    """Number of seeds to use, from the first; `None`: all."""
    seed_description: Prose = ""
    """Description of the seeds, for the planner and the generator."""

    planner_model: RoleModel = RoleModel()
    """Model settings of the planner."""
    verifier_model: RoleModel = RoleModel()
    """Model settings of the verifier, with `verifier: model`."""
    generator_model: RoleModel = RoleModel()
    """Model settings of the generator."""
    reader_model: RoleModel = RoleModel()
    """Model settings of the reader, which checks questions; by default those of the generator. Another family is better."""
    sampling_tips: Prose = ""
    """Guidance for exploring."""
    max_depth: int = Field(default=5, ge=1)
    """Maximum number of actions on a path."""
    branching_factor: int = Field(default=2, ge=1)
    """Number of children of a node above `depth_threshold`."""
    depth_threshold: int = Field(default=3, ge=0)
    """Depth from which every node has one child."""
    verifier: Literal["rule", "model", "off"] = "rule"
    """Method of giving verdicts; `off`: every observation is new."""
    on_unforkable: Literal["chain", "refuse"] = "chain"
    """Handling of sandboxes that can't be forked: `chain` grows only the first child, `refuse` none."""
    action_similarity: float = Field(default=0.9, ge=0)
    """Similarity from which two actions are duplicates; above 1: only equal actions."""
    max_planner_calls: int = Field(default=3, ge=1)
    """Maximum number of planner calls per node to get enough new actions."""

    recovery_share: Share = 0.2
    """Share of a full tree's nodes that may be recovery children: the only child of a failed or empty node; 0 disables them."""
    max_observation_chars: int = Field(default=12_000, ge=500)
    """Maximum characters of an observation in a prompt; of a longer one the passages are shown that fit the path."""
    max_evidence_chars: int = Field(default=24_000, ge=1_000)
    """Maximum characters of all observations in a prompt."""

    min_depth: int = Field(default=2, ge=1)
    """Minimum number of pieces of evidence of a selected path."""
    max_selected_traj: int = Field(default=3, ge=0)
    """Maximum number of selected paths per seed."""
    path_similarity_threshold: Share = 0.7
    """Share of common content above which a path is too similar to a selected one."""
    selection_strategy: str = "novelty"
    """Order of selection: `novelty`, `documented`, `diverse`, or `module:function`."""

    tasks: TaskName | Literal["questions"] | None = None
    """Derive verified tasks of this kind from trees; `questions`: write questions over documents. By default the resources decide,
    see `task_kind`."""

    synthesis_tips: Prose = ""
    """Guidance for writing questions."""
    qa_examples: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])
    """Examples of the wanted style, each with `question` and `answer`."""
    min_reasoning_steps: int = Field(default=3, ge=0)
    """Minimum number of steps that a question needs; restating the answer is none."""
    max_questions: int = Field(default=12, ge=0)
    """Maximum number of questions per seed."""
    drafts: int = Field(default=12, ge=1, le=40)
    """Number of drafts that a model is asked for, per group of documents."""
    max_documents: int = Field(default=14, ge=1)
    """Maximum number of documents in a prompt. A tree with more is divided into groups by what connects them."""
    max_groups: int = Field(default=3, ge=1)
    """Maximum number of groups of documents of a tree about which questions are written."""
    min_documents: int = Field(default=2, ge=1)
    """Minimum number of documents that a question needs; the result of a tool counts as one."""
    repair: bool = True
    """Have a draft that failed a check written anew once."""
    fuzz: bool = False
    """Have the names and figures of accepted questions described instead of quoted; where a check then fails, the question stays
    as it was. Harder questions, for about half as many calls more."""
    licences: dict[str, str] = Field(default_factory=dict[str, str])
    """Licences of documents by patterns of their ids, as `{"release-*": "PostgreSQL"}`; each pair names those of its documents."""
    known: Literal["label", "drop"] = "label"
    """Handling of questions that the learner's model always answers without documents."""
    closed_book_samples: int = Field(default=3, ge=0)
    """Times that it is asked; 0: it is not asked."""
    learner_model: RoleModel = RoleModel()
    """Model settings of the model that is to learn; by default those of the agent."""
    max_drafts: int = Field(default=3, ge=1)
    """Maximum number of drafts of an instruction of a task."""
    evidence_samples: int = Field(default=2, ge=0)
    """Times that readers answer all questions from all documents, each in another order; 0: no reader checks."""
    search_alternatives: bool = True
    """Search the whole corpus for other answers, if a tool of the run can search."""
    max_question_words: int = Field(default=85, ge=1)
    """Maximum number of words of a question; two characters of a script without spaces count as one word."""
    difficulty: DifficultySettings = DifficultySettings()
    """Attempts of a single agent at each question, as `{attempts: 4, window: [0.25, 0.75]}`."""
    agent_model: RoleModel = RoleModel()
    """Model settings of that agent."""
    question_similarity: Share = 0.85
    """Similarity of words from which two questions with the same answer are duplicates, over all seeds."""
    quotas: QuotaSettings = QuotaSettings()
    """Largest shares of a kind and of an answer in the file of pairs, as `{kind: 0.25, answer: 0.01}`. Pairs over them are
    written to another file."""

    max_open_trees: int | None = Field(default=None, ge=1)
    """Maximum number of trees that grow concurrently; `None`: as many as the tools allow."""
    run_name: str = Field(default="synthesis", min_length=1)
    """The run's name in its journal."""
    control: bool | Annotated[int, Field(ge=0, le=65535)] = True
    """Control server of the run: its port, `true` for any free one, or `false` for none."""

    learner: dict[str, Any] | None = None
    """Settings of `agentflow train`: the planner grows the trees, and is trained on the kept pairs, in rounds. With tasks of its
    own (`tasks.data_path`) it is trained on trees of these, and no questions are written."""
    rounds: int = Field(default=3, ge=1)
    """With `learner`: number of rounds among which the seeds are divided. `schedule.steps` is the number of steps of a round."""
    held_out: Share = 0.25
    """With `learner`: share of the seeds, from the last, whose pairs are never trained on; they measure the gain."""

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

    def identity(self) -> dict[str, object]:
        """Return what affects the content of the files."""
        content = super().identity() | {"tasks": self.task_kind}
        for name in _ADDED:
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                del content[name]
        return content

    @property
    def task_kind(self) -> TaskName | None:
        """Kind of tasks to derive; `None`: questions are written.

        If `tasks` is not set, it is `text2sql` if databases are the only resource, and `data_analysis` if it is a folder with CSV, TSV
        or Parquet files. Tools of a server can't verify such tasks.
        """
        if self.tasks is not None:
            return None if self.tasks == "questions" else self.tasks
        if not self.resources or self.sandbox_server_url is not None:
            return None
        from agentflow.sandbox import backend_of  # loads the servers

        settings_by_backend = {
            name: settings for name, settings in self.sandbox.backend_settings.items() if settings
        }
        used = {backend_of(name) for name in self.available_tools}
        if settings_by_backend.keys() == {"sql"} and (not used or "sql" in used):
            return "text2sql"
        if used and used.isdisjoint(_DATA_BACKENDS):
            return None
        folders = [
            Path(str(path))
            for name in ("data", "files")
            for key in ("folder", "data_dir", "seed_path")
            if (path := settings_by_backend.get(name, {}).get(key))
        ]
        tables = any(next(folder.glob(pattern), None) for folder in folders for pattern in _TABLES)
        return "data_analysis" if tables and settings_by_backend.keys() <= _DATA_BACKENDS else None

    @property
    def role_models(self) -> Mapping[str, RoleModel]:
        """Model settings of each role that uses a model."""
        return {
            "planner": self.planner_model,
            "verifier": self.verifier_model,
            "generator": self.generator_model,
            "reader": self.generator_model if self.reader_model == RoleModel() else self.reader_model,
            "learner": self.agent_model if self.learner_model == RoleModel() else self.learner_model,
            "agent": self.agent_model,
        }

    @property
    def examples(self) -> tuple[Example, ...]:
        """Examples for the generator."""
        return tuple(Example(example["question"], example["answer"]) for example in self.qa_examples)

    @property
    def growth(self) -> "GrowthSettings":
        """Settings of growing."""
        from agentflow.engine import GrowthSettings, Unforkable  # loads the sandbox

        aims = tuple(tuple(KIND_AIMS[kind] for kind in turn) for turn in KIND_TURNS)
        return GrowthSettings(
            max_depth=self.max_depth,
            branching_factor=self.branching_factor,
            depth_threshold=self.depth_threshold,
            action_similarity=self.action_similarity,
            max_asks=self.max_planner_calls,
            on_unforkable=Unforkable(self.on_unforkable),
            recovery_share=self.recovery_share,
            tips=self.sampling_tips,
            aims=aims if self.task_kind is None else (),
            seed_description=self.seed_description,
        )


def load_synthesis_config(
    config_path: str | PathLike[str] | None = None, overrides: Iterable[str] = ()
) -> SynthesisConfig:
    """Load settings from a file, `.env`, the environment and `key=value` overrides; later sources win.

    The variables `SEEDS_FILE` and `OUTPUT_DIR` are read like `AGENTFLOW_SEEDS_FILE` and `AGENTFLOW_OUTPUT_DIR`.

    :raises ConfigurationError: one line, if a setting can't be used.

    Example::

        config = load_config("config.yaml", ["branching_factor=3"])
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
