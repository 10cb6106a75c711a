"""Settings of a training run."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field, SecretStr, model_validator

from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError
from agentflow.learner._policy import OptimizerSettings, PolicySettings
from agentflow.learner.losses import LossSettings
from agentflow.learner.trackers import TrackerSettings
from agentflow.learner.trinity import TrinitySettings, unsupported_loss
from agentflow.learner.verl import VerlSettings
from agentflow.readers import ReaderSettings, names_reader
from agentflow.rollouts import BranchingSettings, RolloutConfig
from agentflow.runs import CORPUS_TOOLS, RoleModel
from agentflow.serving import ServingSettings
from agentflow.settings import EndpointUrl, Section, Settings, load_settings

if TYPE_CHECKING:
    from agentflow.models import ModelSettings


POLICY: Final = "policy"
"""Model of a role: the weights being trained."""
FROZEN: Final = "frozen"
"""Model of a role: a frozen copy of the initial weights, served beside them."""
JUDGE: Final = "judge"
"""Role of the model that judges answers."""
BUNDLED: Final = "bamboogle"
"""Benchmark of backbone=debug without other settings."""
TEMPERATURE: Final = 0.7
"""Default sampling temperature of trained roles."""


class EvidenceSettings(Section):
    """Reward for the documents that an episode reads, beside that of its answer. See docs/training.md."""

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Reward of a right answer for which exactly the needed documents were read, beyond that of the answer."""
    beta: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """Weight of recall against precision."""
    unconditional: float = Field(default=0.1, ge=0, le=1)
    """Share of it that does not depend on the answer."""

    def reward(self, score: float, evidence: float) -> float:
        """Return the reward of an answer's score and the F-beta of the documents that were read.

        >>> EvidenceSettings(weight=0.5).reward(1.0, 0.5)
        1.25
        """
        right = min(max(score, 0.0), 1.0)
        return score + self.weight * evidence * (self.unconditional + (1 - self.unconditional) * right)


class TaskSettings(Section):
    """Training tasks."""

    aliases: ClassVar[dict[str, str]] = {"evaluation_metric": "metric"}

    data_path: str | None = None
    """File of tasks: JSONL, JSON, CSV or parquet, with a question and its answer on each line; or a reader by name, such as
    `reasoning_gym:countdown?size=100`."""
    reader: ReaderSettings | None = None
    """Reader of tasks, with columns, filters and variants, instead of `data_path`."""
    benchmark_name: str | None = None
    """Name of a benchmark, or a file that describes one: its format, prompt and metric."""
    number_of_tasks: int | None = Field(default=None, ge=1)
    """Number of tasks to take, from the first; `None`: all."""
    metric: str | None = None
    """Metric of an answer, by name or as `module:function`; `None`: that of the benchmark, `by_source` for tasks of known
    sources, otherwise `exact_match`. A judge is asked only about answers that its rule does not accept.
    """
    metric_options: dict[str, object] = Field(default_factory=dict[str, object])
    """Options of the metric."""
    evidence: EvidenceSettings | None = None
    """Reward for reading the documents that a task needs; `None`: the answer alone is rewarded."""


class EpisodeRules(RolloutConfig):
    """Episodes: the settings of a rollout, without those of tasks and files."""

    REPLACED: ClassVar[Mapping[str, str]] = {
        **{name: f"tasks.{name}" for name in ("data_path", "benchmark_name", "number_of_tasks")},
        "evaluation_metric": "tasks.metric",
        "metric_options": "tasks.metric_options",
        "samples": "schedule.episodes_per_task",
        "branching": "branching",
        "output_dir": "output_dir",
        **dict.fromkeys(("max_seconds", "run_name", "journal", "parallel", "task_ids"), ""),
        **dict.fromkeys(("save_results", "save_trajectories", "trajectory_only", "save_summary"), ""),
    }
    """Settings of a rollout that training does not use, with their replacements."""

    @property
    def default_tools(self) -> tuple[str, ...]:
        """Tools if the settings name neither a tool nor a resource."""
        return CORPUS_TOOLS

    trained: list[str] | None = None
    """Roles to train, all with the same weights; `None`: the planner, or the single agent."""
    max_turns: int | None = Field(default=3, ge=0)
    """Maximum number of turns of an episode."""
    max_workers: int = Field(default=64, ge=1)
    """Maximum number of concurrent episodes."""
    max_retries: int = Field(default=2, ge=0)
    """Number of retries of an episode that crashed or lost its engine."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        for name in sorted(self.model_fields_set & self.REPLACED.keys()):
            place = self.REPLACED[name]
            yield f"{name}: training does not use it; " + (
                f"set {place} instead" if place else "leave it out"
            )
        if not self.evaluate_results:
            yield "evaluate_results: training needs a reward; leave it out"
        known = self.role_models
        for role in self.trained_roles:
            if role not in known:
                yield f"trained: there is no role {role}; choose from {', '.join(known)}"
            elif known[role].model_name not in (None, POLICY) or known[role].base_url:
                yield f"{role}_model: {role} is trained, so its model is the policy; leave out its name"
        if len({self.temperature_of(role) for role in self.trained_roles}) > 1:
            yield "trained: these roles have different temperatures; set the same for all"

    @property
    def trained_roles(self) -> tuple[str, ...]:
        """Roles to train."""
        if self.trained is not None:
            return tuple(self.trained)
        return ("planner",) if self.agent == "team" else ("agent",)

    def temperature_of(self, role: str) -> float:
        """Return the sampling temperature of a trained role."""
        own = self.role_models[role].temperature if role in self.role_models else None
        chosen = own if own is not None else self.temperature
        return TEMPERATURE if chosen is None else chosen

    @property
    def temperature_in_training(self) -> float:
        """Sampling temperature of the trained roles."""
        return self.temperature_of(self.trained_roles[0]) if self.trained_roles else TEMPERATURE

    @property
    def offline(self) -> bool:
        """True if no role has a model."""
        return not any((self.trained_roles, self._named, *map(_names_model, self.role_models.values())))

    @property
    def _named(self) -> bool:
        return bool("model_name" in self.model_fields_set or self.base_url or self.api_key.get_secret_value())

    @property
    def models(self) -> "dict[str, ModelSettings]":
        """Model of each role. Trained roles use `policy`; a role without a model uses the offline engine."""
        from agentflow.models import OFFLINE, ModelSettings  # imports HTTP

        found: dict[str, ModelSettings] = {}
        for role, own in self.role_models.items():
            if role in self.trained_roles:
                found[role] = self.model_for(role).model_copy(update=self._as_trained(role, own))
            elif self._named or _names_model(own):
                found[role] = self.model_for(role)
            else:
                found[role] = ModelSettings(name=OFFLINE, vision=False)
        return found

    def _as_trained(self, role: str, own: RoleModel) -> dict[str, object]:
        structured = own.structured or self.structured
        return {
            "name": POLICY,
            "temperature": self.temperature_of(role),
            # Unconstrained: an invalid answer can be trained on, a constrained one has other probabilities.
            "structured": "text" if structured == "auto" else structured,
            # Repeating a seeded call gives the same unusable answer; an episode that lost its engine is run again.
            "max_attempts": own.max_attempts or 1,
        }


def _names_model(own: RoleModel) -> bool:
    return bool(own.model_name or own.base_url)


ENGINE_FOLDER: Final = "engine"
"""Folder of the output with the key of an engine that `agentflow train --serve` starts."""
KEY_FILE: Final = "key"


class OwnEngine(ServingSettings):
    """The run's own vLLM server; its model is the policy's."""

    model: str = ""
    """Folder or name of a model; empty: the policy's."""


class EngineSettings(Section):
    """The inference engine: vLLM, whose weights are updated while it runs."""

    renamed: ClassVar[dict[str, str]] = {"name": "served_model_name"}

    base_url: EndpointUrl = ""
    """URL of a server that was started for training, as `agentflow train --serve` does, or of the database with its replicas;
    empty: the training starts one."""
    api_key: SecretStr = SecretStr("")
    """API key of that server; empty: that of `agentflow train --serve` with the same `output_dir`."""
    served_model_name: str = ""
    """Name of the model at that server; empty: the policy's model."""
    server: OwnEngine = OwnEngine()
    """Settings of the server that the training or `agentflow train --serve` starts: everything that `agentflow serve-model`
    accepts."""

    @property
    def has_replicas(self) -> bool:
        """True if `base_url` is that of a database with replicas."""
        from agentflow.models import has_replicas  # imports HTTP

        return has_replicas(self.base_url)


class GrowthRules(Section):
    """Settings of trees in earlier versions, which are read as those of branching. See docs/training.md."""

    max_depth: int = Field(default=3, ge=1)
    """Maximum number of turns."""
    branching_factor: int = Field(default=2, ge=1)
    """Continuations of a decision."""
    depth_threshold: int = Field(default=2, ge=0)
    """Number of decisions that branch."""
    merge_duplicates: bool = True
    """Run equal continuations once."""
    tips: str = ""
    """Guidance for the planner."""
    task_description: str = ""
    """Description of the tasks, for the planner."""

    @property
    def branching(self) -> dict[str, object]:
        """The same as settings of branching."""
        leaves = self.branching_factor ** min(self.depth_threshold, self.max_depth)
        return {
            "width": self.branching_factor,
            "leaves": leaves,
            "merge_duplicates": self.merge_duplicates,
        }

    @property
    def episodes(self) -> dict[str, object]:
        """The same as settings of episodes."""
        guidance = "\n\n".join(text for text in (self.task_description, self.tips) if text)
        return {"max_turns": self.max_depth, **({"system_prompt": guidance} if guidance else {})}


class Schedule(Section):
    """Number and order of steps."""

    renamed: ClassVar[dict[str, str]] = {
        "staleness": "max_staleness",
        "checkpoint_every": "save_steps",
        "keep_checkpoints": "save_total_limit",
    }

    steps: int | None = Field(default=None, ge=1)
    """Maximum number of steps; `None`: determined by the epochs."""
    epochs: int | None = Field(default=1, ge=1)
    """Number of draws of each task; `None`: unlimited, `steps` is required."""
    tasks_per_step: int = Field(default=32, ge=1)
    """Tasks per step."""
    episodes_per_task: int = Field(default=8, ge=1)
    """Episodes per task (group size)."""
    mode: Literal["sync", "async"] = "sync"
    """`sync`: rollouts and steps alternate; `async`: episodes run while steps are made."""
    max_staleness: int = Field(default=1, ge=0)
    """mode=async: maximum age of an episode's oldest call, in versions of the weights."""
    stale: Literal["drop", "wait"] = "drop"
    """mode=async: leave out an episode that becomes too old, or make the step wait for it."""
    replace_equal: float = Field(default=0.0, ge=0)
    """Share of additional tasks a step may draw to replace those whose rewards are all equal."""
    steps_per_batch: int = Field(default=1, ge=1)
    """Optimizer steps per batch; the batch is divided by whole groups."""
    save_steps: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step has one, too."""
    save_total_limit: int = Field(default=2, ge=1)
    """Number of most recent checkpoints to keep."""
    replay: Path | None = None
    """Folder of stored rollouts to train on; nothing is sampled."""
    save_log_probs: bool = True
    """Store the trainer's log-probability of each trained token beside the rollouts: 4 bytes for each."""


class ValidationSettings(Section):
    """Held-out tasks for periodic evaluation. They are never trained on; choose a checkpoint by them, not by a test set."""

    renamed: ClassVar[dict[str, str]] = {"every": "eval_steps", "first": "eval_on_start"}

    data_path: str | None = None
    """File of tasks, or a reader by name; `None`: no validation."""
    reader: ReaderSettings | None = None
    """Reader of tasks, instead of `data_path`."""
    number_of_tasks: int | None = Field(default=None, ge=1)
    """Number of tasks to take, from the first; `None`: all."""
    eval_steps: int = Field(default=10, ge=1)
    """Steps between validations; the last step has one, too."""
    eval_on_start: bool = True
    """Also validate before the first step."""
    samples: int = Field(default=1, ge=1)
    """Episodes per task; with more than one, `pass@k` is reported."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of trained roles; `None`: as in training."""
    max_turns: int | None = Field(default=None, ge=0)
    """Maximum number of turns of an episode; `None`: as in training."""


class TrainConfig(Settings):
    """Settings of a training run. Made directly, they ignore files and the environment; `load_train_config` reads them."""

    renamed: ClassVar[dict[str, str]] = {"optimiser": "optimizer"}

    backbone: Literal["local", "verl", "trinity", "debug"] = "local"
    """Backbone: torch on this machine; verl; Trinity; or `debug`, which inspects rollouts and rewards without training."""
    output_dir: str = "training_results"
    """Folder of all output."""
    seed: int = 0
    """Seed of the order of tasks and of every sampled token."""

    tasks: TaskSettings = TaskSettings()
    """Training tasks."""
    episodes: EpisodeRules = EpisodeRules()
    """Episodes and their roles."""
    branching: BranchingSettings | None = None
    """Episodes of a group share their beginnings; by default there are `schedule.episodes_per_task` of them. `None`: they are
    independent."""
    validation: ValidationSettings = ValidationSettings()
    """Validation."""
    schedule: Schedule = Schedule()
    """Number and order of steps."""
    policy: PolicySettings | None = None
    """The model to train; required unless backbone=debug."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """The optimizer."""
    verl: VerlSettings = VerlSettings()
    """Settings of backbone=verl."""
    trinity: TrinitySettings = TrinitySettings()
    """Settings of backbone=trinity."""
    loss: LossSettings = LossSettings()
    """The loss."""
    engine: EngineSettings = EngineSettings()
    """The inference engine."""
    trackers: TrackerSettings = TrackerSettings()
    """Trackers of the figures of steps."""

    @classmethod
    def values_of_file(
        cls, values: dict[str, object], file: str, above: Mapping[str, object]
    ) -> dict[str, object]:
        """Refuse a file of AgentJet, which names a workflow. See docs/migrating-tuner.md.

        :raises ConfigurationError: if it is one.
        """
        if "ajet" in values:
            raise ConfigurationError(f"{file}: ajet: a file of AgentJet; run ajet --conf {file}")
        return values

    @model_validator(mode="before")
    @classmethod
    def _with_branching(cls, values: object) -> object:
        """Read `growth`, the settings of trees in earlier versions."""
        if not is_object(values) or not is_object(growth := values.get("growth")):
            return values
        given, episodes = values.get("branching"), values.get("episodes")
        rules = GrowthRules.model_validate(growth)
        others = {name: value for name, value in values.items() if name != "growth"}
        return {
            **others,
            "branching": rules.branching | (given if is_object(given) else {}),
            "episodes": rules.episodes | (episodes if is_object(episodes) else {}),
        }

    @model_validator(mode="after")
    def _sensible(self) -> "TrainConfig":
        if problem := next(self._problems(), None):
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        schedule = self.schedule
        if schedule.steps is None and schedule.epochs is None:
            yield "schedule.steps: the run would never end; set steps or epochs"
        if schedule.mode == "sync" and schedule.model_fields_set & {"max_staleness", "stale"}:
            yield "schedule.max_staleness: mode=sync has no stale episodes; leave it out, or set mode=async"
        if self.backbone == "trinity" and schedule.steps_per_batch > 1:
            yield "schedule.steps_per_batch: backbone=trinity makes one step per batch; set it to 1"
        if self.backbone == "trinity" and schedule.max_staleness > 1:
            yield "schedule.max_staleness: backbone=trinity has no probabilities of older weights; set it to 1 or 0"
        if self.backbone == "trinity" and (problem := unsupported_loss(self.loss)):
            yield problem
        if self.backbone in ("verl", "trinity") and self.policy is not None and self.policy.processes > 1:
            yield f"policy.processes: backbone={self.backbone} starts its own processes; leave it out"
        if self.engine.has_replicas and self.engine.server != OwnEngine():
            yield "engine.server: no server is started because base_url names replicas; leave out one of them"
        if self.branching is not None:
            yield from self._branching_problems(self.branching)
        elif self.loss.credit != "episode":
            yield f"loss.credit: {self.loss.credit} compares episodes that share their beginnings; set branching, too"
        for name, section in (("tasks", self.tasks), ("validation", self.validation)):
            if section.reader is not None and (section.data_path or getattr(section, "benchmark_name", None)):
                yield f"{name}.reader: there is another source; leave out data_path and benchmark_name"
        if self.tasks.data_path and self.tasks.data_path == self.validation.data_path:
            yield "validation.data_path: these are the training tasks; name others"

    def _branching_problems(self, branching: BranchingSettings) -> Iterator[str]:
        if branching.search != "all":
            yield "branching.search: training needs the answers of all paths; leave it out"
        known = self.episodes.role_models
        for role in branching.roles or ():
            if role not in known:
                yield f"branching.roles: there is no role {role}; choose from {', '.join(known)}"

    @property
    def tree(self) -> BranchingSettings | None:
        """Branching of the episodes of a group, with the number of its episodes and the deciding roles."""
        if self.branching is None:
            return None
        leaves = self.branching.leaves if "leaves" in self.branching.model_fields_set else None
        return self.branching.model_copy(
            update={
                "leaves": leaves or self.schedule.episodes_per_task,
                "roles": self.branching.roles or list(self.episodes.trained_roles),
            }
        )

    @property
    def output(self) -> Path:
        """Folder of all output."""
        return Path(self.output_dir)

    def reader_for(self, kind: Literal["training", "validation"]) -> ReaderSettings | None:
        """Return the reader of the tasks of one kind; `None`: they are in a file."""
        section = self.tasks if kind == "training" else self.validation
        if section.reader is not None:
            return section.reader
        named = section.data_path is not None and names_reader(section.data_path)
        return ReaderSettings(source=section.data_path or "") if named else None

    def rules_for(self, kind: Literal["training", "validation"]) -> RolloutConfig:
        """Return the settings of a rollout over the tasks of one kind."""
        tasks: Any = self.tasks if kind == "training" else self.validation
        benchmark = self.tasks.benchmark_name
        if self.backbone == "debug" and benchmark is None and tasks.data_path is None:
            from agentflow.runs import explores_bundled_corpus  # imports the sandbox

            # Same defaults as a rollout without settings: the bundled samples and corpus.
            benchmark = BUNDLED if explores_bundled_corpus(self.episodes) else None
        return self.episodes.model_copy(
            update={
                "data_path": tasks.data_path,
                "benchmark_name": benchmark,
                "number_of_tasks": tasks.number_of_tasks,
                "evaluation_metric": self.tasks.metric,
                "metric_options": self.tasks.metric_options,
            }
        )


def load_train_config(
    config_path: Path | str | None = None,
    overrides: Iterable[str] = (),
    arguments: Mapping[str, object] | None = None,
) -> TrainConfig:
    """Load settings from a file, then `.env`, then the environment, then `key=value` overrides; the last one wins.

    :param arguments: settings given by a program; they override all others.
    :raises ConfigurationError: if a setting can't be used; one line.

    Example::

        config = load_train_config(overrides=["backbone=debug", "schedule.steps=1"])
        assert config.schedule.steps == 1
    """
    config = load_settings(TrainConfig, config_path, overrides, arguments=arguments)
    return with_engine_key(config) if config.engine.base_url else config


def with_engine_key(config: TrainConfig) -> TrainConfig:
    """Return settings with the key of the engine that was served for them; those that have a key keep it.

    :raises ConfigurationError: if its file can't be read.
    """
    file = config.output / ENGINE_FOLDER / KEY_FILE
    if config.engine.api_key.get_secret_value() or config.engine.has_replicas:
        return config
    try:
        key = SecretStr(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return config
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(
            f"{file}: can't be read: {reason}; remove it, or set engine.api_key"
        ) from None
    return config.model_copy(update={"engine": config.engine.model_copy(update={"api_key": key})})
