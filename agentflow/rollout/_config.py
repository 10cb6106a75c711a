"""The settings of a rollout: every field, its default, and what follows from them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from agentflow.errors import ConfigurationError
from agentflow.runs import Prose, RoleModel, RunConfig
from agentflow.settings import load_settings

if TYPE_CHECKING:
    from agentflow.models import ModelSettings
    from agentflow.team import EpisodeSettings

__all__ = ["AGENT", "JUDGE", "TOOL", "RolloutConfig", "load_rollout_config"]

AGENT: Final = "agent"
"""The role of a single agent."""
JUDGE: Final = "judge"
"""The role of the model that judges answers."""
TURNS: Final = {"team": 10, "single": 100}
"""Turns at most, where nothing says how many."""
PARALLEL: Final = 8
"""Episodes at once, where `parallel` is said and no number of workers is."""
TOOL: Final = "tool"
"""The role of the model inside tools."""
MODEL_TOOLS: Final = ("base_generator", "python_coder")
"""Tools with a model inside."""
TEAM: Final = ("analyst", "planner", "executor", "verifier", "generator")
"""The roles of the team."""


def _texts(value: object) -> object:
    return [str(one) if isinstance(one, int) else one for one in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType] - pydantic checks what it is


Ids = Annotated[list[str], BeforeValidator(_texts)]
"""Names of tasks; numbers are taken as names."""


class RolloutConfig(RunConfig):
    """The settings of a rollout. Made directly they take nothing from their surroundings; `load_rollout_config` does."""

    DEFAULT_OUTPUT: ClassVar[str] = "rollout_results"
    """Where the files go, if nothing says it."""
    NOT_CONTENT: ClassVar[frozenset[str]] = frozenset({
        "data_path", "number_of_tasks", "task_ids", "max_workers", "parallel", "system_prompt_file",
        "evaluator_model_name", "evaluator_api_key", "evaluator_base_url", "evaluator_temperature",
        "evaluator_max_retries", "evaluator_extra_params", "save_results", "save_trajectories", "trajectory_only",
        "save_summary", *(f"{role}_model" for role in TEAM), "tool_model",
    })  # fmt: skip
    """Its fields that don't decide what the files hold."""

    data_path: str | None = None
    """The tasks: a JSONL, JSON, CSV or parquet file with a question and its answer on each line."""
    benchmark_name: str | None = None
    """A benchmark by its name, or a file that describes one: how its tasks are read, asked and scored."""
    number_of_tasks: int | None = Field(default=None, ge=1)
    """How many tasks to take, from the first; `None`: all that the benchmark takes."""
    task_ids: Ids | None = None
    """Only these, by their ids; `None`: all."""
    samples: int = Field(default=1, ge=1)
    """How often each task is worked on, each time from the beginning."""

    agent: Literal["team", "single"] = "team"
    """Who works on a task: planner, executor, verifier and generator, or one model that calls tools by itself."""
    verify: Literal["separate", "merged"] = "separate"
    """Who says whether enough is known: the verifier, or the planner together with its next step."""
    max_turns: int | None = Field(default=None, ge=0)
    """Turns of an episode at most; `None`: 10 of the team, 100 of a single agent."""
    max_retries: int = Field(default=3, ge=0)
    """How often an episode that crashed or could not be answered is tried again, from the beginning."""
    max_workers: int = Field(default=1, ge=1)
    """Episodes at once."""
    parallel: bool = False
    """Eight episodes at once, where `max_workers` does not say how many."""
    short_prompts: bool = False
    """The team's planner is told the question, the names of tools, and results: for small models trained to it."""
    system_prompt: Prose = ""
    """At the head of the planner's or the agent's prompt."""
    system_prompt_file: str | None = None
    """A file that holds it."""
    episode_seconds: float = Field(default=300, gt=0)
    """How long an episode may take; then it answers from what it has."""
    episode_tokens: int | None = Field(default=None, ge=1)
    """Tokens of an episode, read and written, from which on it only answers."""
    episode_cost: float | None = Field(default=None, gt=0)
    """Money of an episode, by `prices`, from which on it only answers."""
    memory_chars: int = Field(default=24_000, ge=1_000)
    """Characters of memory that roles are shown; beyond them the oldest turns are put in short."""

    analyst_model: RoleModel = RoleModel()
    """What is different about the model that analyses questions; its name and endpoint are by default the planner's."""
    planner_model: RoleModel = RoleModel()
    """What is different about the planner's model."""
    executor_model: RoleModel = RoleModel()
    """What is different about the executor's model."""
    verifier_model: RoleModel = RoleModel()
    """What is different about the verifier's model."""
    generator_model: RoleModel = RoleModel()
    """What is different about the generator's model."""

    tool_model: RoleModel = RoleModel()
    """What is different about the model inside the tools `base_generator` and `python_coder`."""

    evaluate_results: bool = True
    """Score the answers."""
    evaluation_metric: str | None = None
    """By which metric; `None`: that of the benchmark, else `exact_match`."""
    metric_options: dict[str, object] = Field(default_factory=dict[str, object])
    """Options of the metric."""
    evaluator_model_name: str | None = None
    """The model that judges; `None`: the agent's."""
    evaluator_api_key: SecretStr | None = None
    """The key for it; where `evaluator_base_url` is set, keys of other endpoints are not sent there."""
    evaluator_base_url: str | None = None
    """Its endpoint; `None`: the agent's."""
    evaluator_temperature: float = Field(default=0.0, ge=0)
    """How it samples."""
    evaluator_max_retries: int = Field(default=3, ge=0, le=9)
    """How often a request for a judgement is made again."""
    evaluator_extra_params: dict[str, object] = Field(default_factory=dict[str, object])
    """Further fields of its requests."""

    sandbox_auto_start: bool = False
    """Start a server when none answers at `sandbox_server_url`."""
    save_results: bool = True
    """Write `results.jsonl`, a line for each task as it is finished."""
    save_trajectories: bool = True
    """Write `trajectories.jsonl`."""
    trajectory_only: bool = False
    """Lines of `results.jsonl` hold the task's id, whether it was answered, and its trajectory."""
    save_summary: bool = True
    """Write `summary.json`."""
    run_name: str = Field(default="rollout", min_length=1)
    """The run's name in its journal."""

    @model_validator(mode="after")
    def _sensible(self) -> "RolloutConfig":
        if problem := next(self._problems(), None):
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        said = self.model_fields_set
        if self.agent == "single":
            for name in ("verify", "short_prompts", *(f"{role}_model" for role in TEAM)):
                if name in said and getattr(self, name) != type(self).model_fields[name].default:
                    yield f"{name}: a single agent has no such role; leave it out, or set agent=team"
        if self.verify == "merged" and self.verifier_model != RoleModel():
            yield "verifier_model: with verify=merged the planner verifies; leave it out, or set verify=separate"
        if "parallel" in said and "max_workers" in said and self.parallel != (self.max_workers > 1):
            yield f"parallel: contradicts max_workers={self.max_workers}; leave one of them out"
        if self.system_prompt and self.system_prompt_file:
            yield "system_prompt_file: there is a system_prompt too; leave one of them out"
        if self.trajectory_only and not self.save_results:
            yield "trajectory_only: results are not saved; leave it out, or set save_results=true"
        if not self.evaluate_results:
            for name in sorted(
                name for name in said if name.startswith(("evaluation_", "evaluator_", "metric_"))
            ):
                if getattr(self, name) != _default(name):
                    yield f"{name}: nothing is scored; leave it out, or set evaluate_results=true"
        if self.tool_model != RoleModel() and not self.model_tools:
            yield f"tool_model: no tool has a model; name one of {', '.join(MODEL_TOOLS)} in available_tools"
        if self.model_tools and self.sandbox_server_url is not None:
            yield f"available_tools: {self.model_tools[0]} runs in this process; leave out sandbox_server_url"
        if self.task_ids is not None and not self.task_ids:
            yield "task_ids: names no task; name one, or leave it out"
        if (self.episode_cost is not None or self.max_cost is not None) and not self._priced:
            yield "prices: a budget of money needs them; say what a million tokens cost"

    @property
    def _priced(self) -> bool:
        return self.prices is not None or any(own.prices is not None for own in self.role_models.values())

    @property
    def role_models(self) -> Mapping[str, RoleModel]:
        """What is different about the model of each role that may ask one."""
        team = {
            "analyst": self._analyst,
            "planner": self.planner_model,
            "executor": self.executor_model,
            "verifier": self.verifier_model,
            "generator": self.generator_model,
        }
        if self.verify == "merged":
            del team["verifier"]
        own = team if self.agent == "team" else {AGENT: RoleModel()}
        if self.model_tools:
            own[TOOL] = self.tool_model
        return {**own, JUDGE: self._judge} if self.evaluate_results else own

    @property
    def _analyst(self) -> RoleModel:
        mine = self.analyst_model.model_dump(exclude_none=True)
        return RoleModel.model_validate({**self.planner_model.model_dump(exclude_none=True), **mine})

    @property
    def _judge(self) -> RoleModel:
        return RoleModel(
            model_name=self.evaluator_model_name,
            base_url=self.evaluator_base_url,
            api_key=self.evaluator_api_key,
            temperature=self.evaluator_temperature,
            max_attempts=self.evaluator_max_retries + 1,
            extra_body=self.evaluator_extra_params,
        )

    @property
    def model_tools(self) -> list[str]:
        """Those of the tools asked for that have a model inside."""
        asked = {name.replace(":", "_") for name in self.available_tools}
        return [name for name in MODEL_TOOLS if name in asked]

    @property
    def models(self) -> "dict[str, ModelSettings]":
        """The model of each role."""
        return {role: self.model_for(role) for role in self.role_models}

    @property
    def turns(self) -> int:
        """Turns of an episode at most."""
        return TURNS[self.agent] if self.max_turns is None else self.max_turns

    @property
    def workers(self) -> int:
        """Episodes at once."""
        return PARALLEL if self.parallel and "max_workers" not in self.model_fields_set else self.max_workers

    @property
    def instructions(self) -> str:
        """What heads the planner's or the agent's prompt.

        :raises ConfigurationError: if the file can't be read.
        """
        if self.system_prompt_file is None:
            return self.system_prompt
        try:
            return Path(self.system_prompt_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise ConfigurationError(
                f"system_prompt_file: {self.system_prompt_file} can't be read: {why}; name another"
            ) from None

    @property
    def episode(self) -> "EpisodeSettings":
        """How an episode goes."""
        from agentflow.team import EpisodeSettings  # brings the sandbox along

        return EpisodeSettings(
            max_turns=self.turns,
            max_seconds=self.episode_seconds,
            max_tokens=self.episode_tokens,
            max_cost=self.episode_cost,
            memory_chars=self.memory_chars,
            verify=self.verify,
            instructions=self.instructions,
        )

    def identity(self) -> dict[str, object]:
        """What decides the content of the files."""
        return {**super().identity(), "max_turns": self.turns, "system_prompt": self.instructions}


def _default(name: str) -> object:
    return RolloutConfig.model_fields[name].get_default(call_default_factory=True, validated_data={})


def load_rollout_config(
    config_path: Path | str | None = None,
    overrides: Iterable[str] = (),
    arguments: Mapping[str, object] | None = None,
) -> RolloutConfig:
    """The settings from a file, then `.env`, then the environment, then `key=value` words: the last one wins.

    :param arguments: what a program says itself; it wins over all of them.
    :raises ConfigurationError: one line, if anything in them can't be used.
    """
    return load_settings(RolloutConfig, config_path, overrides, arguments=arguments)
