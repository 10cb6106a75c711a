"""The settings of a training run: one file says all of it."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field, SecretStr, model_validator

from agentflow.learner._growth import GrowthRules
from agentflow.learner._policy import OptimiserSettings, PolicySettings
from agentflow.learner.losses import LossSettings
from agentflow.learner.trackers import TrackerSettings
from agentflow.learner.verl import VerlSettings
from agentflow.rollout import RolloutConfig
from agentflow.runs import RoleModel
from agentflow.serving import ServingSettings
from agentflow.settings import Section, Settings, load_settings

if TYPE_CHECKING:
    from agentflow.models import ModelSettings

__all__ = [
    "FROZEN",
    "JUDGE",
    "POLICY",
    "EngineSettings",
    "EpisodeRules",
    "OwnEngine",
    "Schedule",
    "TaskSettings",
    "TrainConfig",
    "ValidationSettings",
    "load_train_config",
]

POLICY: Final = "policy"
"""As the model of a role: the weights that are trained."""
FROZEN: Final = "frozen"
"""As the model of a role: a copy of the weights that training began with, served beside them."""
JUDGE: Final = "judge"
"""The role of the model that judges answers."""
BUNDLED: Final = "bamboogle"
"""What is looked at with backbone=debug, where nothing says anything."""
TEMPERATURE: Final = 0.7
"""What trained roles sample at, where nothing says it."""


class TaskSettings(Section):
    """What is learned from."""

    data_path: str | None = None
    """The tasks: a JSONL, JSON, CSV or parquet file with a question and its answer on each line."""
    benchmark_name: str | None = None
    """A benchmark by its name, or a file that describes one: how its tasks are read, asked and scored."""
    number_of_tasks: int | None = Field(default=None, ge=1)
    """How many tasks to take, from the first; `None`: all."""
    metric: str | None = None
    """What an answer is worth, by the metric's name or as `module:function`; `None`: that of the benchmark, else
    `exact_match`. A judge is asked only what its rule does not find right."""
    metric_options: dict[str, object] = Field(default_factory=dict[str, object])
    """Options of the metric."""


class EpisodeRules(RolloutConfig):
    """How an episode goes: the settings of a rollout that say it. What is said of tasks and files stands elsewhere."""

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **{name: f"tasks.{name}" for name in ("data_path", "benchmark_name", "number_of_tasks")},
        "evaluation_metric": "tasks.metric",
        "metric_options": "tasks.metric_options",
        "samples": "schedule.episodes_per_task",
        "output_dir": "output_dir",
        **dict.fromkeys(("max_seconds", "run_name", "journal", "parallel", "task_ids"), ""),
        **dict.fromkeys(("save_results", "save_trajectories", "trajectory_only", "save_summary"), ""),
    }
    """Settings of a rollout that training has no use for, and what stands for them."""

    trained: list[str] | None = None
    """The roles that are trained, all by the same weights; `None`: the planner, or the single agent."""
    max_turns: int | None = Field(default=3, ge=0)
    """Turns of an episode at most."""
    max_workers: int = Field(default=64, ge=1)
    """Episodes at once."""
    max_retries: int = Field(default=2, ge=0)
    """How often an episode is begun again that crashed or lost its engine."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        for name in sorted(self.model_fields_set & self.ELSEWHERE.keys()):
            place = self.ELSEWHERE[name]
            yield f"{name}: training has no use for it; " + (f"say {place}" if place else "leave it out")
        if not self.evaluate_results:
            yield "evaluate_results: without a reward nothing is learned; leave it out"
        known = self.role_models
        for role in self.trained_roles:
            if role not in known:
                yield f"trained: there is no role {role}; name some of {', '.join(known)}"
            elif known[role].model_name not in (None, POLICY) or known[role].base_url:
                yield f"{role}_model: {role} is trained, so its model is the policy; leave its name out"
        if len({self.temperature_of(role) for role in self.trained_roles}) > 1:
            yield "trained: these roles sample at different temperatures; give them the same"

    @property
    def trained_roles(self) -> tuple[str, ...]:
        """The roles that are trained."""
        if self.trained is not None:
            return tuple(self.trained)
        return ("planner",) if self.agent == "team" else ("agent",)

    def temperature_of(self, role: str) -> float:
        """What a trained role samples at."""
        own = self.role_models[role].temperature if role in self.role_models else None
        said = own if own is not None else self.temperature
        return TEMPERATURE if said is None else said

    @property
    def temperature_in_training(self) -> float:
        """What the trained roles sample at."""
        return self.temperature_of(self.trained_roles[0]) if self.trained_roles else TEMPERATURE

    @cached_property
    def offline(self) -> bool:
        """No role has a model, not even the trained ones."""
        return not any((self.trained_roles, self._named, *map(_names_one, self.role_models.values())))

    @property
    def _named(self) -> bool:
        return bool("model_name" in self.model_fields_set or self.base_url or self.api_key.get_secret_value())

    @property
    def models(self) -> "dict[str, ModelSettings]":
        """The model of each role; that of the trained ones is called `policy`. Nothing said is the offline engine."""
        from agentflow.models import OFFLINE, ModelSettings  # brings HTTP along

        found: dict[str, ModelSettings] = {}
        for role, own in self.role_models.items():
            if role in self.trained_roles:
                found[role] = self.model_for(role).model_copy(update=self._as_trained(role, own))
            elif self._named or _names_one(own):
                found[role] = self.model_for(role)
            else:
                found[role] = ModelSettings(name=OFFLINE, vision=False)
        return found

    def _as_trained(self, role: str, own: RoleModel) -> dict[str, object]:
        structured = own.structured or self.structured
        return {
            "name": POLICY,
            "temperature": self.temperature_of(role),
            # It writes what it likes: what is no answer may be learned from, what could not be sampled can't.
            "structured": "text" if structured == "auto" else structured,
            # A seeded answer that can't be used is the same again; an episode whose engine was lost begins again.
            "max_attempts": own.max_attempts or 1,
        }


def _names_one(own: RoleModel) -> bool:
    return bool(own.model_name or own.base_url)


class OwnEngine(ServingSettings):
    """A vLLM server of the run's own; its model is the policy's."""

    model: str = ""
    """A folder or a name; empty: the policy's."""


class EngineSettings(Section):
    """What samples: vLLM, which is given new weights while it runs."""

    base_url: str = Field(default="", pattern=r"^$|^https?://\S+$")
    """A server that runs already, started for training; empty: one is started."""
    api_key: SecretStr = SecretStr("")
    """The key for it."""
    name: str = ""
    """What requests call the model there; empty: as the policy's model."""
    server: OwnEngine = OwnEngine()
    """How one is started: everything that `agentflow serve-model` takes."""


class Schedule(Section):
    """How much is done, and in which order."""

    steps: int | None = Field(default=None, ge=1)
    """Steps at most; `None`: as many as the epochs give."""
    epochs: int | None = Field(default=1, ge=1)
    """How often each task is drawn; `None`: without an end, `steps` is one."""
    tasks_per_step: int = Field(default=32, ge=1)
    """Tasks that one step learns from."""
    episodes_per_task: int = Field(default=8, ge=1)
    """Episodes of each of them: the group that is compared."""
    mode: Literal["sync", "async"] = "sync"
    """`sync`: a step waits for its episodes, and they for it; `async`: episodes stream in while steps are made."""
    staleness: int = Field(default=1, ge=0)
    """With mode=async: by how many versions the oldest call of an episode may be behind, at most."""
    stale: Literal["drop", "wait"] = "drop"
    """With mode=async: an episode that gets too old is left out, or the weights wait for it."""
    replace_equal: float = Field(default=0.0, ge=0)
    """How many more tasks a step may draw, as a share of its tasks, for those whose rewards are all equal."""
    steps_per_batch: int = Field(default=1, ge=1)
    """Steps of the optimiser that the episodes of one step are cut into, by whole groups."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between two checkpoints; the last step has one, too."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that are kept, the newest."""
    replay: Path | None = None
    """A folder of stored rollouts: steps learn from what it holds, and nothing is sampled."""


class ValidationSettings(Section):
    """Held-out tasks that are worked on now and then. Nothing is learned from them; choose by them, not by a test set."""

    data_path: str | None = None
    """Their file; `None`: there is no validation."""
    number_of_tasks: int | None = Field(default=None, ge=1)
    """How many of them, from the first; `None`: all."""
    every: int = Field(default=10, ge=1)
    """Steps between two validations; the last step has one, too."""
    first: bool = True
    """Validate before the first step, too."""
    samples: int = Field(default=1, ge=1)
    """Episodes of each task; with more than one, `pass@k` is told, too."""
    temperature: float | None = Field(default=None, ge=0)
    """What trained roles sample at; `None`: as in training."""
    max_turns: int | None = Field(default=None, ge=0)
    """Turns of an episode at most; `None`: as in training."""


class TrainConfig(Settings):
    """The settings of a training run. Made directly they take nothing from their surroundings; `load_train_config` does."""

    backbone: Literal["local", "verl", "debug"] = "local"
    """What makes the steps: torch on this machine; verl; or nothing, to look at rollouts and rewards."""
    output_dir: str = "training_results"
    """Where everything goes."""
    seed: int = 0
    """Of the order of tasks and of every sampled token."""

    tasks: TaskSettings = TaskSettings()
    """What is learned from."""
    episodes: EpisodeRules = EpisodeRules()
    """How an episode goes, and who takes part in it."""
    growth: GrowthRules | None = None
    """How groups grow as trees; `None`: their episodes are played apart."""
    validation: ValidationSettings = ValidationSettings()
    """How it is seen whether it gets better."""
    schedule: Schedule = Schedule()
    """How much is done."""
    policy: PolicySettings | None = None
    """The weights that are trained; only backbone=debug needs none."""
    optimiser: OptimiserSettings = OptimiserSettings()
    """How they are changed."""
    verl: VerlSettings = VerlSettings()
    """Where verl runs, for backbone=verl."""
    loss: LossSettings = LossSettings()
    """What a step lowers."""
    engine: EngineSettings = EngineSettings()
    """What samples."""
    trackers: TrackerSettings = TrackerSettings()
    """Where the figures of steps go."""

    @model_validator(mode="after")
    def _sensible(self) -> "TrainConfig":
        if problem := next(self._problems(), None):
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        schedule = self.schedule
        if schedule.steps is None and schedule.epochs is None:
            yield "schedule.steps: without it and without epochs there is no end; set one of them"
        if schedule.mode == "sync" and schedule.model_fields_set & {"staleness", "stale"}:
            yield "schedule.staleness: episodes of mode=sync are never old; leave it out, or set mode=async"
        if self.engine.base_url and self.engine.server != OwnEngine():
            yield "engine.server: there is a base_url, so none is started; leave one of them out"
        if self.tasks.data_path and self.tasks.data_path == self.validation.data_path:
            yield "validation.data_path: these are the tasks that are learned from; name others"

    @property
    def output(self) -> Path:
        """Where everything goes."""
        return Path(self.output_dir)

    def rules_for(self, kind: Literal["training", "validation"]) -> RolloutConfig:
        """The same as the settings of a rollout over the tasks of one kind."""
        tasks: Any = self.tasks if kind == "training" else self.validation
        benchmark = self.tasks.benchmark_name
        if self.backbone == "debug" and benchmark is None and tasks.data_path is None:
            from agentflow.runs import explores_bundled_corpus  # brings the sandbox along

            # As a rollout of which nothing is said: the samples and the corpus that come along.
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
    """The settings from a file, then `.env`, then the environment, then `key=value` words: the last one wins.

    :param arguments: what a program says itself; it wins over all of them.
    :raises ConfigurationError: one line, if anything in them can't be used.
    """
    return load_settings(TrainConfig, config_path, overrides, arguments=arguments)
